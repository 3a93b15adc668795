/**
 * How a program becomes a trial.
 *
 * Either a worker started it (`HEADRACE_RUNTIME`), or it is a run by hand, with parameters from the command line.
 */
import { parseArgs } from "node:util";

import type { Params, Value } from "../plain.js";
import { TrialRefusedError, WORKER_GONE_STATUS, WorkerGoneError } from "./errors.js";
import { type Defaults, handRuntime, type Runtime, workerRuntime } from "./runtime.js";
import { Trial } from "./trial.js";

/** A program's own settings, for runs by hand: `node train.js --lr 0.1 --steps 5`. */
export interface RunOptions {
  /** A value for each parameter. */
  readonly defaults?: Params;
  /** The full budget; 1 when absent. */
  readonly steps?: number;
  readonly seed?: number;
  /** The command line; that of the process when absent. */
  readonly argv?: readonly string[];
}

/**
 * Calls `program` with the trial of this process, and reports how it ended.
 *
 * An exception that it throws is charged to the configuration, and ends the process with status 1. If the worker is
 * gone, the status is 75. Never throws.
 */
export async function runTrial(program: (trial: Trial) => Promise<void> | void, options: RunOptions = {}): Promise<void> {
  let runtime: Runtime | undefined;
  try {
    runtime = workerRuntime(process.env) ?? handRuntime(byHand(options));
    await program(new Trial(await runtime.attach(), runtime));
    await runtime.finish("", "");
  } catch (error) {
    process.stderr.write(`${error instanceof Error ? error.stack : String(error)}\n`);
    process.exitCode = error instanceof WorkerGoneError ? WORKER_GONE_STATUS : 1;
    const nobodyToTell = error instanceof WorkerGoneError || (error instanceof TrialRefusedError && error.leaseOver);
    if (!nobodyToTell) await tell(runtime, error);
  }
}

/** Reports why the program failed. If that fails too, the exit status shows that it did. */
async function tell(runtime: Runtime | undefined, error: unknown): Promise<void> {
  const known = error instanceof Error ? error : new Error(String(error));
  try {
    await runtime?.finish(`${known.name}: ${known.message}`, known.stack ?? "");
  } catch (second) {
    process.stderr.write(`headrace: ${String(second)}\n`);
  }
}

function byHand(options: RunOptions): Defaults {
  const defaults = options.defaults ?? {};
  const names = [...Object.keys(defaults), "steps", "seed"];
  const { values } = parseArgs({
    args: [...(options.argv ?? process.argv.slice(2))],
    options: Object.fromEntries(names.map((name) => [name, { type: "string" as const }])),
  });
  const params = Object.entries(defaults).map(([name, value]) => [name, parsed(name, values[name] as string | undefined, value)]);
  return {
    params: Object.fromEntries(params) as Params,
    steps: Number(parsed("steps", values["steps"] as string | undefined, options.steps ?? 1)),
    seed: Number(parsed("seed", values["seed"] as string | undefined, options.seed ?? 0)),
  };
}

/** A value from the command line, with the type of the default. */
function parsed(name: string, text: string | undefined, value: Value): Value {
  if (text === undefined) return value;
  if (typeof value === "string") return text;
  if (typeof value === "boolean") return text === "true";
  if (Number.isNaN(Number(text))) throw new TypeError(`--${name} ${text} is no number`);
  return Number(text);
}
