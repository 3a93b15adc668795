"""What happened, as users read it: events and reports, after a place and in order."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.records import Event
from headrace_services.scheduler.store import tables


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event with its place in the log."""

    cursor: int
    time: datetime
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReport:
    """What a trial reported."""

    number: int
    epoch: int
    sequence: int
    step: int
    metrics: dict[str, float]
    time: datetime

    @property
    def key(self) -> tuple[int, int, int]:
        """Its place in the order of reports."""
        return self.number, self.epoch, self.sequence


async def events_after(conn: AsyncConnection, study_id: int, cursor: int, limit: int) -> list[StoredEvent]:
    """The next events of a study, in order. The cursor is given out under the study's lock: no gap ever fills."""
    e = tables.event
    query = select(e).where(e.c.study_id == study_id, e.c.cursor > cursor).order_by(e.c.cursor).limit(limit)
    return [_event(row) for row in await conn.execute(query)]


async def events_of_trial(conn: AsyncConnection, study_id: int, number: int) -> list[StoredEvent]:
    """Everything that happened to a trial, in order."""
    e = tables.event
    query = select(e).where(e.c.study_id == study_id, e.c.number == number).order_by(e.c.cursor)
    return [_event(row) for row in await conn.execute(query)]


async def reports_after(
    conn: AsyncConnection, study_id: int, *, number: int | None, after: Sequence[int] | None, limit: int
) -> list[StoredReport]:
    """Reports by trial, attempt and sequence, after the one of the key `after`; of one trial where it is named."""
    r = tables.report
    key = (r.c.number, r.c.epoch, r.c.sequence)
    query = select(r).where(r.c.study_id == study_id).order_by(*key).limit(limit)
    if number is not None:
        query = query.where(r.c.number == number)
    if after is not None:
        query = query.where(tuple_(*key) > tuple_(*after))
    return [
        StoredReport(
            number=row.number,
            epoch=row.epoch,
            sequence=row.sequence,
            step=row.step,
            metrics=row.metrics,
            time=row.time,
        )
        for row in await conn.execute(query)
    ]


def _event(row: Row[Any]) -> StoredEvent:
    event = Event(number=row.number, kind=row.kind, message=row.message, detail=row.detail)
    return StoredEvent(cursor=row.cursor, time=row.time, event=event)
