"""A trial's process is gone, or its holder is silent: who is to blame, and what follows.

Failures of the machine are never charged to the configuration: the trial goes on from its last checkpoint.
Failures of the user's code are: a few retries, then the trial is over. Two kinds of failure that no retry can
mend end the study with the reason: first trials that all fail before anything was reported, and a program
that is killed again and again without getting any further.
"""

from msgspec.structs import replace

from headrace.last_words import printed_last
from headrace.spec import StudySpec
from headrace_services.scheduler.arrivals import (
    Accepted,
    ExitedArrived,
    LeaseExpired,
    Outcome,
    RestoredArrived,
    Stale,
)
from headrace_services.scheduler.lifecycle import Action, Reason, State, StudyState
from headrace_services.scheduler.records import Lease, Trial
from headrace_services.scheduler.results import with_attempts
from headrace_services.scheduler.step.state import StepState

MAX_LOSSES_IN_ROW = 10
"""A program that is killed this often without a new checkpoint or a rung between is taken to kill itself (out of
memory). Reports alone are no progress: it makes them again each time."""

MAX_EARLY_FAILURES = 3
"""A study whose first trials all fail before anything was reported cannot succeed."""


def restored(state: StepState, arrival: RestoredArrived) -> Outcome:
    """A resumed trial has loaded its checkpoint."""
    lease = state.lease(arrival)
    if lease is None or not lease.live:
        return Stale()
    # Nothing is noted where nothing moves: a change without an event would be hidden from other replicas.
    if state.trials[lease.number].state is State.RESUMED and state.is_fresh(lease, arrival.sequence):
        read_s = arrival.read_time_s or state.trials[lease.number].read_s
        state.move(lease.number, Action.RESTORED, read_s=read_s)
    return Accepted()


def exited(state: StepState, arrival: ExitedArrived) -> Outcome:
    """A trial's program ended without having been told to, or the worker let go of it."""
    lease = state.lease(arrival)
    if lease is None or not lease.live:
        return Stale()
    if not state.is_fresh(lease, arrival.sequence):
        return Accepted()
    number = lease.number
    if arrival.log_tail:
        state.update(number, log_tail=arrival.log_tail)
    match arrival.outcome:
        case "FINISHED":
            _finished(state, state.trials[number], lease)
        case "FAILED":
            _failed(state, state.trials[number], lease, arrival.error or "its program failed")
        case "RELEASED":  # let go of by its holder: nothing points to its program
            _interrupt(state, state.trials[number], arrival.error or "its client or worker gave it back")
        case _:
            _lost(state, state.trials[number], arrival.error or "its process was lost")
    return Accepted()


def expired(state: StepState, arrival: LeaseExpired) -> Outcome:
    """The holder of a lease was not heard of in time. Should it live after all, it is told to let go."""
    lease = state.lease(arrival)
    if lease is None or not lease.live:
        return Stale()
    state.cancel(state.trials[lease.number], arrival.why)
    _interrupt(state, state.trials[lease.number], arrival.why)
    return Accepted()


def _finished(state: StepState, trial: Trial, lease: Lease) -> None:
    """The program ended, or the client says that it is done, before the full budget: there a report ends the trial."""
    spec = state.study.spec
    ended = "its client completed it" if spec.template is None else "its program ended"
    if spec.objective.metric in trial.metrics:
        own = "" if spec.template is None else " by itself"
        why = f"{ended}{own} at step {trial.step} of {spec.max_steps}"
        state.terminate(trial.number, Reason.COMPLETED, why)
    else:
        why = f"{ended} without reporting '{spec.objective.metric}'; {_unreported(spec, trial)}"
        state.terminate(trial.number, Reason.FAILED, why)
        _count_early_failure(state, trial, lease)


def _unreported(spec: StudySpec, trial: Trial) -> str:
    if trial.metrics:
        return f"it reported {', '.join(sorted(trial.metrics))}"
    if spec.template is None:
        return "report before you complete"
    return "it returned or exited with 0; what a function returns does not count: call t.report(...)"


def _failed(state: StepState, trial: Trial, lease: Lease, error: str) -> None:
    failures = trial.failures + 1
    if failures > state.study.spec.max_retries:
        state.terminate(trial.number, Reason.FAILED, with_attempts(error, failures), failures=failures)
    else:
        state.move(trial.number, Action.RETRY, failures=failures, detail=error)
    _count_early_failure(state, trial, lease)


def _count_early_failure(state: StepState, trial: Trial, lease: Lease) -> None:
    if state.study.reports:
        return
    state.failed_on.update(slot.worker_name for slot in state.slots.get(lease.id, ()))
    if trial.failures:
        return
    count = state.study.early_failures + 1
    state.study = replace(state.study, early_failures=count)
    if count >= MAX_EARLY_FAILURES:
        last = state.trials[trial.number]
        printed = printed_last(last.log_tail)
        said = f"; it printed last: {printed!r}" if printed and printed not in last.detail else ""
        why = f"the first {count} trials failed before reporting anything{_where(state)}"
        state.move_study(StudyState.FAILED, f"{why}; the last one: {last.detail}{said}")


def failed_early(state: StepState, trial: Trial) -> bool:
    """Whether an unfinished trial is one of those for which the study fails before any report."""
    return trial.failures > 0 and not state.study.reports


def last_failure(state: StepState, trial: Trial) -> str:
    """How the last attempt of such a trial failed. While it runs again, only the end of its log still says so."""
    lines = trial.log_tail.strip().splitlines()
    error = trial.detail or (lines[-1] if lines else "its program failed")
    attempts = state.study.spec.max_retries + 1
    return f"{error} (attempt {trial.failures} of {attempts}; not tried again, as the study failed)"


def _where(state: StepState) -> str:
    """On which workers the trials failed. One that fails alone among others is the likely cause itself."""
    workers = sorted(state.failed_on)
    if len(workers) > 1:
        return f" (on the workers {', '.join(workers)})"
    if not workers:
        return ""
    others = state.connected - state.failed_on
    blame = ", which is the likely cause: others are connected" if others else ""
    return f" (all on worker '{workers[0]}'{blame})"


def _lost(state: StepState, trial: Trial, why: str) -> None:
    losses = trial.losses_in_row + 1
    if losses >= MAX_LOSSES_IN_ROW:
        detail = (
            f"{why}, {losses} times in a row without a new checkpoint or a rung between: is it out of memory?"
        )
        state.terminate(trial.number, Reason.FAILED, detail, losses_in_row=losses)
    else:
        state.update(trial.number, losses_in_row=losses)
        _interrupt(state, state.trials[trial.number], why)


def _interrupt(state: StepState, trial: Trial, why: str) -> None:
    state.move(trial.number, Action.INTERRUPT, interruptions=trial.interruptions + 1, detail=why)
