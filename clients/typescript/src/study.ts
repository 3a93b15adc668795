/** The handle of one study; nothing is fetched until a method is called. */
import { create } from "@bufbuild/protobuf";

import { type AskOptions, AskedTrial, ask } from "./ask-tell.js";
import { annotate, type AnnotationChange } from "./annotations.js";
import type { CallOptions, Connection } from "./connection.js";
import { HeadraceError } from "./errors.js";
import {
  AddTrialsRequestSchema,
  DeleteStudyRequestSchema,
  ExtendStudyRequestSchema,
  FindRoomRequestSchema,
  GetStudyRequestSchema,
  ListTrialsRequestSchema,
  MeasureImportanceRequestSchema,
  PauseStudyRequestSchema,
  ReadCurvesRequestSchema,
  ResumeStudyRequestSchema,
  RetryTrialsRequestSchema,
  StopStudyRequestSchema,
  StudyService,
} from "./gen/headrace/v1/study_pb.js";
import type { TrialState } from "./gen/headrace/v1/trial_pb.js";
import type { Annotation, CurvesPart, Importance, Report, Retried, Room, StudyInfo, TrialInfo, Update } from "./model.js";
import { requestId, studyId, studyName } from "./names.js";
import { type ListOptions, pages } from "./pages.js";
import { message, type Params, parameters, plain } from "./plain.js";
import { present } from "./present.js";
import { reportsOf } from "./reports.js";
import { Trial } from "./trial-handle.js";
import { hasEnded, watch, type WatchOptions } from "./watch.js";

const { method } = StudyService;

/** Which trials to list, and in which order. */
export interface TrialsOptions extends ListOptions {
  readonly states?: readonly TrialState[];
  /** Such as `state:running lr>1e-3 val_loss<0.1`. */
  readonly filter?: string;
  /** A key to sort by, such as `score` or `-param.lr`; by number when absent. */
  readonly orderBy?: string;
}

/** Which curves to read. */
export interface CurvesOptions extends ListOptions {
  readonly filter?: string;
  /** All that were reported when absent. */
  readonly metrics?: readonly string[];
  /** The most points of a trial: 2 to 10,000; 1000 when absent. */
  readonly mostPoints?: number;
}

export class Study {
  /** The bare name, such as `digits`. */
  readonly name: string;
  readonly #connection: Connection;

  /** Made by `client.study(name)` and `client.createStudy(name, spec)`. */
  constructor(connection: Connection, name: string) {
    this.#connection = connection;
    this.name = studyId(name);
  }

