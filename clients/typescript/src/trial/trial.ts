/**
 * The trial as a program sees it: what to try, where it is, what to save, and whether to continue.
 *
 * It saves before it sends a report, so that a reported step can always be continued from.
 */
import { mkdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import { DecisionAction } from "../gen/headrace/v1/event_pb.js";
import type { Decision } from "../model.js";
import { type Params, plain } from "../plain.js";
import { Best } from "./best.js";
import type { Assignment, Runtime } from "./runtime.js";
import { refusal } from "./steps.js";

/** Writes the state into an existing, empty folder. */
export type Save = (folder: string) => Promise<void> | void;

/** How a loop saves. */
export interface StepsOptions {
  /** Writes what the next step reads. Without it, a paused trial starts again from scratch. */
  readonly save?: Save;
  /**
   * Also saves at the first report at least this many steps after the last save, so that less is lost if a machine
   * fails.
   */
  readonly checkpointEvery?: number;
}

const FULL_DISK_WAITS_MS = [1_000, 30_000] as const;

export class Trial {
  readonly #assignment: Assignment;
  readonly #runtime: Runtime;
  readonly #best: Best;
  #saving: StepsOptions = {};
  #step: number;
  #reported: number;
  #saved: number;
  #nextMilestone: number;
  #sequence = 0;
  #begun = false;
  #end: Decision | undefined;
  #since = performance.now();

  /** Made by `runTrial`. */
  constructor(assignment: Assignment, runtime: Runtime) {
    this.#assignment = assignment;
    this.#runtime = runtime;
    this.#best = new Best(assignment.keepBest, assignment.metric);
    this.#step = this.#reported = this.#saved = assignment.resumeStep;
    this.#nextMilestone = assignment.nextMilestone;
  }

  /** `studies/{study}/trials/{number}`. */
  get name(): string {
    return this.#assignment.trial;
  }

  /** The trial's number within its study; 0 in a run by hand. */
  get number(): number {
    return Number(/\d+$/.exec(this.name)?.[0] ?? 0);
  }

  /** The configuration. */
  get params(): Params {
    return this.#assignment.params;
  }

  /** The trial's own seed, 31 bits. */
  get seed(): number {
    return this.#assignment.seed;
  }

  /** The step being trained, or last trained; 0 before the first. */
  get step(): number {
    return this.#step;
  }

  /** The full budget in steps: what a schedule should span, even if this trial is stopped early. */
  get maxSteps(): number {
    return this.#assignment.maxSteps;
  }

  /** The indices of the granted slots. */
  get slots(): readonly number[] {
    return this.#assignment.slots;
  }

  /** The folder with the files that `save` wrote at step `step`; undefined to start from scratch. */
  get restoreDir(): string | undefined {
    return this.#assignment.restoreDir;
  }

  /** Whether the trial was asked to leave before its full budget. */
  get ended(): boolean {
    return this.#end !== undefined && this.#reported < this.maxSteps;
  }

  /** The remaining steps. The loop ends early if the trial is asked to leave. Load `restoreDir` before it. */
  async *steps(options: StepsOptions = {}): AsyncGenerator<number, void> {
    this.#saving = options;
    await this.#begin();
    while (this.#step < this.maxSteps && this.#end === undefined) {
      this.#step += 1;
      yield this.#step;
    }
  }

  /**
   * Reports metrics, as the last line of the loop: changes after it are not in the checkpoint.
   *
   * At a milestone it saves first, and waits for the decision. `save: true` also saves before a milestone. In a loop
   * other than `steps()`, pass `step` and leave the loop when `ended` is true.
   */
  async report(
    metrics: Readonly<Record<string, number>>,
    options: { readonly step?: number; readonly save?: boolean } = {},
  ): Promise<Decision> {
    const step = options.step ?? this.#step;
    const refused = this.#end
      ? "the trial was told to leave"
      : refusal(step, { since: this.#reported, maxSteps: this.maxSteps, rungs: this.#assignment.rungs });
    if (refused) throw new RangeError(`trial.report(...): ${refused}.`);
    for (const [name, value] of Object.entries(metrics)) {
      if (typeof value !== "number")
        throw new TypeError(`trial.report(...): metric ${name} is no number. Report NaN where there is none.`);
    }
    await this.#begin();
    this.#step = step;
    const trainSeconds = this.#elapsed();
    const best = this.#best.observe(metrics);
    const checkpointDir = this.#due(step, options.save || best) ? await this.#save(step) : "";
    const saveSeconds = checkpointDir ? this.#elapsed() : 0;
    this.#sequence += 1;
    const told = { sequence: this.#sequence, step, metrics, checkpointDir, trainSeconds, saveSeconds };
    const decision = plain(await this.#runtime.report(told));
    this.#reported = step;
    this.#since = performance.now();
    if (decision.action === DecisionAction.CONTINUE) this.#nextMilestone = decision.nextMilestone || this.#nextMilestone;
    else this.#end = decision;
    return decision;
  }

  /** Called once per process: everything is loaded, and the loop starts. */
  async #begin(): Promise<void> {
    if (this.#begun) return;
    this.#begun = true;
    const readSeconds = this.#elapsed(); // the time before the loop does not belong to a step
    if (this.restoreDir === undefined) return;
    await this.#runtime.restored(readSeconds);
    this.#elapsed();
  }

  /** Seconds since the last call, the last report or the start. */
  #elapsed(): number {
    const before = this.#since;
    this.#since = performance.now();
    return (this.#since - before) / 1000;
  }

  #due(step: number, asked: boolean | undefined): boolean {
    const every = this.#saving.checkpointEvery;
    return Boolean(asked) || step >= this.#nextMilestone || (every !== undefined && step - this.#saved >= every);
  }

  /** The finished folder of a checkpoint; empty if there is nothing to save. If the disk is full, it waits. */
  async #save(step: number): Promise<string> {
    const { checkpointDir } = this.#assignment;
    const { save } = this.#saving;
    if (checkpointDir === undefined || save === undefined) return "";
    const folder = join(checkpointDir, `step-${String(step).padStart(8, "0")}-${String(this.#sequence + 1).padStart(6, "0")}`);
    const [first, longest] = FULL_DISK_WAITS_MS;
    for (let waitMs: number = first; ; waitMs = Math.min(2 * waitMs, longest)) {
      try {
        const unfinished = `${folder}.part`;
        await rm(unfinished, { recursive: true, force: true });
        await mkdir(unfinished, { recursive: true });
        await save(unfinished);
        await rename(unfinished, folder);
        this.#saved = step;
        return folder;
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== "ENOSPC") throw error;
        process.stderr.write("headrace: the disk is full; the trial waits until there is room for its checkpoint\n");
        await sleep(waitMs);
      }
    }
  }
}
