/**
 * Ask and tell: trials that the caller runs in its own loop, under a lease.
 *
 * A lease lasts `leaseMs` from each report or renewal (`keepAlive`). After that the trial is offered to other
 * callers. Until one of them gets it, messages of the first caller still count. From then on they fail with
 * LEASE_STALE and change nothing.
 */
import { create } from "@bufbuild/protobuf";

import type { CallOptions, Connection } from "./connection.js";
import { HeadraceError, invalid } from "./errors.js";
import { DecisionAction, type LeaseRef } from "./gen/headrace/v1/event_pb.js";
import {
  CompleteTrialRequestSchema,
  ReleaseTrialRequestSchema,
  RenewTrialRequestSchema,
  ReportTrialRequestSchema,
  StudyService,
  SuggestTrialRequestSchema,
  type SuggestTrialResponse,
} from "./gen/headrace/v1/study_pb.js";
import type { Decision, TrialInfo } from "./model.js";
import { requestId, studyName } from "./names.js";
import { duration, type Params } from "./plain.js";
import { present } from "./present.js";

/** Options for asking for a trial. */
export interface AskOptions {
  /** Names the caller; drawn when absent. */
  readonly clientId?: string | undefined;
  /** How long the trial may go without a report or a renewal before it is offered to others; 6 hours when absent. */
  readonly leaseMs?: number | undefined;
  /** How long to wait for a trial while there is none to run; forever when absent. After that, the error is a DEADLINE. */
  readonly waitMs?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

const DEFAULT_LEASE_MS = 6 * 3_600_000;
const ASK_AGAIN_MS = [200, 500, 1_000, 2_000] as const;
const PATIENCE_MS = 10_000;
const { method } = StudyService;

/** The next trial of a study; undefined when the study is over. */
export async function ask(connection: Connection, study: string, options: AskOptions): Promise<AskedTrial | undefined> {
  const clientId = options.clientId ?? requestId();
  const leaseMs = options.leaseMs ?? DEFAULT_LEASE_MS;
  const began = performance.now();
  for (let attempt = 0, warned = false; ; attempt += 1) {
    const request = create(SuggestTrialRequestSchema, {
      requestId: requestId(),
      study: studyName(study),
      clientId,
      leaseTime: duration(leaseMs / 1000),
    });
    const answer = await connection.call(method.suggestTrial, request, { signal: options.signal });
    if (answer.trial !== undefined) return new AskedTrial(connection, answer, leaseMs);
    if (answer.done) return undefined;
    const waitedMs = performance.now() - began;
    if (options.waitMs !== undefined && waitedMs >= options.waitMs) {
      const problem = `Study ${study} has had no trial to run for ${options.waitMs} ms`;
      throw new HeadraceError({
        reason: "DEADLINE",
        problem,
        remedy: "Ask again later: it is paused, or its trials are held by others or wait for their results.",
      });
    }
    if (!warned && waitedMs >= PATIENCE_MS) {
      warned = true;
      connection.logger?.warn(
        `Study ${study} has no trial to run now: its trials wait for the results of others, or it is paused.`,
      );
    }
    await connection.sleep(ASK_AGAIN_MS[Math.min(attempt, ASK_AGAIN_MS.length - 1)] as number, options.signal);
  }
}

/** The metrics of a report. */
export type Metrics = Readonly<Record<string, number>>;

/**
 * A trial that the caller runs. Load `checkpointUri` if there is one, train from step `step` + 1 (`step` is 0 at
 * the start), and report.
 */
export class AskedTrial {
  /** The trial as it was when it was handed out. */
  readonly info: TrialInfo;
  /** How long it may go without a report or a renewal. */
  readonly leaseMs: number;
  readonly #connection: Connection;
  readonly #lease: LeaseRef;
  #nextMilestone: number;
  #ended = false;

  /** Made by `study.ask()`. */
  constructor(connection: Connection, answer: SuggestTrialResponse, leaseMs: number) {
    this.#connection = connection;
    this.info = present(answer.trial);
    this.#lease = answer.lease as LeaseRef;
    this.#nextMilestone = Number(answer.nextMilestone);
    this.leaseMs = leaseMs;
  }

  get number(): number {
    return this.info.number;
  }

  /** The configuration. */
  get params(): Params {
    return this.info.parameters ?? {};
  }

