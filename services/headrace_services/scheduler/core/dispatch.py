"""Dispatch inputs to the modules that handle them, and end a study.

`apply` changes the state for one input. The changes are in `state.changes`, the messages to send in
`state.orders`.
"""

from collections.abc import Iterable
from math import isfinite, isnan
from typing import assert_never

from headrace.spec import StudySpec
from headrace_services.scheduler.core import (
    commands,
    earlier_ends,
    exits,
    proposals,
    reports,
    stale_leases,
    study_launch,
)
from headrace_services.scheduler.core.inputs import (
    Accepted,
    AddTrials,
    AfterEnded,
    ExitedArrived,
    ExtendStudy,
    Input,
    LeaseExpired,
    Outcome,
    PauseStudy,
    PauseTrial,
    PlaceNow,
    ProposalsOver,
    Proposed,
    Renewed,
    ReportArrived,
    RestoredArrived,
    ResumeStudy,
    ResumeTrial,
    RetryTrials,
    StopStudy,
    StopTrial,
    Suggest,
)
from headrace_services.scheduler.core.lifecycle import Reason, State, StudyState
from headrace_services.scheduler.core.records import Trial
from headrace_services.scheduler.core.state import CycleState


def apply(state: CycleState, one: Input, *, position: int = 0) -> Outcome | None:
    """Apply one input. Returns None for a Suggest, which is answered under its `position` after placing.

    Raises a HeadraceError if a user's command cannot be carried out; nothing has changed then.
    """
    match one:
        case ReportArrived():
            return reports.receive(state, one)
        case RestoredArrived():
            return exits.restored(state, one)
        case ExitedArrived():
            return exits.exited(state, one)
        case Renewed():
            return stale_leases.renewed(state, one)
        case LeaseExpired():
            return exits.expired(state, one)
        case PlaceNow():
            state.wants_placement = True
        case Proposed():
            return proposals.receive(state, one)
        case ProposalsOver():
            return proposals.over(state, one)
        case AfterEnded():
            study_launch.launch(state, one)
        case Suggest():
            state.wants_placement = True
            state.pending_suggestions.append((position, one))
            return None
        case AddTrials():
            return commands.add_trials(state, one)
        case PauseStudy():
            commands.pause_study(state)
        case ResumeStudy():
            commands.resume_study(state)
        case StopStudy():
            commands.stop_study(state, one.reason)
        case PauseTrial():
            commands.pause_trial(state, one.number, user_paused=True)
        case ResumeTrial():
            commands.pause_trial(state, one.number, user_paused=False)
        case StopTrial():
            commands.stop_trial(state, one)
        case RetryTrials() | ExtendStudy():
            raise AssertionError("`decide` gives it to `reopening`, which asks for rows")
        case _:
            assert_never(one)
    return Accepted()


def finish(state: CycleState, numbers: Iterable[int]) -> None:
    """Terminate the remaining trials of a study that has just ended: these, which are loaded, with their live
    leases."""
    complete = state.study.state is StudyState.COMPLETED
    reason = Reason.STOPPED_EARLY if complete else Reason.CANCELLED
    failed = state.study.state is StudyState.FAILED
    detail = stale_leases.STUDY_FAILED if failed else state.study.detail
    for number in sorted(numbers):
        trial = state.trials[number]
        if trial.state is State.TERMINATED:
            continue
        waits = complete and trial.milestone is None
        why = _never_promoted(state.study.spec, trial) if waits else detail
        state.cancel(trial, why)
        if failed and exits.failed_early(state, trial):
            state.terminate(number, Reason.FAILED, exits.last_failure(state, trial))
        else:
            state.terminate(number, reason if trial.attempt else Reason.CANCELLED, why)


def _never_promoted(spec: StudySpec, trial: Trial) -> str:
    """Why a trial that waited until the end did not continue. One that had completed an earlier budget has lost
    nothing, and this says so."""
    if completed := earlier_ends.completed_in_words(spec, trial):
        budget = f"{spec.max_steps} step{'s' * (spec.max_steps > 1)}"
        return f"{completed}; not promoted to the new budget of {budget} before the study ended"
    if trial.value is None or isfinite(trial.value):
        return "not promoted before the study ended"
    said = "NaN" if isnan(trial.value) else str(trial.value)
    return f"never promoted: its value at step {trial.step} was {said}, not a finite number"
