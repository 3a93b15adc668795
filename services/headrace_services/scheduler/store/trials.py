"""Trials as users see them: the row, where it runs, and its entries at the rungs."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, Select, and_, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.lifecycle import State
from headrace_services.scheduler.records import Exploit, Lease, RungEntry, Trial
from headrace_services.scheduler.store import exploits, rows, tables
from headrace_services.scheduler.store.pipeline import Pipeline, Reply, compiled, pipeline


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
    milli: int
    """Thousandths of each slot; 0 off the workers."""
    last_worker: str | None = None
    """The worker that runs it, or ran it last."""
    rungs: tuple[RungView, ...] = ()
    """Lowest first; empty where they were not asked for."""
    lineage: tuple[Exploit, ...] = ()
    """What it copied from others, in order; empty where the rungs are."""


async def one(conn: AsyncConnection, study_id: int, number: int) -> TrialView | None:
    """A trial with its rungs."""
    async with pipeline(conn) as sent:
        asked = ask_views(sent, study_id, [number])
    return asked.views().get(number)


class AskedHistories(Struct, frozen=True, kw_only=True):
    """The rungs and the lineage of trials on their way."""

    numbers: Collection[int]
    rungs: Reply
    copied: Reply

    def complete(self, views: Iterable[TrialView]) -> dict[int, TrialView]:
        """The views with their rungs and lineage, by number."""
        entries: dict[int, list[RungView]] = {}
        for row in self.rungs.rows:
            entries.setdefault(row.number, []).append(RungView(entry=rows.rung_entry(row), time=row.time))
        lineage: dict[int, list[Exploit]] = {}
        for row in self.copied.rows:
            lineage.setdefault(row.number, []).append(exploits.exploit(row))
        numbered = ((view.trial.number, view) for view in views)
        return {
            number: replace(
                view, rungs=tuple(entries.get(number, ())), lineage=tuple(lineage.get(number, ()))
            )
            for number, view in numbered
        }


def ask_histories(sent: Pipeline, study_id: int, numbers: Collection[int]) -> AskedHistories:
    """Ask for the rungs and the lineage of trials."""
    which: dict[str, object] = {"study": study_id, "numbers": sorted(numbers)}
    return AskedHistories(
        numbers=frozenset(numbers),
        rungs=sent.run(_RUNGS_OF_NAMED, **which),
        copied=sent.run(exploits.OF_NAMED, **which),
    )


class AskedViews(Struct, frozen=True, kw_only=True):
    """Trials on their way, with their rungs and lineage."""

    trials: Reply
    histories: AskedHistories

    def views(self) -> dict[int, TrialView]:
        """Those of the named trials that exist, by number."""
        return self.histories.complete(map(_view, self.trials.rows))


def ask_views(sent: Pipeline, study_id: int, numbers: Collection[int]) -> AskedViews:
    """Ask for trials with their rungs."""
    trials = sent.run(_NAMED, study=study_id, numbers=sorted(numbers))
    return AskedViews(trials=trials, histories=ask_histories(sent, study_id, numbers))


@dataclass(frozen=True, slots=True)
class Key:
    """A trial in a list."""

    number: int
    size: int
    """Of its metrics, as they are stored."""


async def page(
    conn: AsyncConnection, study_id: int, *, after: int, limit: int, states: Sequence[State] = ()
) -> list[Key]:
    """Trials with a greater number than `after`, in order; with `states`, only those in one."""
    t = tables.trial
    which = and_(t.c.study_id == study_id, t.c.number > after)
    if states:
        which = and_(which, t.c.state.in_([state.value for state in states]))
    query = select(t.c.number, func.pg_column_size(t.c.metrics).label("size")).where(which)
    found = await conn.execute(query.order_by(t.c.number).limit(limit))
    return [Key(number=row.number, size=row.size) for row in found]


async def of_page(conn: AsyncConnection, study_id: int, keys: Sequence[Key]) -> list[TrialView]:
    """Trials with their rungs, in the order of the keys."""
    t = tables.trial
    which = and_(t.c.study_id == study_id, t.c.number.in_([key.number for key in keys]))
    return await with_rungs(conn, study_id, await views(conn, which))


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
        select(
            t, le.c.slots.label("lease_slots"), le.c.milli.label("lease_milli"), w.c.name.label("worker_name")
        )
        .join_from(t, le, last_lease(t, le), isouter=True)
        .join(w, le.c.worker_id == w.c.id, isouter=True)
    )


def last_lease(trial: Any, lease: Any) -> ColumnElement[bool]:
    """Joins a trial to its last lease, live or not."""
    return and_(
        lease.c.study_id == trial.c.study_id,
        lease.c.number == trial.c.number,
        lease.c.epoch == trial.c.epoch,
    )


async def find_lease(conn: AsyncConnection, lease_id: str) -> Lease | None:
    """A lease, live or not."""
    row = (await conn.execute(select(tables.lease).where(tables.lease.c.id == lease_id))).one_or_none()
    return rows.lease(row) if row else None


async def with_rungs(conn: AsyncConnection, study_id: int, found: list[TrialView]) -> list[TrialView]:
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
    trial = rows.trial(row)
    if trial.lease_id is None:
        return TrialView(trial=trial, worker=None, slots=(), milli=0, last_worker=row.worker_name)
    slots = tuple(row.lease_slots)
    milli = row.lease_milli if slots else 0
    return TrialView(
        trial=trial, worker=row.worker_name, slots=slots, milli=milli, last_worker=row.worker_name
    )


_NAMED = compiled(_views().where(exploits.named(tables.trial)).order_by(tables.trial.c.number))
_RUNGS_OF_NAMED = compiled(
    select(tables.rung_result).where(exploits.named(tables.rung_result)).order_by(tables.rung_result.c.rung)
)
