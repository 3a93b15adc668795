"""The score of a trial: which of its values counts, by the objective's `scope`.

A score ranks a trial as a whole. It decides which trial of a study is the best, which configurations another study
takes over, and whether a study has a usable result. Policies compare the values at rungs instead, and targets
(`until`) the values of reports.

Only a finite value of a report that meets the constraints is a score. With `best` a trial keeps its earlier score.
With the other scopes it has none until a report has one again. A mean leaves out reports that violate a
constraint. A report without the objective's metric changes nothing.

The last report is the one of the furthest step. A trial that was lost repeats steps; until it gets as far as before,
what it had reported counts.
"""

from collections.abc import Iterable, Mapping
from math import fsum, isfinite
from typing import Any, assert_never

from headrace.spec import Objective, Scope, StudySpec
from headrace.spec.objective import is_feasible, objective_vector
from headrace_services.scheduler.core.lifecycle import WITHOUT_RESULT, Reason
from headrace_services.scheduler.core.records import Trial


def best_report(
    spec: StudySpec, value: float | None, step: int, metrics: Mapping[str, float]
) -> dict[str, Any]:
    """What a trial keeps of its best report: its metrics, if they count."""
    counts = spec.scope is Scope.BEST
    return {"best_value": value, "best_step": step, "best_metrics": metrics if counts else {}}


def windows(
    spec: StudySpec, trial: Trial, value: float | None, *, step: int, feasible: bool, begun: int, before: int
) -> dict[str, Any]:
    """The fields that a report changes for the values whose mean counts. The attempt has `begun` after one step, and
    was at the step `before`.

    An attempt that repeats steps replaces what was reported of them once it is as far as the trial was.
    """
    if spec.scope is not Scope.MEAN_LAST_K:
        return {}
    assert spec.objective.k is not None
    behind = before < trial.step
    counting = zip(trial.recent_steps, trial.recent, strict=False)
    repeated = zip(trial.repeated_steps, trial.repeated, strict=True)
    if before == begun:
        known = [pair for pair in (repeated if trial.repeated else counting) if pair[0] <= begun]
    else:
        known = list(repeated if behind else counting)
    if feasible and value is not None:
        known.append((step, value))
    steps, values = (
        (tuple(column) for column in zip(*known[-spec.objective.k :], strict=True)) if known else ((), ())
    )
    if step < trial.step:
        return {"repeated": values, "repeated_steps": steps}
    return {"recent": values, "recent_steps": steps, "repeated": (), "repeated_steps": ()}


def scored(spec: StudySpec, trial: Trial, value: float | None, *, feasible: bool) -> dict[str, Any]:
    """The fields that a report changes for its trial's score. The trial already has its best value, and the values
    whose mean counts (`windows`)."""
    match spec.scope:
        case Scope.BEST:
            return {"score": trial.best_value}
        case _ if value is None:
            return {}
        case Scope.LAST | Scope.FULL_BUDGET:
            return {"score": value if feasible and isfinite(value) else None}
        case Scope.MEAN_LAST_K:
            return {"score": _mean(trial.recent) if feasible else None}
        case never:
            assert_never(never)


def is_made_by(spec: StudySpec, value: float | None, *, is_best: bool) -> bool:
    """Whether a report makes its trial's result: the one with the best value if that counts, else each one that
    has a value. With several objectives the values of the last report count."""
    if spec.further_objectives:
        return True
    return is_best if spec.scope is Scope.BEST else value is not None


def score_now(spec: StudySpec, trial: Trial, *, feasible: bool) -> float | None:
    """The score of a trial from its latest run alone, for when its record holds the score of an earlier end. None if
    its last report lacked the objective."""
    if spec.scope is Scope.BEST:
        return trial.best_value
    if trial.value is None or not (feasible and isfinite(trial.value)):
        return None
    return _mean(trial.recent) if spec.scope is Scope.MEAN_LAST_K else trial.value


def has_values(spec: StudySpec, score: float | None, metrics: Mapping[str, float]) -> bool:
    """Whether a result has values that can be compared and meet the constraints. With several objectives all of
    them count, as in the last report."""
    if not spec.further_objectives:
        return score is not None
    return objective_vector(spec.objectives, metrics) is not None and is_feasible(spec.constraints, metrics)


def score_step(spec: StudySpec, trial: Trial) -> int:
    """The step of the report that determined a trial's score; 0 if it has none."""
    if trial.score is None:
        return 0
    if trial.counted is not None:
        return trial.counted.score_step
    return trial.best_step if spec.scope is Scope.BEST else trial.step


def ranked(objective: Objective, trials: Iterable[Trial]) -> list[Trial]:
    """The trials with a score that did not fail, best first, without the baseline.

    Of equal ones, the trial that trained further comes first, then the one with the lower number.
    """

    def key(trial: Trial) -> tuple[bool, float, int, int]:
        assert trial.score is not None
        late = objective.full_budget_first and trial.counts_as is not Reason.COMPLETED
        return (late, objective.sign * trial.score, -trial.step, trial.number)

    candidates = (trial for trial in trials if not trial.baseline and trial.score is not None)
    return sorted((trial for trial in candidates if trial.counts_as not in WITHOUT_RESULT), key=key)


def _mean(values: tuple[float, ...]) -> float | None:
    if not all(map(isfinite, values)):
        return None
    mean = fsum(value / len(values) for value in values)
    return mean if isfinite(mean) else None
