"""The pure core of a step: takes arrivals in, in order.

No clock, no database, no randomness. The transaction gives the state copies of the rows that the arrivals
touch, calls `apply` for each arrival, then `placing.place` until it asks for no more rows; what changed is in
`state.changes`, whom to tell in `state.orders`. The simulator and the tests drive the same functions.
"""

from collections.abc import Iterable
from math import isfinite, isnan
from typing import assert_never

from headrace_services.scheduler.arrivals import (
    Accepted,
    AddTrials,
    Arrival,
    ExitedArrived,
    Kick,
    LeaseExpired,
    Outcome,
    PauseStudy,
    PauseTrial,
    Proposed,
    ReportArrived,
    RestoredArrived,
    ResumeStudy,
    ResumeTrial,
    StopStudy,
    StopTrial,
    Suggest,
)
from headrace_services.scheduler.lifecycle import Reason, State, StudyState
from headrace_services.scheduler.records import Trial
from headrace_services.scheduler.step import commands, endings, proposals, reports
from headrace_services.scheduler.step.state import StepState


def apply(state: StepState, arrival: Arrival, *, seat: int = 0) -> Outcome | None:
    """Take one arrival in. Returns None for a Suggest, which is answered under its `seat` after placing.

    Raises a HeadraceError where a user's command cannot be carried out; nothing has changed then.
    """
    match arrival:
        case ReportArrived():
            return reports.report(state, arrival)
        case RestoredArrived():
            return endings.restored(state, arrival)
        case ExitedArrived():
            return endings.exited(state, arrival)
        case LeaseExpired():
            return endings.expired(state, arrival)
        case Kick():
            state.wants_placement = True
        case Proposed():
            return proposals.take(state, arrival)
        case Suggest():
            state.wants_placement = True
            state.seats.append((seat, arrival))
            return None
        case AddTrials():
            return commands.add_trials(state, arrival)
        case PauseStudy():
            commands.pause_study(state)
        case ResumeStudy():
            commands.resume_study(state)
        case StopStudy():
            commands.stop_study(state, arrival.reason)
        case PauseTrial():
            commands.hold_trial(state, arrival.number, held=True)
        case ResumeTrial():
            commands.hold_trial(state, arrival.number, held=False)
        case StopTrial():
            commands.stop_trial(state, arrival)
        case _:
            assert_never(arrival)
    return Accepted()


def finish(state: StepState, numbers: Iterable[int]) -> None:
    """Terminate what is left of a study that has just ended: these trials, which are loaded, with their live leases."""
    complete = state.study.state is StudyState.COMPLETED
    reason = Reason.STOPPED_EARLY if complete else Reason.CANCELLED
    failed = state.study.state is StudyState.FAILED
    detail = "the study failed" if failed else state.study.detail
    for number in sorted(numbers):
        trial = state.trials[number]
        if trial.state is State.TERMINATED:
            continue
        why = _never_promoted(trial) if complete else detail
        state.cancel(trial, why)
        if failed and endings.failed_early(state, trial):
            state.terminate(number, Reason.FAILED, endings.last_failure(state, trial))
        else:
            state.terminate(number, reason, why)


def _never_promoted(trial: Trial) -> str:
    """Why a trial that waited to the end did not go on."""
    if trial.value is None or isfinite(trial.value):
        return "not promoted before the study was complete"
    said = "NaN" if isnan(trial.value) else str(trial.value)
    return f"never promoted: its value at step {trial.step} was {said}, not a finite number"