  /** The step to continue from, which is that of the checkpoint; 0 without one. */
  get step(): number {
    return this.info.checkpoint?.step ?? 0;
  }

  /** Where an earlier caller saved its state. */
  get checkpointUri(): string | undefined {
    return this.info.checkpoint?.uri;
  }

  /** The step up to which the caller may continue without a decision. */
  get nextMilestone(): number {
    return this.#nextMilestone;
  }

  /** Whether the caller was asked to leave the trial, and no longer holds it. */
  get ended(): boolean {
    return this.#ended;
  }

  /**
   * Reports a result, as in `report(3, { loss: 0.2 })`, and returns what to do next.
   *
   * `checkpointUri` says where the caller saved its state; whoever continues the trial finds it there.
   */
  async report(
    step: number,
    metrics: Metrics,
    options: CallOptions & { readonly checkpointUri?: string } = {},
  ): Promise<Decision> {
    if (!Number.isSafeInteger(step) || step < 0) {
      throw invalid("step", step, "is not a whole number of steps", "Report the number of steps done so far.");
    }
    for (const [name, value] of Object.entries(metrics)) {
      if (typeof value !== "number")
        throw invalid(`metrics.${name}`, value, "is not a number", "Report a number, or NaN where there is none.");
    }
    const request = create(ReportTrialRequestSchema, {
      requestId: requestId(),
      lease: this.#lease,
      step: BigInt(step),
      metrics: { ...metrics },
      checkpointUri: options.checkpointUri ?? "",
    });
    const answer = await this.#connection.call(method.reportTrial, request, options);
    this.#warnOf(answer.missingMetrics);
    const decision = present(answer.decision);
    if (decision.action === DecisionAction.CONTINUE) this.#nextMilestone = decision.nextMilestone || this.#nextMilestone;
    else this.#ended = true;
    return decision;
  }

  /** Reports that the caller is done with the trial or, with `error`, that the trial failed (charged to its retries). */
  async complete(options: CallOptions & { readonly error?: unknown } = {}): Promise<TrialInfo> {
    const { error } = options;
    return this.#end({ error: error === undefined ? "" : String(error) }, options);
  }

  /**
   * Reports that the configuration makes no sense, and why. This ends the trial: it is not tried again, does not
   * count as a failure and has no result. The sampler avoids such configurations.
   */
  async infeasible(reason: string, options: CallOptions = {}): Promise<TrialInfo> {
    return this.#end({ error: reason, infeasible: true }, options);
  }

  async #end(how: { error: string; infeasible?: boolean }, options: CallOptions): Promise<TrialInfo> {
    const request = create(CompleteTrialRequestSchema, {
      requestId: requestId(),
      lease: this.#lease,
      ...how,
    });
    const answer = await this.#connection.call(method.completeTrial, request, options);
    this.#ended = true;
    this.#warnOf(answer.missingMetrics);
    return present(answer.trial);
  }

  /** Gives the trial back: whoever asks next continues from its last checkpoint. Nothing is charged. */
  async release(options?: CallOptions): Promise<TrialInfo> {
    const request = create(ReleaseTrialRequestSchema, { requestId: requestId(), lease: this.#lease });
    const answer = await this.#connection.call(method.releaseTrial, request, options);
    this.#ended = true;
    return present(answer.trial);
  }

  /**
   * Keeps the lease while an evaluation takes longer than the lease: renews it three times per lease, until the
   * signal is aborted or the trial has ended. Then it resolves. Throws the errors of a renewal, such as LEASE_STALE.
   */
  async keepAlive(signal: AbortSignal): Promise<void> {
    const request = create(RenewTrialRequestSchema, { lease: this.#lease });
    while (!signal.aborted && !this.#ended) {
      try {
        await this.#connection.sleep(this.leaseMs / 3, signal);
        if (!this.#ended) await this.#connection.call(method.renewTrial, request, { signal });
      } catch (error) {
        if (!signal.aborted) throw error;
      }
    }
  }

  #warnOf(missing: readonly string[]): void {
    if (missing.length === 0) return;
    const names = missing.join(" and ");
    this.#connection.logger?.warn(
      `Trial ${this.info.name} ended and its last report has no ${names}, which a constraint reads: report it together with the objective.`,
    );
  }
}
