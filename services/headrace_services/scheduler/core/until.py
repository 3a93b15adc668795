"""What ends a study before its trials do: a target value, a number of hours, or trials that bring no improvement.

Each condition is checked where it may come true. A report may reach the target value, whatever the scope. Hours
pass while trials run (`core.hours`). The first condition that comes true ends the study as completed: it closes,
while its running trials save their state and leave (`core.closing`). A study without any usable value fails
instead, since it has nothing to show.

**Trials without improvement** are counted by their scores, as `headrace best` ranks them (`core.scores`). A trial
counts as tried once: when it reaches its first rung, or completes before that. The best trial, the *leader*, is
determined again whenever a trial reaches a rung or completes. Between two rungs the score of a trial is not
compared, except with the scope `best`. So a leader that continues training is compared by its last rung until it
reaches the next one. If it is worse there, another trial leads, which is no improvement. The rows show which one
(`BestScored`), so the study's row stores only the leader.

The hours count from 0 again whenever a user lets finished trials continue. So do the trials without improvement.
The target value and the leader are kept.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from headrace.errors import InvalidFieldError, Violation
from headrace.spec import Objective, Scope, Until
from headrace_services.scheduler.core import closing, hours
from headrace_services.scheduler.core.inputs import ExitedArrived, Input, ReportArrived
from headrace_services.scheduler.core.lifecycle import Reason
from headrace_services.scheduler.core.needs import BestScored, Deciding, Rows, ask
from headrace_services.scheduler.core.records import Trial
from headrace_services.scheduler.core.scores import ranked
from headrace_services.scheduler.core.state import CycleState
from headrace_services.scheduler.core.study_status import Leader


def look_ahead(state: CycleState, inputs: Sequence[Input]) -> Deciding[None]:
    """Learn which trials may lead, besides those that the inputs name."""
    if _counts_trials(state) and any(_may_compare(state, one) for one in inputs):
        leader = state.study.standing.progress.leader
        named = frozenset({leader.number} if leader else ()) - state.trials.keys()
        spec = state.study.spec
        need = BestScored(
            apart=frozenset(state.trials),
            named=named,
            maximize=spec.maximizes(),
            full_first=spec.objective.full_budget_first,
        )
        state.add_rows(Rows(trials=(yield from ask(need))))


def measured(state: CycleState, number: int, value: float) -> None:
    """Record a value that is a trial's best: finite, and from a report that meets the constraints."""
    progress = state.study.standing.progress
    if state.study.spec.until is None:
        return
    if state.study.spec.objective.improves(value, progress.best_value):
        state.stand(progress=replace(progress, best_value=value, best_trial=number))


def compare(state: CycleState, before: Trial) -> None:
    """Compare a trial with the study's best, if it has reached a rung or completed since it was as `before`."""
    after = state.trials[before.number]
    is_complete = after.reason is Reason.COMPLETED and before.reason is None
    by_best = state.study.spec.scope is Scope.BEST and after.score != before.score
    if (
        after.baseline
        or not _counts_trials(state)
        or not (is_complete or after.rungs > before.rungs or by_best)
    ):
        return
    progress, objective = state.study.standing.progress, state.study.spec.objective
    others = _leader(state, apart=after.number) if progress.leader is None else progress.leader
    now = _leader(state, settled=after.number)
    tried = progress.tried
    if _improves(objective, now, others):
        tried = 0
    if not before.rungs and (after.rungs or is_complete) and (now is None or now.number != after.number):
        tried += 1
    state.stand(progress=replace(progress, leader=now, tried=tried))


def look(state: CycleState) -> None:
    """Close the study if a condition that ends it has come true."""
    study, until = state.study, state.study.spec.until
    if until is None or study.state.ended or study.closing is not None or study.after is not None:
        return
    if why := _what_came_true(state, until):
        closing.begin(state, why, f"until: {' or '.join(until.conditions(study.spec.objective))}")


def begin_anew(state: CycleState) -> None:
    """Count hours and trials from 0, because the study or trials of it continue after their end. If it was
    closing, it no longer is."""
    if state.study.spec.until is not None:
        state.open_study()
        progress, now_s = state.study.standing.progress, state.study.now_s
        since_s = None if progress.since_s is None else now_s
        state.stand(progress=replace(progress, spent_s=0.0, since_s=since_s, seen_s=now_s, tried=0))


def require_unmet(state: CycleState, field: str) -> None:
    """Refuse to continue a study that has reached its target value: it would end at once."""
    until, best = state.study.spec.until, state.study.standing.progress.best_value
    if until is None or best is None or not until.reached(best, state.study.spec.objective.goal):
        return
    name = state.study.name
    said = f"cannot continue the study: it has reached its target {until.value:g} with {best:.6g}"
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
        leader = progress.leader
        of = "" if leader is None else f" on {objective.metric} {leader.score:.6g} of trial {leader.number}"
        return f"{progress.tried} trial{plural} in a row did not improve{of}"
    if until.hours is not None and hours.are_over(progress, until.hours):
        return f"its trials have run for {until.hours:g} hour{'s' * (until.hours != 1)}"
    return ""


def _counts_trials(state: CycleState) -> bool:
    until = state.study.spec.until
    return until is not None and until.no_improvement is not None


def _may_compare(state: CycleState, one: Input) -> bool:
    match one:
        case ExitedArrived():
            return True
        case ReportArrived():
            trial = state.trials.get(one.number)
            by_best = state.study.spec.scope is Scope.BEST
            at_rung = trial is not None and trial.milestone is not None and one.step >= trial.milestone
            return by_best or at_rung
        case _:
            return False


def _leader(state: CycleState, *, settled: int | None = None, apart: int | None = None) -> Leader | None:
    """The best of these: the trials that have no further training to do, the one `settled` now, and the leader so
    far, which counts with its earlier score if it continues training."""
    objective, known = state.study.spec.objective, state.study.standing.progress.leader
    still = [
        trial
        for trial in state.trials.values()
        if trial.number != apart and (trial.number == settled or not trial.trains_on)
    ]
    best = next((_as_leader(trial) for trial in ranked(objective, still)), None)
    if known is None or known.number in {trial.number for trial in still}:
        return best
    return best if _improves(objective, best, known) else known


def _as_leader(trial: Trial) -> Leader:
    assert trial.score is not None
    return Leader(number=trial.number, score=trial.score, full=trial.counts_as is Reason.COMPLETED)


def _improves(objective: Objective, one: Leader | None, on: Leader | None) -> bool:
    if one is None or on is None:
        return one is not None
    return _rank(objective, one) < _rank(objective, on)


def _rank(objective: Objective, one: Leader) -> tuple[bool, float]:
    return objective.full_budget_first and not one.full, objective.sign * one.score
