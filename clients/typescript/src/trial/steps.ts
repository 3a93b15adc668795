/** Which step a report may have. Pure. */

/** A trial's position in its budget. */
export interface Budget {
  /** The step that was last reported or restored. */
  readonly since: number;
  readonly maxSteps: number;
  /** The steps that must be reported. */
  readonly rungs: readonly number[];
}

/** Why a step must not be reported; undefined if it may be. */
export function refusal(step: number, { since, maxSteps, rungs }: Budget): string | undefined {
  if (!Number.isSafeInteger(step) || step < 1) return `step ${step} is no whole number of steps above 0`;
  if (step > maxSteps) return `step ${step} is past the full budget of ${maxSteps} steps`;
  if (step <= since)
    return `step ${step} is reported after step ${since}. Loop over trial.steps(), which resumes where the trial was`;
  const jumped = rungs.find((rung) => since < rung && rung < step);
  if (jumped === undefined) return undefined;
  return `step ${step} jumps over the rung at step ${jumped}. Report at every rung, or give the study rungs at steps that you report`;
}
