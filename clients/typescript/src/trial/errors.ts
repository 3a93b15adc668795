/** How a trial's connection to its worker fails. */

/** The worker rejects a message of the trial. */
export class TrialRefusedError extends Error {
  override readonly name = "TrialRefusedError";
  /** Whether this process no longer holds the trial, so that there is nobody to report to. */
  readonly leaseOver: boolean;

  constructor(message: string, options: ErrorOptions & { readonly leaseOver?: boolean } = {}) {
    super(message, options);
    this.leaseOver = options.leaseOver ?? false;
  }
}

/** The worker no longer answers: a problem of the machine, not of the program. */
export class WorkerGoneError extends Error {
  override readonly name = "WorkerGoneError";
}

/** `EX_TEMPFAIL` of sysexits.h: if the worker comes back, it counts the trial as lost and charges nothing. */
export const WORKER_GONE_STATUS = 75;
