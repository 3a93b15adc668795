"""The curves of a study's trials, in columns: for pictures of many trials.

Postgres thins and transposes: a trial's points arrive as one array for each column. Where attempts repeated a step,
the last attempt counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import nan
from typing import Any

from sqlalchemy import ColumnElement, Double, case, cast, func, literal, or_, select
from sqlalchemy.dialects.postgresql import JSONB, aggregate_order_by, distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.core.lifecycle import Reason, State
from headrace_services.scheduler.core.records import Params
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.columns import metric_in
from headrace_services.scheduler.store.defects import reason_of

MOST_METRICS = 64
"""How many metrics a call reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """The curves of a trial. `values` has a list for each metric, as long as `steps`, with NaN for a gap."""

    number: int
    state: State
    reason: Reason | None
    score: float | None
    params: Params
    steps: Sequence[int] = ()
    times_s: Sequence[float] = ()
    values: Sequence[Sequence[float]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A trial that cannot be shown, and why."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to read."""

    study_id: int
    since: datetime
    """Times count from then."""
    which: ColumnElement[bool]
    """Only trials that meet it."""
    metrics: Sequence[str]
    most_points: int
    """The most points of a trial."""

    @property
    def width(self) -> int:
        """How many values a point has: its step, its time, and its metrics."""
        return 2 + len(self.metrics)


async def metrics(
    conn: AsyncConnection, study_id: int, which: ColumnElement[bool], *, number: int, limit: int
) -> list[str]:
    """The names of the metrics that the next trials have reported, in alphabetical order; at most one more than
    `MOST_METRICS`."""
    r, t = tables.report, tables.trial
    numbers = (
        select(t.c.number)
        .where(t.c.study_id == study_id, t.c.number > number, which)
        .order_by(t.c.number)
        .limit(limit)
    )
    sound = case((func.jsonb_typeof(cast(r.c.metrics, JSONB)) == "object", cast(r.c.metrics, JSONB)))
    name = func.jsonb_object_keys(sound).label("name")
    query = select(name).where(r.c.study_id == study_id, r.c.number.in_(numbers)).distinct()
    return [row.name for row in await conn.execute(query.order_by(name).limit(MOST_METRICS + 1))]


async def numbers(
    conn: AsyncConnection, study_id: int, which: ColumnElement[bool], *, number: int, limit: int
) -> list[int]:
    """The numbers of the next trials after the one with this number, at most `limit`."""
    t = tables.trial
    query = select(t.c.number).where(t.c.study_id == study_id, t.c.number > number, which)
    return list(await conn.scalars(query.order_by(t.c.number).limit(limit)))


async def after(conn: AsyncConnection, wanted: Wanted, *, number: int, limit: int) -> list[Curves | Unread]:
    """The curves of the next trials after the one with this number, at most `limit`."""
    t = tables.trial
    query = (
        select(t.c.number, t.c.state, t.c.reason, t.c.score, t.c.params)
        .where(t.c.study_id == wanted.study_id, t.c.number > number, wanted.which)
        .order_by(t.c.number)
        .limit(limit)
    )
    found = (await conn.execute(query)).all()
    points = await _points(conn, wanted, [row.number for row in found])
    return [_curves(row, points.get(row.number, {})) for row in found]


def _curves(row: Any, points: dict[str, Any]) -> Curves | Unread:
    try:
        return Curves(
            number=row.number,
            state=State(row.state),
            reason=Reason(row.reason) if row.reason else None,
            score=row.score,
            params=dict(row.params),
            **points,
        )
    except (TypeError, ValueError) as error:
        return Unread(number=row.number, reason=reason_of(error))


async def _points(conn: AsyncConnection, wanted: Wanted, numbers: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Each trial's columns."""
    r = tables.report
    last = (
        select(r.c.number, r.c.step, r.c.time, r.c.metrics)
        .where(r.c.study_id == wanted.study_id, r.c.number.in_(numbers))
        .ext(distinct_on(r.c.number, r.c.step))
        .order_by(r.c.number, r.c.step, r.c.attempt.desc(), r.c.sequence.desc())
        .subquery()
    )
    place = (func.row_number().over(partition_by=last.c.number, order_by=last.c.step) - 1).label("place")
    count = func.count().over(partition_by=last.c.number).label("count")
    placed = select(last, place, count).subquery()

    def column(of: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.array_agg(aggregate_order_by(of, placed.c.step))

    def metric(name: str) -> ColumnElement[float]:
        return func.coalesce(metric_in(placed.c.metrics, name), _NAN)

    query = (
        select(
            placed.c.number,
            column(placed.c.step).label("steps"),
            column(cast(func.extract("epoch", placed.c.time - wanted.since), Double)).label("times_s"),
            *(column(metric(name)) for name in wanted.metrics),
        )
        .where(_is_kept(placed.c.place, placed.c.count, wanted.most_points))
        .group_by(placed.c.number)
    )
    return {
        row.number: {"steps": row.steps, "times_s": row.times_s, "values": row[3:]}
        for row in await conn.execute(query)
    }


def _is_kept(place: ColumnElement[int], count: ColumnElement[int], most: int) -> ColumnElement[bool]:
    """Whether a point is among `most` evenly spaced ones, the first and the last included.

    The points fall into `most` - 1 intervals, the last point into one of its own; the first of each is kept.
    """

    def interval(of: ColumnElement[int]) -> ColumnElement[int]:
        return of * (most - 1) // (count - 1)

    return or_(count <= most, place == 0, interval(place) > interval(place - 1))


_NAN = literal(nan, Double)
