"""What ends a study before all its trials have: a target value, hours of running, or trials that improve nothing.

Each is looked at where it may come true. A report may bring a better value. A trial counts as tried once: when it comes
to its first rung, or completes before it. Hours pass while trials run (`core.hours`). The first that comes true ends
the study as completed: it closes, while the trials that run save their state and leave (`core.closing`). A study
without any usable value fails instead, since it has nothing to show.

The hours count from 0 each time that a user lets trials that are over go on. So do the trials without improvement. The
best value stays.
"""

from msgspec.structs import replace

from headrace.errors import InvalidFieldError, Violation
from headrace.spec import Until
from headrace_services.scheduler.core import closing, hours
from headrace_services.scheduler.core.state import CycleState


def measured(state: CycleState, number: int, value: float) -> None:
    """Take in a value that is a trial's best: finite, and of a report that meets the constraints."""
    progress = state.study.standing.progress
    if state.study.spec.until is None:
        return
    if state.study.spec.objective.improves(value, progress.best_value):
        state.stand(progress=replace(progress, best_value=value, best_trial=number, tried=0))


def tried(state: CycleState, number: int) -> None:
    """Count a trial that came to its first rung, or completed before it."""
    progress = state.study.standing.progress
    if state.study.spec.until is not None and number != progress.best_trial:
        state.stand(progress=replace(progress, tried=progress.tried + 1))


def look(state: CycleState) -> None:
    """Close the study where something has come true that ends it."""
    study, until = state.study, state.study.spec.until
    if until is None or study.state.ended or study.closing is not None or study.after is not None:
        return
    if why := _what_came_true(state, until):
        closing.begin(state, why, f"until: {' or '.join(until.conditions(study.spec.objective))}")


def begin_anew(state: CycleState) -> None:
    """Count hours and trials from 0: the study goes on after its end, or trials of it do. One that closes is opened."""
    if state.study.spec.until is not None:
        state.open_study()
        progress, now_s = state.study.standing.progress, state.study.now_s
        since_s = None if progress.since_s is None else now_s
        state.stand(progress=replace(progress, spent_s=0.0, since_s=since_s, seen_s=now_s, tried=0))


def require_unmet(state: CycleState, field: str) -> None:
    """Refuse to let a study go on that has its target value: it would end at once."""
    until, best = state.study.spec.until, state.study.standing.progress.best_value
    if until is None or best is None or not until.reached(best, state.study.spec.objective.goal):
        return
    name = state.study.name
    said = f"cannot let the study go on: it has reached its target {until.value:g} with {best:.6g}"
    remedy = (
        f"Create a study with another target, which begins from these results: warm_start: {{study: {name}}}."
    )
    raise InvalidFieldError([Violation(field=field, message=said, remedy=remedy)])


def _what_came_true(state: CycleState, until: Until) -> str:
    objective, progress = state.study.spec.objective, state.study.standing.progress
    best = progress.best_value
    said = "" if best is None else f"{objective.metric} {best:.6g}"
    if best is not None and until.reached(best, objective.goal):
        return f"trial {progress.best_trial} has {said}"
    if until.no_improvement is not None and progress.tried >= until.no_improvement:
        plural = "s" * (progress.tried > 1)
        of = "" if best is None else f" on {said} of trial {progress.best_trial}"
        return f"{progress.tried} trial{plural} in a row did not improve{of}"
    if until.hours is not None and hours.are_over(progress, until.hours):
        return f"its trials have run for {until.hours:g} hour{'s' * (until.hours != 1)}"
    return ""
