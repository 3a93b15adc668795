/**
 * How long a client waits. Pure.
 *
 * A call with a temporary failure is repeated with the same request, until the operation's time is over. A client
 * that has never had an answer gives up sooner, because a wrong address is then more likely than a restarting
 * scheduler.
 */
import { invalid } from "./errors.js";

/** gRPC writes a deadline with eight digits. */
const LONGEST_MS = 99_999_999;

export class Patience {
  /** Whether any server has answered yet. */
  answered = false;
  readonly #timeoutMs: number;
  readonly #connectTimeoutMs: number;
  readonly #attemptMs: number;

  /** `attemptMs` limits one attempt: if a server hangs, there is another attempt. */
  constructor(timeoutMs: number, connectTimeoutMs: number, attemptMs: number) {
    this.#timeoutMs = milliseconds(timeoutMs, "timeoutMs");
    this.#connectTimeoutMs = milliseconds(connectTimeoutMs, "connectTimeoutMs");
    this.#attemptMs = attemptMs;
  }

  /** The time for one operation, all attempts together. */
  budgetMs(timeoutMs: number = this.#timeoutMs): number {
    return this.answered ? timeoutMs : Math.min(timeoutMs, this.#connectTimeoutMs);
  }

  /** The deadline of an attempt that starts now. Until one of several replicas answers, it leaves time for the others. */
  attemptMs(elapsedMs: number, replicas: number, timeoutMs: number = this.#timeoutMs): number {
    const share = replicas > 1 && !this.answered ? this.#connectTimeoutMs / replicas : Infinity;
    const longest = this.#attemptMs === Infinity ? Infinity : Math.min(share, this.#attemptMs);
    return milliseconds(Math.max(1, Math.min(longest, timeoutMs - elapsedMs)), "timeoutMs");
  }
}

/** How long to wait before attempt number `attempt` (from 1) is repeated: random, and longer each time. */
export function pauseMs(attempt: number, random: () => number = Math.random): number {
  return random() * Math.min(2_000, 200 * 2 ** (attempt - 1));
}

/** A time as gRPC can send it: whole milliseconds, at least one. A fraction on the wire would break the connection. */
export function milliseconds(value: number, field: string): number {
  if (typeof value === "number" && value > 0) return Math.min(Math.ceil(value), LONGEST_MS);
  throw invalid(field, value, "is no time", "Give a number of milliseconds above 0.");
}
