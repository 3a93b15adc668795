/** How a trial's line to its worker fails. */

/** The worker refuses what the trial says. */
export class TrialRefusedError extends Error {
  override readonly name = "TrialRefusedError";
  /** Whether the trial is not this process's any more, so that there is nobody to tell. */
  readonly leaseOver: boolean;

  constructor(message: string, options: ErrorOptions & { readonly leaseOver?: boolean } = {}) {
    super(message, options);
    this.leaseOver = options.leaseOver ?? false;
  }
}

/** The worker does not answer any more: the machine's trouble, not the program's. */
export class WorkerGoneError extends Error {
  override readonly name = "WorkerGoneError";
}

/** `EX_TEMPFAIL` of sysexits.h: the worker, should it come back, counts the trial as lost and charges nothing. */
export const WORKER_GONE_STATUS = 75;
