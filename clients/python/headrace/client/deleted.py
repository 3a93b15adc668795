"""Checkpoints that `headrace gc` or the retention ages have deleted: how they are recognized, and what follows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.client.model import Report, TerminationReason, TrialInfo, TrialState
from headrace.first_few import first_few
from headrace.spec import Keep, StudySpec


@dataclass(frozen=True, slots=True)
class Deleted:
    """A checkpoint that was deleted."""

    step: int | None
    """None if it is not known: a program that ends by itself may save once more, after its last report."""

    @property
    def of_step(self) -> str:
        """`it was of step 9`; empty if that is not known."""
        return "" if self.step is None else f"it was of step {self.step}"


def deleted_checkpoint(
    trial: TrialInfo, reports: Iterable[Report], spec: StudySpec, *, last: bool = False
) -> Deleted | None:
    """The checkpoint of the result that counts, or the `last` one, if nothing refers to it any more: its files were
    deleted, or soon will be. None if there is one to load, if none was reported, and for a trial whose only result is
    still to come.
    """
    end = None if last else trial.counted_end
    there = trial.checkpoint if last else trial.kept_checkpoint
    if there is not None or (end is None and trial.state is not TrialState.TERMINATED):
        return None
    until = None if end is None else end.ended
    saved = [one for one in reports if one.checkpoint is not None]
    if until is not None:  # what was saved since is of another result
        saved = [one for one in saved if one.time is not None and one.time <= until]
    if not saved:
        return None
    reason, step = (trial.reason, trial.step) if end is None else (end.reason, end.step)
    full = trial.step >= spec.max_steps if end is None else end.budget is not None
    if not last and spec.objective.keep is Keep.BEST:
        step = (trial.best_step if end is None else end.score_step) or step
    newest = max((one.step for one in saved if one.step <= step), default=0)
    ended_itself = reason is TerminationReason.COMPLETED and not full
    return Deleted(newest if newest == step or (newest and not ended_itself) else None)


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
