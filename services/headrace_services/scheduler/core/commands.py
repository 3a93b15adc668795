"""Commands of users on a study and its trials. A command that cannot be carried out changes nothing."""

from headrace.errors import (
    InvalidFieldError,
    StudyEndedError,
    TrialEndedError,
    TrialNotFoundError,
    Violation,
)
from headrace_services.scheduler.core import code_changes, events, placing, reopening
from headrace_services.scheduler.core.inputs import Added, AddTrials, StopTrial
from headrace_services.scheduler.core.lifecycle import BY_USER, Reason, State, StudyState
from headrace_services.scheduler.core.records import Trial
from headrace_services.scheduler.core.state import CycleState


def pause_study(state: CycleState) -> None:
    """Start no trials; running ones pause at their next rung."""
    _require_live(state)
    state.move_study(StudyState.PAUSED, BY_USER)


def resume_study(state: CycleState) -> None:
    """Undo `pause_study`."""
    _require_live(state)
    code_changes.resumed(state)
    state.move_study(StudyState.ACTIVE, "resumed by a user")
    state.wants_placement = True


def stop_study(state: CycleState, why: str) -> None:
    """End the study; stopping one that has ended changes nothing."""
    state.move_study(StudyState.STOPPED, why or "stopped by a user")


def add_trials(state: CycleState, command: AddTrials) -> Added:
    """Add configurations beyond those that the sampler proposes."""
    _require_live(state, adds=True)
    if state.study.spec.shares_checkpoints:
        remedy = "Create a study with more trials: what new members would copy may be gone."
        raise InvalidFieldError(
            [Violation(field="trials", message="cannot join a population that trains", remedy=remedy)]
        )
    state.wants_placement = True
    placing.create_baseline(state)  # it is the first trial, even of a study that waits
    return Added(numbers=tuple(placing.create(state, params).number for params in command.params))


def pause_trial(state: CycleState, number: int, *, user_paused: bool) -> None:
    """Pause a trial at its next rung and keep it paused, or let it continue."""
    trial = _live_trial(state, number)
    if trial.user_paused != user_paused:
        state.update(number, user_paused=user_paused)
        state.emit(events.trial_user_paused(number, user_paused=user_paused))
        state.user_paused += 1 if user_paused else -1
        reserved = state.study.standing.reserved
        if user_paused and reserved is not None and reserved.number == number:
            state.give_up_reservation()  # others would wait for slots that it does not take
        state.wants_placement = True


def stop_trial(state: CycleState, command: StopTrial) -> None:
    """Cancel one trial."""
    trial = _live_trial(state, command.number)
    why = command.reason or "stopped by a user"
    state.cancel(trial, why)
    state.terminate(trial.number, Reason.CANCELLED, why)


def _require_live(state: CycleState, *, adds: bool = False) -> None:
    if state.study.state.ended:
        said = f"study '{state.study.name}' has ended ({state.study.state.lower()})"
        raise StudyEndedError(said, remedy=reopening.remedy_of_ended(state, adds=adds))


def _live_trial(state: CycleState, number: int) -> Trial:
    trial = state.trials.get(number)
    if trial is None:
        raise TrialNotFoundError(f"study '{state.study.name}' has no trial {number}")
    if trial.state is State.TERMINATED:
        why = (trial.reason or "").lower()
        name = state.study.name
        remedy = f"`headrace why {name} {number}` says how it ended. `headrace resume` is for paused trials; "
        again = "to try its configuration again, give it to study.add_trials() in Python"
        if state.study.state.ended:
            again = "to try its configuration again, list it under `enqueue` in a new study"
        raise TrialEndedError(f"trial {number} of study '{name}' is over ({why})", remedy=f"{remedy}{again}.")
    return trial
