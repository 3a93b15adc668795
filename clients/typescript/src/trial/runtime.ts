/** The other side of a trial: a worker, or nobody in a run by hand. */
import { create } from "@bufbuild/protobuf";

import { type Decision as DecisionMessage, DecisionAction, DecisionSchema, type KeepBest } from "../gen/headrace/v1/event_pb.js";
import {
  AttachRequestSchema,
  type AttachResponse,
  FinishRequestSchema,
  ReportRequestSchema,
  RestoredRequestSchema,
  TrialRuntimeService,
} from "../gen/headrace/v1/runtime_pb.js";
import { duration, type Params, plain } from "../plain.js";
import { TrialRefusedError } from "./errors.js";
import { Line } from "./line.js";

/** The configuration of one process, and where it continues from. */
export interface Assignment {
  /** `studies/{study}/trials/{number}`. */
  readonly trial: string;
  readonly params: Params;
  readonly maxSteps: number;
  /** The step up to which the trial runs without asking. */
  readonly nextMilestone: number;
  readonly seed: number;
  /** The objective's name; empty if the trial is not compared. */
  readonly metric: string;
  /** The steps that must be reported; the last one is `maxSteps`. */
  readonly rungs: readonly number[];
  /** The folder with the checkpoint to load; absent to start from scratch. */
  readonly restoreDir?: string;
  readonly resumeStep: number;
  /** Where new checkpoints go; absent if none are needed. */
  readonly checkpointDir?: string;
  readonly slots: readonly number[];
  /** The rule for the best value if its checkpoint is kept, so that the trial saves it. */
  readonly keepBest?: KeepBest;
}

/** One report; a repeat has the same sequence. */
export interface Told {
  readonly sequence: number;
  readonly step: number;
  readonly metrics: Readonly<Record<string, number>>;
  readonly checkpointDir: string;
  readonly trainSeconds: number;
  readonly saveSeconds: number;
}

/** The other side of a trial. Every call is safe to repeat. */
export interface Runtime {
  attach(): Promise<Assignment>;
  restored(readSeconds: number): Promise<void>;
  /** Sends a report; at a milestone, waits for the decision. */
  report(told: Told): Promise<DecisionMessage>;
  /** The program ended, successfully if `error` is empty. */
  finish(error: string, traceback: string): Promise<void>;
}

const TOLD_CHARACTERS = 16 << 10;
const { method } = TrialRuntimeService;

/** The runtime of a process that a worker started; undefined if none did. */
export function workerRuntime(env: NodeJS.ProcessEnv): Runtime | undefined {
  const { HEADRACE_RUNTIME: address, HEADRACE_LEASE_ID: leaseId } = env;
  if (!address || !leaseId) return undefined;
  if (env["HEADRACE_RANK"] !== undefined || env["HEADRACE_BUNDLE"]) {
    throw new TrialRefusedError(
      "a trial in TypeScript has one process of its own: leave `processes: per_slot` and `fuse` out of the study",
    );
  }
  return new WorkerRuntime(new Line(address), leaseId);
}

class WorkerRuntime implements Runtime {
  constructor(
    private readonly line: Line,
    private readonly leaseId: string,
  ) {}

  async attach(): Promise<Assignment> {
    return assignment(await this.line.call(method.attach, create(AttachRequestSchema, { leaseId: this.leaseId })));
  }

  async restored(readSeconds: number): Promise<void> {
    const request = create(RestoredRequestSchema, { leaseId: this.leaseId, readTime: duration(readSeconds) });
    await this.line.call(method.restored, request);
  }

  async report(told: Told): Promise<DecisionMessage> {
    const request = create(ReportRequestSchema, {
      leaseId: this.leaseId,
      sequence: BigInt(told.sequence),
      step: BigInt(told.step),
      metrics: { ...told.metrics },
      checkpointDir: told.checkpointDir,
      trainTime: duration(told.trainSeconds),
      saveTime: duration(told.saveSeconds),
    });
    const { decision } = await this.line.call(method.report, request);
    const known = [DecisionAction.CONTINUE, DecisionAction.PAUSE, DecisionAction.STOP];
    if (decision !== undefined && known.includes(decision.action)) return decision;
    throw new TrialRefusedError(
      `the worker answered with the unknown decision ${decision?.action}; it is newer than this library`,
    );
  }

  async finish(error: string, traceback: string): Promise<void> {
    if (this.line.gone) return; // it counts the trial as lost
    const request = create(FinishRequestSchema, {
      leaseId: this.leaseId,
      error: error.slice(0, TOLD_CHARACTERS),
      traceback: traceback.slice(-TOLD_CHARACTERS),
    });
    try {
      await this.line.call(method.finish, request);
    } finally {
      this.line.close();
    }
  }
}

function assignment({ assign, restoreDir, checkpointDir }: AttachResponse): Assignment {
  if (assign === undefined) throw new TrialRefusedError("the worker's answer holds no trial");
  const { lease, grant, seed, metric, rungs, nextMilestone, maxSteps, resumeStep, parameters } = plain(assign);
  return {
    ...{ seed, metric, rungs, nextMilestone, maxSteps, resumeStep },
    trial: lease?.trial ?? "",
    slots: grant?.slots ?? [],
    params: parameters ?? {},
    ...(restoreDir ? { restoreDir } : {}),
    ...(checkpointDir ? { checkpointDir } : {}),
    ...(assign.keepBest ? { keepBest: assign.keepBest } : {}),
  };
}

/** A program's own settings, for a run by hand. */
export interface Defaults {
  readonly params: Params;
  readonly steps: number;
  readonly seed: number;
}

/** The runtime of a run by hand: nothing is compared, and each report is printed. */
export function handRuntime(defaults: Defaults): Runtime {
  const { params, steps: maxSteps, seed } = defaults;
  return {
    attach: async () => ({
      trial: "by-hand",
      params,
      maxSteps,
      seed,
      nextMilestone: maxSteps,
      metric: "",
      rungs: [],
      resumeStep: 0,
      slots: [0],
    }),
    restored: async () => undefined,
    report: async ({ step, metrics }) => {
      const values = Object.entries(metrics).map(([name, value]) => `${name}=${value}`);
      process.stdout.write(`step ${step}: ${values.join(" ")}\n`);
      return create(DecisionSchema, { action: DecisionAction.CONTINUE, nextMilestone: BigInt(maxSteps) });
    },
    finish: async () => undefined,
  };
}
