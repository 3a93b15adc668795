/**
 * Every error that the client raises.
 *
 * The server sends a reason, a message and a remedy, and the client passes them on. Four reasons come from the
 * client: nobody answers, an answer is late, the caller has cancelled the call, the server is too old for the call.
 */
import type { ErrorReason } from "./gen/headrace/v1/error_pb.js";

/** The server's reasons. A newer server may have more: compare with a default case. */
export type ServerReason = Exclude<keyof typeof ErrorReason, "UNSPECIFIED">;

/** Why a call failed. */
export type Reason = ServerReason | "UNREACHABLE" | "DEADLINE" | "CANCELLED" | "UNSUPPORTED" | (string & {});

/** The remedies for the client's reasons. Those of the others come from the server. */
const REMEDIES: Readonly<Record<string, string>> = {
  UNREACHABLE: "Start one with `headrace up`, or give its address as `address` or in HEADRACE_ADDRESS.",
  DEADLINE: "Try again: a request that arrives twice is carried out once.",
  CANCELLED: "Call again if the answer is still wanted.",
  UNSUPPORTED: "Update the server: it is older than this client. Or correct the address.",
  INVALID_FIELD: "Correct the named fields.",
  INTERNAL: "The server's log has the details; please report them.",
  TOO_LARGE: "Send less, or ask for less.",
};

const RETRYABLE: ReadonlySet<string> = new Set(["UNREACHABLE", "DEADLINE", "DATABASE_UNAVAILABLE", "DRAINING", "BUSY"]);

/** The parts of an error. */
export interface Failure {
  readonly reason: Reason;
  /** What happened. */
  readonly problem: string;
  /** What to do about it; the reason's default when absent. */
  readonly remedy?: string | undefined;
  /** Whether the same call may succeed later; follows from the reason when absent. */
  readonly retryable?: boolean | undefined;
  readonly cause?: unknown;
}

/** The base of all errors: `reason` for programs, `message` (the problem and the remedy) for people. */
export class HeadraceError extends Error {
  override readonly name: string = "HeadraceError";
  readonly reason: Reason;
  readonly problem: string;
  readonly remedy: string;
  /** Whether the same call may succeed later without any change. */
  readonly retryable: boolean;

  constructor(failure: Failure, message?: string) {
    const remedy = failure.remedy ?? REMEDIES[failure.reason] ?? "";
    super(message ?? joined(failure.problem, remedy), failure.cause === undefined ? undefined : { cause: failure.cause });
    this.reason = failure.reason;
    this.problem = failure.problem;
    this.remedy = remedy;
    this.retryable = failure.retryable ?? RETRYABLE.has(failure.reason);
  }
}

/** One invalid field. */
export interface Violation {
  /** Its path, such as `space.lr.low`. */
  readonly field: string;
  /** What is wrong with it. */
  readonly message: string;
  /** Its value; empty if that does not matter. */
  readonly value?: string;
  /** What to do. */
  readonly remedy?: string;
}

/** One or more fields of a request are invalid; `violations` has all of them. */
export class InvalidFieldError extends HeadraceError {
  override readonly name = "InvalidFieldError";
  readonly violations: readonly Violation[];

  constructor(violations: readonly Violation[], remedy?: string) {
    super({ reason: "INVALID_FIELD", problem: summary(violations), remedy }, violations.map(sentence).join("\n"));
    this.violations = violations;
  }
}

/** An error about one field. */
export function invalid(field: string, value: unknown, message: string, remedy: string): InvalidFieldError {
  return new InvalidFieldError([{ field, value: shown(value), message, remedy }]);
}

/** The error of a call that the caller cancelled, with its signal's reason as the cause. */
export function cancelled(signal: AbortSignal): HeadraceError {
  return new HeadraceError({ reason: "CANCELLED", problem: "The call was cancelled", cause: signal.reason });
}

function joined(problem: string, remedy: string): string {
  return `${problem}${/[.!?\n]$/.test(problem) ? "" : "."} ${remedy}`.trim();
}

function summary(violations: readonly Violation[]): string {
  const [only, ...more] = violations;
  if (only !== undefined && more.length === 0) {
    return only.field ? `${only.field}: ${only.message}.` : `${only.message}.`;
  }
  return `${violations.length} fields are invalid: ${violations.map((one) => one.field).join(", ")}.`;
}

function sentence(violation: Violation): string {
  const { field, message, value, remedy } = violation;
  const got = value && !message.includes(value) ? ` (got ${value})` : "";
  return `${field ? `${field}: ` : ""}${message}${got}. ${remedy ?? ""}`.trimEnd();
}

function shown(value: unknown): string {
  const text = typeof value === "bigint" ? `${value}` : (JSON.stringify(value) ?? String(value));
  return text.length > 80 ? `${text.slice(0, 77)}...` : text;
}
