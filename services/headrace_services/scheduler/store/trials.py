"""Trials as users see them: the row, where it runs, and its entries at the rungs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.lifecycle import State
from headrace_services.scheduler.records import Exploit, Lease, RungEntry, Trial
from headrace_services.scheduler.store import exploits, rows, tables


@dataclass(frozen=True, slots=True, kw_only=True)
class RungView:
    """An entry at a rung, with the time of its recording."""

    entry: RungEntry
    time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialView:
    """A trial with what other tables say of it."""

    trial: Trial
    worker: str | None
    """The worker that runs it now; None off the workers and in a user's own loop."""
    slots: tuple[int, ...]
    rungs: tuple[RungView, ...] = ()
    """Lowest first; empty where they were not asked for."""
    lineage: tuple[Exploit, ...] = ()
    """What it copied from others, in order; empty where the rungs are."""


async def one(conn: AsyncConnection, study_id: int, number: int) -> TrialView | None:
    """A trial with its rungs."""
    found = await numbered(conn, study_id, [number])
    return found[0] if found else None


async def numbered(conn: AsyncConnection, study_id: int, numbers: Sequence[int]) -> list[TrialView]:
    """The named trials that exist, by number, with their rungs."""
    t = tables.trial
    return await _with_rungs(
        conn, study_id, await views(conn, and_(t.c.study_id == study_id, t.c.number.in_(numbers)))
    )


async def page(
    conn: AsyncConnection, study_id: int, *, after: int, limit: int, states: Sequence[State] = ()
) -> list[TrialView]:
    """Trials with a greater number than `after`, in order, with their rungs; with `states`, only those in one."""
    t = tables.trial
    which = and_(t.c.study_id == study_id, t.c.number > after)
    if states:
        which = and_(which, t.c.state.in_([state.value for state in states]))
    return await _with_rungs(conn, study_id, await views(conn, which, limit=limit))


async def views(
    conn: AsyncConnection, which: ColumnElement[bool], *, limit: int | None = None
) -> list[TrialView]:
    """Trials without their rungs, by study and number."""
    t, le, w = tables.trial, tables.lease, tables.worker
    query = (
        select(t, le.c.slots.label("lease_slots"), w.c.name.label("worker_name"))
        .join_from(t, le, t.c.lease_id == le.c.id, isouter=True)
        .join(w, le.c.worker_id == w.c.id, isouter=True)
        .where(which)
        .order_by(t.c.study_id, t.c.number)
        .limit(limit)
    )
    return [_view(row) for row in await conn.execute(query)]


async def find_lease(conn: AsyncConnection, lease_id: str) -> Lease | None:
    """A lease, live or not."""
    row = (await conn.execute(select(tables.lease).where(tables.lease.c.id == lease_id))).one_or_none()
    return rows.lease(row) if row else None


async def _with_rungs(conn: AsyncConnection, study_id: int, found: list[TrialView]) -> list[TrialView]:
    """The same with the rungs and the lineage, in one query each for all of them."""
    numbers = [view.trial.number for view in found if view.trial.rungs]
    if not numbers:
        return found
    r = tables.rung_result
    query = select(r).where(r.c.study_id == study_id, r.c.number.in_(numbers)).order_by(r.c.number, r.c.rung)
    entries: dict[int, list[RungView]] = {}
    for row in await conn.execute(query):
        entries.setdefault(row.number, []).append(RungView(entry=rows.rung_entry(row), time=row.time))
    copied = await exploits.of_trials(conn, study_id, numbers)
    return [
        replace(
            view,
            rungs=tuple(entries.get(view.trial.number, ())),
            lineage=tuple(copied.get(view.trial.number, ())),
        )
        for view in found
    ]


def _view(row: Any) -> TrialView:
    return TrialView(trial=rows.trial(row), worker=row.worker_name, slots=tuple(row.lease_slots or ()))
