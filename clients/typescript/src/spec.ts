/**
 * Builders for parts of a study's spec, shorter than the message. They only set fields: the server validates.
 *
 *     { objective: minimize("loss"), space: space({ lr: float(1e-5, 1e-1, { log: true }) }), maxTrials: 20, maxSteps: 27 }
 */
import type * as pb from "./gen/headrace/v1/spec_pb.js";
import { Goal } from "./gen/headrace/v1/spec_pb.js";
import type { Init, Value } from "./plain.js";

/** One dimension of a search space. */
export type Domain = Init<pb.Parameter["domain"]>;

/** A parameter to search, and when it exists. */
export interface Conditional {
  readonly domain: Domain;
  readonly conditions: readonly Init<pb.Condition>[];
}

/** The metric to minimize. */
export const minimize = (metric: string): Init<pb.Objective> => ({ metric, goal: Goal.MINIMIZE });

/** The metric to maximize. */
export const maximize = (metric: string): Init<pb.Objective> => ({ metric, goal: Goal.MAXIMIZE });

/** The real numbers from `low` to `high`; `log` searches them evenly in the logarithm, `step` makes a grid. */
export const float = (low: number, high: number, options: { log?: boolean; step?: number } = {}): Domain => ({
  case: "float",
  value: { low, high, ...options },
});

/** The integers from `low` to `high`. */
export const int = (low: number, high: number, options: { log?: boolean; step?: number } = {}): Domain => ({
  case: "int",
  value: { low, high, ...options },
});

/** One of several values. */
export const choice = (...values: readonly Value[]): Domain => ({ case: "categorical", value: { values } });

/** A parameter that exists only if another one has one of these values. */
export const when = (parameter: string, values: Value | readonly Value[], domain: Domain): Conditional => ({
  domain,
  conditions: [{ parameter, values: typeof values === "object" ? values : [values] }],
});

/** The search space, in the order of its keys. A conditional parameter follows its parent. */
export function space(parameters: Readonly<Record<string, Domain | Conditional>>): readonly Init<pb.Parameter>[] {
  return Object.entries(parameters).map(([name, one]) => ("domain" in one ? { name, ...one } : { name, domain: one }));
}

/**
 * Asynchronous successive halving: after each rung the best 1/`eta` continue. The first rung is at step 1, unless
 * `minSteps` or `rungs` say otherwise.
 */
export const asha = (options: Init<pb.AshaPolicy> = {}): Init<pb.Policy> => ({
  kind: { case: "asha", value: { eta: 3, ...(options.rungs ? {} : { minSteps: 1 }), ...options } },
});

/** Every trial runs to the full budget. */
export const runAll = (): Init<pb.Policy> => ({ kind: { case: "runAll", value: {} } });

/** Independent draws. */
export const random = (): Init<pb.Sampler> => ({ kind: { case: "random", value: {} } });

/** Tree-structured Parzen estimators. */
export const tpe = (options: Init<pb.TpeSampler> = {}): Init<pb.Sampler> => ({ kind: { case: "tpe", value: options } });

/** The program of a trial: a command line, in a folder that every worker can reach. */
export const command = (
  args: readonly string[],
  workingDir: string,
  env: Readonly<Record<string, string>> = {},
): Init<pb.TrialTemplate> => ({
  program: { case: "command", value: { args } },
  workingDir,
  env,
});
