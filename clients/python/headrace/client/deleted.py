"""Checkpoints that `headrace gc` or the retention ages have deleted: how they are recognized, and what follows."""

from collections.abc import Iterable, Sequence

from headrace.client.model import Checkpoint, Report, TerminationReason, TrialInfo, TrialState
from headrace.first_few import first_few


def deleted_checkpoint(trial: TrialInfo, reports: Iterable[Report]) -> Checkpoint | None:
    """The checkpoint of the result that counts, if nothing refers to it any more: its files were deleted, or soon
    will be. None if there is one to load, if none was reported, and for a trial whose only result is still to come."""
    end = trial.counted_end
    if trial.kept_checkpoint is not None or (end is None and trial.state is not TrialState.TERMINATED):
        return None
    until = None if end is None else end.ended
    saved = [one for one in reports if one.checkpoint is not None]
    if until is not None:  # what was saved since is of another result
        saved = [one for one in saved if one.time is not None and one.time <= until]
    return saved[-1].checkpoint if saved else None


def may_start_over(trial: TrialInfo, *, steps: bool, budget: int) -> bool:
    """Whether an extension may let a trial of an ended study continue that has no checkpoint; `steps` if it is one of
    the full budget, which was `budget`."""
    if trial.checkpoint is not None or not trial.step:
        return False
    if (
        trial.reason is TerminationReason.STOPPED_EARLY
    ):  # the policy may promote it, or the study's end cut it off
        return True
    completed = trial.reason is TerminationReason.COMPLETED and trial.step >= budget
    retried = trial.reason is TerminationReason.FAILED and any(end.budget for end in trial.earlier_ends)
    return steps and (completed or retried)


def start_over_warning(numbers: Sequence[int]) -> str:
    """The warning that these trials cannot continue where they ended. Raises nothing."""
    one = len(numbers) == 1
    which = (
        f"trial {numbers[0]} was"
        if one
        else f"trials {first_few([str(number) for number in numbers], 8)} were"
    )
    return (
        f"The checkpoint{'' if one else 's'} of {which} deleted, by `headrace gc` or by age: "
        f"{'if it continues, it starts' if one else 'those that continue start'} over from step 1. Results are kept."
    )
