/** Tags and notes of studies and trials. */
import { create } from "@bufbuild/protobuf";

import type { CallOptions, Connection } from "./connection.js";
import { AnnotateRequestSchema, StudyService } from "./gen/headrace/v1/study_pb.js";
import type { Annotation } from "./model.js";
import { requestId } from "./names.js";
import { plain } from "./plain.js";

/** What to change. */
export interface AnnotationChange {
  readonly addTags?: readonly string[];
  readonly removeTags?: readonly string[];
  /** Replaces the note; unchanged when absent. */
  readonly note?: string;
}

/** Changes the tags and the note of the study or trial with a resource name. */
export async function annotate(
  connection: Connection,
  name: string,
  { addTags = [], removeTags = [], note }: AnnotationChange,
  options?: CallOptions,
): Promise<Annotation> {
  const tags = { addTags: [...addTags], removeTags: [...removeTags] };
  const request = create(AnnotateRequestSchema, {
    requestId: requestId(),
    name,
    ...tags,
    ...(note === undefined ? {} : { note }),
  });
  return plain(await connection.call(StudyService.method.annotate, request, options));
}
