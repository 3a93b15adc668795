"""How busy devices are: the measurements of workers, by slot and minute, for the last hour.

A minute's row replaces the one of an hour before, so nothing has to be deleted. Minutes are by the database's
clock.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Integer, case, cast, extract, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.pipeline import given

HOUR = timedelta(hours=1)
NEWEST = timedelta(minutes=2)
"""Loads older than this say nothing about the present."""

now = func.clock_timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a worker has measured on a device since the last time."""

    worker_id: int
    index: int
    samples: int
    utilization: float | None
    """The mean of the samples; None where the driver does not know it."""
    memory_used_bytes: int
    """The maximum of the samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteLoad:
    """How busy a device was during a minute."""

    minute: datetime
    utilization: float | None
    memory_used_bytes: int


async def add(conn: AsyncConnection, measured: Iterable[Measured]) -> None:
    """Store measurements, at most one for each slot. Those of workers that no longer exist are left out."""
    said = [asdict(one) for one in measured]
    if said:
        await conn.execute(_adding(), {"rows": said})


async def of_workers(
    conn: AsyncConnection, worker_ids: Iterable[int], *, history: bool
) -> dict[tuple[int, int], list[MinuteLoad]]:
    """The loads of workers' slots, by worker and index, oldest first: of the last hour, or only the newest."""
    t = tables.slot_load
    query = (
        select(t.c.worker_id, t.c.index.label("slot"), t.c.minute, t.c.utilization, t.c.memory_used_bytes)
        .where(t.c.worker_id.in_(worker_ids), t.c.minute > now - (HOUR if history else NEWEST))
        .order_by(t.c.worker_id, t.c.index, t.c.minute)
    )
    found: dict[tuple[int, int], list[MinuteLoad]] = {}
    for row in await conn.execute(query):
        load = MinuteLoad(
            minute=row.minute, utilization=row.utilization, memory_used_bytes=row.memory_used_bytes
        )
        slot = (row.worker_id, row.slot)
        if history:
            found.setdefault(slot, []).append(load)
        else:
            found[slot] = [load]
    return found


@cache
def _adding() -> Any:
    t, w = tables.slot_load, tables.worker
    said = given(
        {
            "worker_id": t.c.worker_id,
            "index": t.c.index,
            "samples": t.c.samples,
            "utilization": t.c.utilization,
            "memory_used_bytes": t.c.memory_used_bytes,
        }
    )
    at = func.now()  # the same throughout the statement
    minute = func.date_trunc("minute", at)
    place = cast(extract("minute", func.timezone("UTC", at)), Integer)
    measured = (said.c.samples, said.c.utilization, said.c.memory_used_bytes)
    rows = select(said.c.worker_id, said.c.index, place, minute, *measured)
    rows = rows.join_from(said, w, w.c.id == said.c.worker_id)
    names = ("worker_id", "index", "place", "minute", "samples", "utilization", "memory_used_bytes")
    query = insert(t).from_select(names, rows)
    new = query.excluded
    is_same = t.c.minute == new.minute
    samples = t.c.samples + new.samples
    mean = (t.c.utilization * t.c.samples + new.utilization * new.samples) / samples
    return query.on_conflict_do_update(
        index_elements=[t.c.worker_id, t.c.index, t.c.place],
        set_={
            "minute": new.minute,
            "samples": case((is_same, samples), else_=new.samples),
            "utilization": case(
                (is_same, func.coalesce(mean, new.utilization, t.c.utilization)), else_=new.utilization
            ),
            "memory_used_bytes": case(
                (is_same, func.greatest(t.c.memory_used_bytes, new.memory_used_bytes)),
                else_=new.memory_used_bytes,
            ),
        },
    )
