"""Trials as users see them: the row, where it runs, and its entries at the rungs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, Table, and_, bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.lifecycle import State
from headrace_services.scheduler.records import Exploit, Lease, RungEntry, Trial
from headrace_services.scheduler.store import exploits, rows, tables
from headrace_services.scheduler.store.pipeline import compiled, pipeline


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
    """A trial with its rungs. A user's own loop asks this at both ends of every trial: it is one wait."""
    which = {"study": study_id, "number": number}
    async with pipeline(conn) as sent:
        found = await sent.run(_ONE, **which)
        results = await sent.run(_RUNGS_OF_ONE, **which)
        copied = await sent.run(exploits.OF_ONE, **which)
    row = await found.fetchone()
    if row is None:
        return None
    rungs = tuple(RungView(entry=rows.rung_entry(r), time=r.time) for r in await results.fetchall())
    lineage = tuple(exploits.exploit(r) for r in await copied.fetchall()) if rungs else ()
    return replace(_view(row), rungs=rungs, lineage=lineage)


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
    t = tables.trial
    query = _views().where(which).order_by(t.c.study_id, t.c.number).limit(limit)
    return [_view(row) for row in await conn.execute(query)]


def _views() -> Select[Any]:
    t, le, w = tables.trial, tables.lease, tables.worker
    return (
        select(t, le.c.slots.label("lease_slots"), w.c.name.label("worker_name"))
        .join_from(t, le, t.c.lease_id == le.c.id, isouter=True)
        .join(w, le.c.worker_id == w.c.id, isouter=True)
    )


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


def _of_one(table: Table) -> Any:
    study, number = bindparam("study", type_=BigInteger), bindparam("number", type_=BigInteger)
    return and_(table.c.study_id == study, table.c.number == number)


_ONE = compiled(_views().where(_of_one(tables.trial)))
_RUNGS_OF_ONE = compiled(
    select(tables.rung_result).where(_of_one(tables.rung_result)).order_by(tables.rung_result.c.rung)
)
