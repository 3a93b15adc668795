/** Whether a report is the best of its trial so far, if the study keeps the checkpoint of the best value. */
import type { KeepBest } from "../gen/headrace/v1/event_pb.js";
import { Goal } from "../gen/headrace/v1/spec_pb.js";

export class Best {
  #value: number | undefined;
  readonly #told: KeepBest | undefined;
  readonly #metric: string;

  constructor(told: KeepBest | undefined, metric: string) {
    this.#told = told;
    this.#metric = metric;
    this.#value = told?.bestValue;
  }

  /** Takes a report, and returns whether it is the best one. */
  observe(metrics: Readonly<Record<string, number>>): boolean {
    const value = metrics[this.#metric];
    if (this.#told === undefined || value === undefined || !Number.isFinite(value)) return false;
    const met = this.#told.constraints.every(({ metric, bound }) => {
      const found = metrics[metric] ?? NaN;
      return bound.case === undefined || (bound.case === "atMost" ? found <= bound.value : found >= bound.value);
    });
    const better = this.#value === undefined || (this.#told.goal === Goal.MAXIMIZE ? value > this.#value : value < this.#value);
    if (met && better) this.#value = value;
    return met && better;
  }
}
