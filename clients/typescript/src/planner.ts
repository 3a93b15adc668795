/**
 * Plans from a planner's server (`headrace planner`): how to split a training job over a cluster.
 *
 * A search runs on the server and reports its progress; its signal ends it there too. Nothing is stored, so if a
 * server dies with a question, the next server in the list of addresses is asked, each at most once.
 */
import { create } from "@bufbuild/protobuf";

import { type CallOptions, Connection, type ConnectionOptions } from "./connection.js";
import { HeadraceError } from "./errors.js";
import {
  ExplainRequestSchema,
  type ExplainResponse,
  type PlanDegrees,
  PlanDegreesSchema,
  type PlanProgress,
  type PlanQuestion,
  PlanQuestionSchema,
  type PlanRequest,
  PlanRequestSchema,
  PlannerService,
  type PlanResponse,
  SimulateRequestSchema,
  type SimulateResponse,
  type TrainingPlan as TrainingPlanMessage,
} from "./gen/headrace/v1/planner_pb.js";
import { type Init, message, type Plain, plain } from "./plain.js";
import { present } from "./present.js";
import { parseTarget } from "./target.js";

export const DEFAULT_PLANNER = "127.0.0.1:7441";

/** The question: a model and a cluster, each by name or as a description, and the settings that are fixed. */
export type Question = Omit<Init<PlanQuestion>, "model" | "cluster"> & {
  readonly model: string | Readonly<Record<string, unknown>>;
  readonly cluster: string | Readonly<Record<string, unknown>>;
};

/** The progress of a search. */
export type SearchProgress = Plain<PlanProgress>;

/** How to split a training job. All times are predictions. */
export type TrainingPlan = Plain<TrainingPlanMessage>;

/** A plan, with other plans to measure. */
export type PlanResult = Pick<Plain<PlanResponse>, "shortlist" | "complete" | "boundS"> & { readonly plan: TrainingPlan };

/** Options of a search. */
export interface SearchOptions {
  /** Ends the search, here and on the server. */
  readonly signal?: AbortSignal;
  /** Called while it runs; an exception thrown there ends the search. */
  readonly onProgress?: (progress: SearchProgress) => void;
  /** Ends the search after this many seconds, with the best plan so far. */
  readonly seconds?: number;
  /** Ends it after this many tuples of degrees. */
  readonly budget?: number;
  /** Limits the whole call; 600,000 when absent. */
  readonly timeoutMs?: number;
}

const SEARCH_MS = 600_000;
const { method } = PlannerService;

/** A connection to a planner's server. */
export class Planner {
  readonly #connection: Connection;

  /**
   * The address is `options.address`, or else `HEADRACE_PLANNER`, or else 127.0.0.1:7441. The token is
   * `options.token`, or else, over TLS, `HEADRACE_TOKEN`.
   */
  constructor(options: ConnectionOptions = {}) {
    const address = options.address || process.env["HEADRACE_PLANNER"] || DEFAULT_PLANNER;
    const target = parseTarget(address, options.address ? "address" : "HEADRACE_PLANNER", options.tls);
    const start = "Start one with `headrace planner`, or give its address as `address` or in HEADRACE_PLANNER.";
    // A plain-text planner may have been started by anybody on that machine: it gets no token that is not meant for it.
    const token = options.token || (target.tls === undefined ? undefined : process.env["HEADRACE_TOKEN"]);
    this.#connection = new Connection(target, token ? { ...options, token } : options, {
      kind: "planner",
      start,
      attemptMs: Infinity,
    });
  }

  /** The fastest plan. Throws if something is wrong with the question, or if nothing fits. */
  async plan(question: Question, options: SearchOptions = {}): Promise<PlanResult> {
    const { seconds, budget, onProgress, signal, timeoutMs = SEARCH_MS } = options;
    const request = message(PlanRequestSchema, { seconds, budget });
    request.question = asked(question);
    for (let left = this.#connection.replicas - 1; ; left -= 1) {
      try {
        return await this.#search(request, onProgress, { signal, timeoutMs });
      } catch (error) {
        const again = error instanceof HeadraceError && error.reason === "UNREACHABLE" && left > 0;
        if (!again) throw error;
      }
    }
  }

  /** The best plan with degrees that the caller chose. */
  async simulate(
    question: Question,
    degrees: Init<PlanDegrees>,
    options: CallOptions & { readonly trace?: boolean } = {},
  ): Promise<Plain<SimulateResponse>> {
    const request = create(SimulateRequestSchema, {
      question: asked(question),
      degrees: message(PlanDegreesSchema, degrees),
      trace: options.trace ?? false,
    });
    return plain(await this.#connection.call(method.simulate, request, { timeoutMs: SEARCH_MS, ...options }));
  }

  /** Searches, and explains why the plan won and what the next best ones lose. */
  async explain(question: Question, options: CallOptions & { readonly count?: number } = {}): Promise<Plain<ExplainResponse>> {
    const request = create(ExplainRequestSchema, {
      question: asked(question),
      ...(options.count === undefined ? {} : { count: options.count }),
    });
    return plain(await this.#connection.call(method.explain, request, { timeoutMs: SEARCH_MS, ...options }));
  }

  close(): void {
    this.#connection.close();
  }

  async #search(
    request: PlanRequest,
    onProgress: SearchOptions["onProgress"],
    options: { signal: AbortSignal | undefined; timeoutMs: number },
  ): Promise<PlanResult> {
    for await (const { message: told, shortlist, complete, boundS } of this.#connection.stream(method.plan, request, options)) {
      if (told.case === "progress") onProgress?.(plain(told.value));
      if (told.case === "plan") {
        const bound = boundS === undefined ? {} : { boundS };
        return { plan: present(told.value), shortlist: shortlist.map((one) => plain(one)), complete, ...bound };
      }
    }
    throw new HeadraceError({ reason: "INTERNAL", problem: "The planner ended without a plan", remedy: "Ask again." });
  }
}

function asked({ model, cluster, ...options }: Question): PlanQuestion {
  const found = message(PlanQuestionSchema, options);
  found.model =
    typeof model === "string" ? { case: "modelName", value: model } : { case: "modelJson", value: JSON.stringify(model) };
  found.cluster =
    typeof cluster === "string"
      ? { case: "clusterName", value: cluster }
      : { case: "clusterJson", value: JSON.stringify(cluster) };
  return found;
}
