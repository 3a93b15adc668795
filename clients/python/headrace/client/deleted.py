"""Checkpoints that `headrace gc` or the retention ages have deleted: how they are recognized, and what follows."""

from collections.abc import Iterable, Sequence

from headrace.client.model import Checkpoint, Report, TrialInfo, TrialState
from headrace.first_few import first_few


def deleted_checkpoint(trial: TrialInfo, reports: Iterable[Report]) -> Checkpoint | None:
    """The last checkpoint of a trial that has ended, if nothing refers to it any more: its files were deleted, or soon
    will be. None if the trial has a checkpoint to load, or reported none."""
    if trial.kept_checkpoint is not None or trial.state is not TrialState.TERMINATED:
        return None
    return next((one.checkpoint for one in [*reports][::-1] if one.checkpoint is not None), None)


def start_over_warning(numbers: Sequence[int]) -> str:
    """The warning that these completed trials cannot continue where they ended. Raises nothing."""
    one = len(numbers) == 1
    which = (
        f"trial {numbers[0]} was"
        if one
        else f"trials {first_few([str(number) for number in numbers], 8)} were"
    )
    return (
        f"The checkpoint{'' if one else 's'} of {which} deleted, by `headrace gc` or by age: "
        f"{'it starts' if one else 'those that continue start'} over from step 1. The results so far stay."
    )
