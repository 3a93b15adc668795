"""The results that a trial had each time it ended, before a user let it continue (`headrace extend`, `headrace
retry`).

A trial that continues may fail, diverge or get worse. Its earlier result is therefore kept apart from what happens
to the trial next: the value, the step, and a checkpoint that no retention rule deletes.

    over, with a result ── reopened ──┬── fails, diverges, gets worse ── the earlier end counts
      (an earlier end, kept)          └── gets at least as good ──────── the new result counts

One result counts: the best of the earlier ends and the current result. So a trial never counts for less because a
user let it continue. Which one counts (`Trial.counted_end`) is decided here, with each change of the trial, and
stored. Readers only use the record: `Trial.score`, `counts_as`, `counted_metrics`, and the same columns in
`store.counting`.

Completions are kept permanently. An end of another kind is kept while it counts.
"""

from collections.abc import Mapping
from math import isfinite

from msgspec import Struct
from msgspec.structs import replace

from headrace.spec import StudySpec
from headrace.spec.objective import is_feasible, objective_vector
from headrace_services.scheduler.core.lifecycle import WITHOUT_RESULT, Reason
from headrace_services.scheduler.core.other_code import marks_result
from headrace_services.scheduler.core.records import EarlierEnd, Trial
from headrace_services.scheduler.core.scores import has_values, score_now, score_step


def settled(spec: StudySpec, trial: Trial) -> Trial:
    """The trial with the result that counts now, as its `counted_end` and its `score`."""
    if not trial.earlier_ends and trial.reason is not Reason.INFEASIBLE:
        return trial
    place, counts = None, None
    for at, end in enumerate(trial.earlier_ends):
        one = _Result(
            reason=end.reason, step=end.step, score=end.score, score_step=end.score_step, metrics=end.metrics
        )
        usable = has_values(spec, one.score, one.metrics)
        if usable and (counts is None or not _beats(spec, counts, one)):
            place, counts = at, one
    now = _now(spec, trial)
    if now is not None and (counts is None or not _beats(spec, counts, now)):
        place = None
    score = _score_now(spec, trial) if place is None else trial.earlier_ends[place].score
    return replace(trial, counted_end=place, score=score)


def kept(spec: StudySpec, trial: Trial, cursor: int) -> tuple[EarlierEnd, ...]:
    """The earlier ends of a trial that has been over since this event and is reopened. Its present end becomes one
    of them if it has completed or counts."""
    ends = [
        end
        for place, end in enumerate(trial.earlier_ends)
        if end.budget is not None or place == trial.counted_end
    ]
    counts = trial.counted_end is None and _now(spec, trial) is not None
    if trial.reason is Reason.COMPLETED or counts:
        ends.append(_present_end(spec, trial, cursor))
    return tuple(ends)


def completed_in_words(spec: StudySpec, trial: Trial) -> str:
    """`completed the full budget of 3 steps with loss 0.5`, for a trial that has completed an earlier budget and has
    not trained since; otherwise empty."""
    done = next((end for end in reversed(trial.earlier_ends) if end.budget is not None), None)
    if done is None or done.budget is None or done.step != trial.step:
        return ""
    values = {one.metric: done.metrics.get(one.metric) for one in spec.objectives}
    if not spec.further_objectives:
        values = {spec.objective.metric: done.score}
    said = ", ".join(f"{name} {value:.5g}" for name, value in values.items() if value is not None)
    budget = f"{done.budget} step{'s' * (done.budget > 1)}"
    return f"completed the full budget of {budget}" + (f" with {said}" if said else "")


class _Result(Struct, frozen=True, kw_only=True):
    """The values by which two results of a trial are compared."""

    reason: Reason | None
    step: int
    score: float | None
    score_step: int
    metrics: Mapping[str, float]


def _beats(spec: StudySpec, earlier: _Result, later: _Result) -> bool:
    """Whether the earlier of two usable results counts, as `scores.ranked` would rank them. Of equal ones, the
    result whose value is of the later step counts. With the scope `best`, a trial that has reported nothing better
    since has the same value of the same step: then the earlier result counts, with its checkpoint. With several
    objectives the earlier one counts unless the later one is at least as good in all of them, so a point of the
    front stays on it."""
    if spec.further_objectives:
        pairs = zip(_signed(spec, earlier), _signed(spec, later), strict=True)
        compared = [(one, other) for one, other in pairs]
        if any(one < other for one, other in compared):
            return True
        return all(one == other for one, other in compared) and earlier.step >= later.step
    return _rank(spec, earlier) <= _rank(spec, later)


def _rank(spec: StudySpec, one: _Result) -> tuple[bool, float, int]:
    assert one.score is not None
    late = spec.objective.full_budget_first and one.reason is not Reason.COMPLETED
    return (late, spec.objective.sign * one.score, -one.score_step)


def _signed(spec: StudySpec, one: _Result) -> list[float]:
    vector = objective_vector(spec.objectives, one.metrics)
    assert vector is not None
    return [objective.sign * value for objective, value in zip(spec.objectives, vector, strict=True)]


def _now(spec: StudySpec, trial: Trial) -> _Result | None:
    """The trial's result since then; None if it has no usable one because it failed or diverged."""
    diverged = trial.value is not None and not isfinite(trial.value)
    score = _score_now(spec, trial)
    by_itself = replace(trial, score=score, counted_end=None)
    metrics = by_itself.counted_metrics
    if trial.reason in WITHOUT_RESULT or diverged or not has_values(spec, score, metrics):
        return None
    return _Result(
        reason=trial.reason,
        step=trial.step,
        score=score,
        score_step=score_step(spec, by_itself),
        metrics=metrics,
    )


def _score_now(spec: StudySpec, trial: Trial) -> float | None:
    """The score of what the trial has reported. Without earlier ends, that is its score. An infeasible trial has
    none: its configuration makes no sense, whatever it has reported."""
    if trial.reason is Reason.INFEASIBLE:
        return None
    if not trial.earlier_ends:
        return trial.score
    return score_now(spec, trial, feasible=is_feasible(spec.constraints, trial.metrics))


def _present_end(spec: StudySpec, trial: Trial, cursor: int) -> EarlierEnd:
    assert trial.reason is not None
    budget = None
    if trial.reason is Reason.COMPLETED:
        budget = max((one for one in spec.budgets if one <= trial.step), default=spec.budgets[0])
    diverged = trial.value is not None and not isfinite(trial.value)
    score = None if diverged else _score_now(spec, trial)
    by_itself = replace(trial, score=score, counted_end=None)
    return EarlierEnd(
        reason=trial.reason,
        step=trial.step,
        budget=budget,
        score=score,
        score_step=score_step(spec, by_itself),
        metrics=dict(by_itself.counted_metrics),
        checkpoint=trial.best_checkpoint or trial.checkpoint,
        cursor=cursor,
        end_time_s=trial.end_time.timestamp() if trial.end_time else None,
        code_changed=trial.code_changed if marks_result(by_itself) else (),
    )
