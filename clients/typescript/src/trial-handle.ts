/** The handle of one trial; nothing is fetched until a method is called. */
import { create } from "@bufbuild/protobuf";

import { annotate, type AnnotationChange } from "./annotations.js";
import type { CallOptions, Connection } from "./connection.js";
import {
  ExplainTrialRequestSchema,
  GetTrialRequestSchema,
  PauseTrialRequestSchema,
  ResumeTrialRequestSchema,
  StopTrialRequestSchema,
  StudyService,
} from "./gen/headrace/v1/study_pb.js";
import type { Annotation, Report, TrialInfo, TrialStory } from "./model.js";
import { requestId, studyId, trialName } from "./names.js";
import type { ListOptions } from "./pages.js";
import { plain } from "./plain.js";
import { present } from "./present.js";
import { reportsOf } from "./reports.js";

const { method } = StudyService;

export class Trial {
  readonly study: string;
  readonly number: number;
  readonly #connection: Connection;

  /** Made by `study.trial(number)`. */
  constructor(connection: Connection, study: string, number: number) {
    this.#connection = connection;
    this.study = studyId(study);
    this.number = number;
  }

  /** `studies/{study}/trials/{number}`. */
  get name(): string {
    return trialName(this.study, this.number);
  }

  /** The trial as of now. */
  async info(options?: CallOptions): Promise<TrialInfo> {
    const request = create(GetTrialRequestSchema, { name: this.name });
    return present((await this.#connection.call(method.getTrial, request, options)).trial);
  }

  /** Everything that happened to the trial. Decisions include the rule and the values that were compared. */
  async explain(options?: CallOptions): Promise<TrialStory> {
    const request = create(ExplainTrialRequestSchema, { name: this.name });
    return plain(await this.#connection.call(method.explainTrial, request, options));
  }

  /** The trial's reports, in order. */
  reports(options: ListOptions = {}): AsyncGenerator<Report, void> {
    return reportsOf(this.#connection, this.name, options);
  }

  /** Changes the tags and the note of the trial, and returns both as they are now. */
  async annotate(change: AnnotationChange, options?: CallOptions): Promise<Annotation> {
    return annotate(this.#connection, this.name, change, options);
  }

  /** Pauses the trial at its next rung; it stays paused until it is resumed. */
  async pause(options?: CallOptions): Promise<TrialInfo> {
    const request = create(PauseTrialRequestSchema, { requestId: requestId(), name: this.name });
    return present((await this.#connection.call(method.pauseTrial, request, options)).trial);
  }

  /** Undoes `pause`. */
  async resume(options?: CallOptions): Promise<TrialInfo> {
    const request = create(ResumeTrialRequestSchema, { requestId: requestId(), name: this.name });
    return present((await this.#connection.call(method.resumeTrial, request, options)).trial);
  }

  /** Cancels the trial. */
  async stop(reason = "", options?: CallOptions): Promise<TrialInfo> {
    const request = create(StopTrialRequestSchema, { requestId: requestId(), name: this.name, reason });
    return present((await this.#connection.call(method.stopTrial, request, options)).trial);
  }
}
