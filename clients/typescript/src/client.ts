/**
 * The client of a scheduler.
 *
 *     const client = new Client();
 *     const study = await client.createStudy("parabola", { … });
 *     for await (const asked of study.askAll()) …
 *     client.close();
 */
import { create, type MessageShape } from "@bufbuild/protobuf";

import { type CallOptions, Connection, type ConnectionOptions } from "./connection.js";
import { StudySpecSchema } from "./gen/headrace/v1/spec_pb.js";
import {
  CreateStudyRequestSchema,
  ListStudiesRequestSchema,
  ListWorkersRequestSchema,
  PreviewStudyRequestSchema,
  StudyService,
} from "./gen/headrace/v1/study_pb.js";
import type { Preview, StudyInfo, StudyShare, StudySpecInit, Worker } from "./model.js";
import { requestId } from "./names.js";
import { type ListOptions, pages } from "./pages.js";
import { message, plain } from "./plain.js";
import { Study } from "./study.js";
import { schedulerTarget } from "./target.js";

const { method } = StudyService;

/** A spec as a plain value, or as a message of `@headrace/client/proto`. */
export type Spec = StudySpecInit | MessageShape<typeof StudySpecSchema>;

/** A connection to a scheduler, or to several replicas. */
export class Client {
  readonly #connection: Connection;

  /**
   * The address is `options.address`, or else `HEADRACE_ADDRESS`, or else that of `headrace up`, or else
   * 127.0.0.1:7440. The token is `options.token`, or else `HEADRACE_TOKEN`.
   */
  constructor(options: ConnectionOptions = {}) {
    const token = options.token || process.env["HEADRACE_TOKEN"];
    this.#connection = new Connection(schedulerTarget(options.address, options.tls), token ? { ...options, token } : options);
  }

  /** The scheduler's address. */
  get address(): string {
    return this.#connection.address;
  }

  /** The handle of a study. */
  study(name: string): Study {
    return new Study(this.#connection, name);
  }

  /** Creates a study, which starts at once. The server validates the spec, and names every invalid field. */
  async createStudy(name: string, spec: Spec, options?: CallOptions): Promise<Study> {
    const request = create(CreateStudyRequestSchema, { requestId: requestId(), studyId: name, spec: specMessage(spec) });
    await this.#connection.call(method.createStudy, request, options);
    return this.study(name);
  }

  /** What a spec would do, before anything is spent: rungs, trials and steps; the time if `secondsPerStep` is known. */
  async preview(
    spec: Spec,
    options: CallOptions & { readonly slots?: number; readonly secondsPerStep?: number } = {},
  ): Promise<Preview> {
    const { slots = 0, secondsPerStep = 0 } = options;
    const request = create(PreviewStudyRequestSchema, { spec: specMessage(spec), slots, secondsPerStep });
    return plain(await this.#connection.call(method.previewStudy, request, options));
  }

  /** The studies, newest first: all, or those that match a filter such as `tag:paper created>7d`. */
  studies(options: ListOptions & { readonly filter?: string } = {}): AsyncGenerator<StudyInfo, void> {
    const fetch = async (page: { pageSize: number; pageToken: string }) => {
      const request = create(ListStudiesRequestSchema, { ...page, filter: options.filter ?? "" });
      const answer = await this.#connection.call(method.listStudies, request, { signal: options.signal });
      return { ...answer, items: answer.studies.map((one) => plain(one)) };
    };
    return pages(fetch, options, this.#connection.logger);
  }

  /** The workers that are or were connected; with `history`, including the load of their slots in the last hour. */
  workers(options: ListOptions & { readonly history?: boolean } = {}): AsyncGenerator<Worker, void> {
    const fetch = async (page: { pageSize: number; pageToken: string }) => {
      const request = create(ListWorkersRequestSchema, { ...page, history: options.history ?? false });
      const answer = await this.#connection.call(method.listWorkers, request, { signal: options.signal });
      return { ...answer, items: answer.workers.map((one) => plain(one)) };
    };
    return pages(fetch, options, this.#connection.logger);
  }

  /** Each active study's share of the cluster, in the order in which the studies get free slots. */
  async shares(options?: CallOptions): Promise<readonly StudyShare[]> {
    const request = create(ListWorkersRequestSchema, { pageSize: 1 });
    return (await this.#connection.call(method.listWorkers, request, options)).shares.map((one) => plain(one));
  }

  /** Closes the connections. Watches end, and calls in progress fail as cancelled. */
  close(): void {
    this.#connection.close();
  }
}

function specMessage(spec: Spec): MessageShape<typeof StudySpecSchema> {
  return "$typeName" in spec ? (spec as MessageShape<typeof StudySpecSchema>) : message(StudySpecSchema, spec);
}
