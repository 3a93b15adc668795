"""Trials as users see them: the row, where it runs, and its entries at the rungs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace
from sqlalchemy import ColumnElement, Select, and_, case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.core.lifecycle import State
from headrace_services.scheduler.core.records import BundleView, RungView, TrialView
from headrace_services.scheduler.store import bundles, exploits, rows, tables
from headrace_services.scheduler.store.columns import columns_of_metrics
from headrace_services.scheduler.store.query.orders import Order


async def one(conn: AsyncConnection, study_id: int, number: int) -> TrialView | None:
    """A trial with its rungs."""
    t = tables.trial
    found = await views(conn, and_(t.c.study_id == study_id, t.c.number == number))
    return (await with_rungs(conn, study_id, found))[0] if found else None


@dataclass(frozen=True, slots=True)
class Key:
    """A trial in a list."""

    number: int
    size: int
    """The size of its metrics, as stored."""
    place: tuple[int | str, ...]
    """Its place in the order of the list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which trials a list has, and in which order; by number if it names none."""

    states: Sequence[State] = ()
    """Empty means all."""
    which: ColumnElement[bool] | None = None
    order: Order | None = None

    @property
    def shape(self) -> tuple[type[int] | type[str], ...]:
        """The types of a trial's place in the order."""
        return (int, str, int) if self.order else (int,)

    def query(self, study_id: int, after: tuple[Any, ...] | None, limit: int) -> Select[Any]:
        """What `page` reads: the trials after a place. Raises ValueError for a place that the order cannot have."""
        t = tables.trial
        sizes = [func.pg_column_size(t.c[name]) for name in columns_of_metrics(t)]
        found = select(t.c.number, sum(sizes[1:], sizes[0]).label("size")).where(t.c.study_id == study_id)
        if self.states:
            found = found.where(t.c.state.in_([state.value for state in self.states]))
        if self.which is not None:
            found = found.where(self.which)
        if self.order:
            return self.order.sort(found, after and (after[0], after[1], after[2])).limit(limit)
        return found.where(t.c.number > (after[0] if after else -1)).order_by(t.c.number).limit(limit)


async def page(conn: AsyncConnection, query: Select[Any]) -> list[Key]:
    """The trials that a selection's query finds, in order."""
    found = (await conn.execute(query)).mappings()
    return [
        Key(
            row["number"],
            row["size"],
            (row["rank"], row["sorted_by"], row["number"]) if "rank" in row else (row["number"],),
        )
        for row in found
    ]


async def of_page(conn: AsyncConnection, study_id: int, keys: Sequence[Key]) -> list[TrialView]:
    """Trials with their rungs, in the order of the keys."""
    t = tables.trial
    which = and_(t.c.study_id == study_id, t.c.number.in_([key.number for key in keys]))
    found = await with_rungs(conn, study_id, await views(conn, which))
    by_number = {view.trial.number: view for view in found}
    return [by_number[key.number] for key in keys if key.number in by_number]


async def views(
    conn: AsyncConnection, which: ColumnElement[bool], *, limit: int | None = None
) -> list[TrialView]:
    """Trials without their rungs, by study and number."""
    t = tables.trial
    query = _views().where(which).order_by(t.c.study_id, t.c.number).limit(limit)
    return [_view(row) for row in await conn.execute(query)]


def _views() -> Select[Any]:
    t, le, w = tables.trial, tables.lease, tables.worker
    g, p = tables.slot_grant, tables.grant_part
    return (
        select(
            t,
            p.c.slots.label("lease_slots"),
            g.c.milli.label("lease_milli"),
            w.c.name.label("worker_name"),
            case((and_(le.c.live, g.c.seats > 1), g.c.id)).label("bundle"),
            g.c.seats.label("bundle_seats"),
            bundles.members.label("bundle_members"),
        )
        .join_from(t, le, last_lease(t, le), isouter=True)
        .join(w, le.c.worker_id == w.c.id, isouter=True)
        .join(g, g.c.id == le.c.grant_id, isouter=True)
        .join(p, and_(p.c.grant_id == g.c.id, p.c.worker_id == le.c.worker_id), isouter=True)
    )


def last_lease(trial: Any, lease: Any) -> ColumnElement[bool]:
    """The join of a trial with its last lease, live or not."""
    return and_(
        lease.c.study_id == trial.c.study_id,
        lease.c.number == trial.c.number,
        lease.c.attempt == trial.c.attempt,
    )


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
    where = {"last_worker": row.worker_name, "tags": tuple(row.tags), "note": row.note}
    if trial.lease_id is None:
        return TrialView(trial=trial, worker=None, slots=(), milli=0, **where)
    slots = tuple(row.lease_slots or ())
    milli = row.lease_milli if slots else 0
    return TrialView(
        trial=trial, worker=row.worker_name, slots=slots, milli=milli, bundle=_bundle(row), **where
    )


def _bundle(row: Any) -> BundleView | None:
    if row.bundle is None:
        return None
    return BundleView(id=row.bundle, members=row.bundle_members, seats=row.bundle_seats)
