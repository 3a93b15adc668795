/** Stored reports, of a study or of one of its trials. */
import { create } from "@bufbuild/protobuf";

import type { Connection } from "./connection.js";
import { ListReportsRequestSchema, StudyService } from "./gen/headrace/v1/study_pb.js";
import type { Report } from "./model.js";
import { type ListOptions, pages } from "./pages.js";
import { plain } from "./plain.js";

/** The reports below a resource name, in order. */
export function reportsOf(connection: Connection, parent: string, options: ListOptions): AsyncGenerator<Report, void> {
  const fetch = async (page: { pageSize: number; pageToken: string }) => {
    const request = create(ListReportsRequestSchema, { parent, ...page });
    const answer = await connection.call(StudyService.method.listReports, request, { signal: options.signal });
    return { ...answer, items: answer.reports.map((one) => plain(one)) };
  };
  return pages(fetch, options, connection.logger);
}
