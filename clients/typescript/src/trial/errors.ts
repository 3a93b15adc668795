/** How a trial's line to its worker fails. */

/** The worker refuses what the trial says: mostly because the trial is not this process's any more. */
export class TrialRefusedError extends Error {
  override readonly name = "TrialRefusedError";
}

/** The worker does not answer any more: the machine's trouble, not the program's. */
export class WorkerGoneError extends Error {
  override readonly name = "WorkerGoneError";
}

/** `EX_TEMPFAIL` of sysexits.h: the worker, should it come back, counts the trial as lost and charges nothing. */
export const WORKER_GONE_STATUS = 75;
