"""The history that users read: events and reports, after a given place and in order."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, and_, case, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.core.records import Checkpoint, Event
from headrace_services.scheduler.store import rows, tables


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event with its place in the log."""

    cursor: int
    time: datetime
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReport:
    """A report of a trial."""

    number: int
    attempt: int
    sequence: int
    step: int
    metrics: dict[str, float]
    time: datetime
    checkpoint: Checkpoint | None


MOST_DETAIL_BYTES = 64 * 1024
"""The size of an event's detail, as stored. A larger one is left out, and only its sentence is shown."""
_MOST_EVENTS = 10_000
_EVENT_BYTES = 100
"""The size of an event besides its message and its detail."""


def _events() -> Select[Any]:
    e = tables.event
    small = func.pg_column_size(e.c.detail) <= MOST_DETAIL_BYTES
    return select(
        e.c.cursor, e.c.time, e.c.number, e.c.kind, e.c.message, case((small, e.c.detail)).label("detail")
    )


async def events_after(conn: AsyncConnection, study_id: int, cursor: int, limit: int) -> list[StoredEvent]:
    """The next events of a study, in order. Cursors are assigned under the study's lock: no gap is ever filled
    later."""
    e = tables.event
    query = _events().where(e.c.study_id == study_id, e.c.cursor > cursor).order_by(e.c.cursor).limit(limit)
    return [_event(row) for row in await conn.execute(query)]


async def events_of_trial(
    conn: AsyncConnection, study_id: int, number: int, most_bytes: int
) -> tuple[list[StoredEvent], bool]:
    """The events of a trial, in order, as far as they fit, and whether older entries are left out.

    Reports are left out first, as they are listed elsewhere; of these, and of the others, the newest are kept.
    """
    e = tables.event
    of_trial = and_(e.c.study_id == study_id, e.c.number == number)
    size = (func.octet_length(e.c.message) + func.pg_column_size(e.c.detail)).label("size")
    cursors: list[int] = []
    left, whole = most_bytes, True
    for which in (e.c.kind != "report_recorded", e.c.kind == "report_recorded"):
        query = (
            select(e.c.cursor, size).where(of_trial, which).order_by(e.c.cursor.desc()).limit(_MOST_EVENTS)
        )
        for place, row in enumerate(await conn.execute(query), start=1):
            left -= row.size + _EVENT_BYTES
            if left < 0 or place == _MOST_EVENTS:
                whole = False
                break
            cursors.append(row.cursor)
    found = _events().where(e.c.study_id == study_id, e.c.cursor.in_(cursors)).order_by(e.c.cursor)
    return [_event(row) for row in await conn.execute(found)], whole


@dataclass(frozen=True, slots=True)
class ReportKey:
    """A report in a list."""

    number: int
    attempt: int
    sequence: int
    size: int
    """The size of its metrics, as stored."""

    @property
    def place(self) -> tuple[int, int, int]:
        """Its place in the order of reports."""
        return self.number, self.attempt, self.sequence


async def reports_after(
    conn: AsyncConnection, study_id: int, *, number: int | None, after: Sequence[int] | None, limit: int
) -> list[ReportKey]:
    """Reports by trial, attempt and sequence, after the one with the key `after`; only of one trial if it is
    given."""
    r = tables.report
    key = (r.c.number, r.c.attempt, r.c.sequence)
    size = func.pg_column_size(r.c.metrics).label("size")
    query = select(*key, size).where(r.c.study_id == study_id).order_by(*key).limit(limit)
    if number is not None:
        query = query.where(r.c.number == number)
    if after is not None:
        query = query.where(tuple_(*key) > tuple_(*after))
    found = await conn.execute(query)
    return [ReportKey(row.number, row.attempt, row.sequence, row.size) for row in found]


async def reports(conn: AsyncConnection, study_id: int, keys: Sequence[ReportKey]) -> list[StoredReport]:
    """Reports, in the order of their keys."""
    r = tables.report
    key = tuple_(r.c.number, r.c.attempt, r.c.sequence)
    query = select(r).where(r.c.study_id == study_id, key.in_([key.place for key in keys]))
    return [
        StoredReport(
            number=row.number,
            attempt=row.attempt,
            sequence=row.sequence,
            step=row.step,
            metrics=row.metrics,
            time=row.time,
            checkpoint=rows.checkpoint(row.checkpoint),
        )
        for row in await conn.execute(query.order_by(r.c.number, r.c.attempt, r.c.sequence))
    ]


def _event(row: Row[Any]) -> StoredEvent:
    kind = row.kind if row.detail is not None else ""
    event = Event(number=row.number, kind=kind, message=row.message, detail=row.detail or {})
    return StoredEvent(cursor=row.cursor, time=row.time, event=event)