  /** The study as of now. */
  async status(options?: CallOptions): Promise<StudyInfo> {
    const request = create(GetStudyRequestSchema, { name: studyName(this.name) });
    return present((await this.#connection.call(method.getStudy, request, options)).study);
  }

  /** The best feasible trial so far, not counting the baseline; undefined before the first finite value. */
  async best(options?: CallOptions): Promise<TrialInfo | undefined> {
    return (await this.status(options)).status?.best;
  }

  /** The handle of a trial. */
  trial(number: number): Trial {
    return new Trial(this.#connection, this.name, number);
  }

  /** The study's trials: all, or those that are in one of the states and match the filter. */
  trials(options: TrialsOptions = {}): AsyncGenerator<TrialInfo, void> {
    const { states = [], filter = "", orderBy = "" } = options;
    const chosen = { study: studyName(this.name), states: [...states], filter, orderBy };
    const fetch = async (page: { pageSize: number; pageToken: string }) => {
      const request = create(ListTrialsRequestSchema, { ...chosen, ...page });
      const answer = await this.#connection.call(method.listTrials, request, { signal: options.signal });
      return { ...answer, items: answer.trials.map((one) => plain(one)) };
    };
    return pages(fetch, options, this.#connection.logger);
  }

  /** The trials with the curves of their metrics, in columns; each item is a part of the trials, in order. */
  curves(options: CurvesOptions = {}): AsyncGenerator<CurvesPart, void> {
    const { metrics = [], filter = "", mostPoints = 0 } = options;
    const chosen = { study: studyName(this.name), metrics: [...metrics], filter, mostPoints };
    const fetch = async (page: { pageSize: number; pageToken: string }) => {
      const request = create(ReadCurvesRequestSchema, { ...chosen, ...page });
      const answer = await this.#connection.call(method.readCurves, request, { signal: options.signal });
      return { ...answer, items: [plain(answer)] };
    };
    return pages(fetch, options, this.#connection.logger);
  }

  /** Changes the tags and the note of the study, and returns both as they are now. */
  async annotate(change: AnnotationChange, options?: CallOptions): Promise<Annotation> {
    return annotate(this.#connection, studyName(this.name), change, options);
  }

  /** Every report of the study's trials. */
  reports(options: ListOptions = {}): AsyncGenerator<Report, void> {
    return reportsOf(this.#connection, studyName(this.name), options);
  }

  /**
   * Follows the study to its end: every event with a cursor above `after` once and in order, even if connections break.
   * The study in the last update has ended.
   */
  watch(options: WatchOptions = {}): AsyncGenerator<Update, void> {
    return watch(this.#connection, this.name, options);
  }

  /** Waits until the study has ended, and returns it. */
  async wait(options: { readonly signal?: AbortSignal } = {}): Promise<StudyInfo> {
    let now = await this.status(options);
    if (hasEnded(now)) return now;
    for await (const update of this.watch({ ...options, after: now.status?.cursor ?? 0 })) now = update.study;
    if (!hasEnded(now))
      throw new HeadraceError({ reason: "CANCELLED", problem: `Study ${this.name} had not ended when this client was closed` });
    return now;
  }

  /**
   * The next trial to run in the caller's own loop; undefined when the study is over.
   *
   * It waits while every trial waits for the results of others.
   */
  async ask(options: AskOptions = {}): Promise<AskedTrial | undefined> {
    return ask(this.#connection, this.name, options);
  }

  /**
   * Trial after trial, until the study is over: `for await (const asked of study.askAll()) …`.
   *
   * The whole loop has one client id. If the loop is left early, the current trial is still held: end it or give it
   * back.
   */
  async *askAll(options: AskOptions = {}): AsyncGenerator<AskedTrial, void> {
    const asking = { clientId: requestId(), ...options };
    for (let asked = await this.ask(asking); asked !== undefined; asked = await this.ask(asking)) yield asked;
  }

  /** Pauses the study: running trials continue to their next rung and pause there, and no others start. */
  async pause(options?: CallOptions): Promise<StudyInfo> {
    const request = create(PauseStudyRequestSchema, this.#change());
    return present((await this.#connection.call(method.pauseStudy, request, options)).study);
  }

  /** Undoes `pause`. */
  async resume(options?: CallOptions): Promise<StudyInfo> {
    const request = create(ResumeStudyRequestSchema, this.#change());
    return present((await this.#connection.call(method.resumeStudy, request, options)).study);
  }

  /** Cancels every live trial and ends the study. */
  async stop(reason = "", options?: CallOptions): Promise<StudyInfo> {
    const request = create(StopStudyRequestSchema, { ...this.#change(), reason });
    return present((await this.#connection.call(method.stopStudy, request, options)).study);
  }

  /**
   * Removes an ended study with its trials and events. Its checkpoints and logs are deleted within the hour, on every
   * worker that has some.
   */
  async delete(options?: CallOptions): Promise<void> {
    await this.#connection.call(method.deleteStudy, create(DeleteStudyRequestSchema, this.#change()), options);
  }

  /** Adds configurations to try next, after those that are already proposed. */
  async addTrials(params: readonly Params[], options?: CallOptions): Promise<readonly TrialInfo[]> {
    const request = create(AddTrialsRequestSchema, {
      requestId: requestId(),
      study: studyName(this.name),
      parameters: params.map((one, index) => parameters(one, `parameters[${index}]`)),
    });
    const { trials } = await this.#connection.call(method.addTrials, request, options);
    return trials.map((one) => plain(one));
  }

  /** Retries failed trials: those with these numbers, or all. A study that has ended becomes active again. */
  async retry(trials: readonly number[] = [], options?: CallOptions): Promise<Retried> {
    const wanted = { requestId: requestId(), study: studyName(this.name), trialNumbers: trials };
    return plain(await this.#connection.call(method.retryTrials, message(RetryTrialsRequestSchema, wanted), options));
  }

  /** Continues a study, which may have ended, with this many more `trials`, or with `steps` as the new full budget. */
  async extend(by: { readonly trials?: number; readonly steps?: number }, options?: CallOptions): Promise<StudyInfo> {
    const request = message(ExtendStudyRequestSchema, { ...this.#change(), ...by });
    return present((await this.#connection.call(method.extendStudy, request, options)).study);
  }

  /** What the study's trials need and no connected worker has, even if its slots were all free. */
  async room(options?: CallOptions): Promise<Room> {
    const request = create(FindRoomRequestSchema, { study: studyName(this.name) });
    return plain(await this.#connection.call(method.findRoom, request, options));
  }

  /** How much each parameter matters for being among the best trials, for each objective. */
  async importance(options?: CallOptions): Promise<readonly Importance[]> {
    const request = create(MeasureImportanceRequestSchema, { study: studyName(this.name) });
    const { importances } = await this.#connection.call(method.measureImportance, request, options);
    return importances.map((one) => plain(one));
  }

  /** The fields of every request that changes something. */
  #change(): { requestId: string; name: string } {
    return { requestId: requestId(), name: studyName(this.name) };
  }
}
