"""The results with which trials count, as expressions over their rows: the counterpart of `Trial.counted`
(`core.earlier_ends`)."""

import math
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, and_, case, cast, func, literal_column, or_

from headrace_services.scheduler.core.lifecycle import WITHOUT_RESULT, Reason
from headrace_services.scheduler.store.columns import Metrics


def reason(trial: Any) -> ColumnElement[str]:
    """How a trial ended with the result that counts; NULL if that result is of a trial that is not over."""
    return func.coalesce(_counted(trial).op("->>")("reason"), trial.c.reason)


def metrics(trial: Any) -> ColumnElement[dict[str, float]]:
    """The metrics of the report behind the result that counts; if none does, those of the last report."""
    best = func.nullif(trial.c.best_metrics, literal_column("'{}'::jsonb"))
    return cast(func.coalesce(_counted(trial).op("->")("metrics"), best, trial.c.metrics), Metrics)


def step(trial: Any) -> ColumnElement[int]:
    """The step of an earlier end that counts; NULL if none does."""
    return cast(_counted(trial).op("->>")("step"), BigInteger)


def has_completed(trial: Any) -> ColumnElement[bool]:
    """Whether the result that counts is of a trial that completed."""
    return reason(trial).is_not_distinct_from(Reason.COMPLETED.value)


def is_infeasible(trial: Any) -> ColumnElement[bool]:
    """Whether a trial is infeasible, and no earlier end of it counts: then none of its results does."""
    return reason(trial).is_not_distinct_from(Reason.INFEASIBLE.value)


def has_failed(trial: Any) -> ColumnElement[bool]:
    """Whether a trial failed or is infeasible, and no earlier end of it counts."""
    return or_(*(reason(trial).is_not_distinct_from(one.value) for one in sorted(WITHOUT_RESULT)))


def is_sound(trial: Any) -> ColumnElement[bool]:
    """Whether a trial neither failed nor diverged (its last value is not finite), or an earlier end of it counts."""
    diverged = func.coalesce(trial.c.value.in_([math.nan, math.inf, -math.inf]), False)
    return and_(~has_failed(trial), case((trial.c.counted_end.is_(None), ~diverged), else_=True))


def _counted(trial: Any) -> ColumnElement[Any]:
    """The earlier end that counts, as JSON; NULL if none does."""
    end: ColumnElement[Any] = trial.c.earlier_ends.op("->")(trial.c.counted_end)
    return end
