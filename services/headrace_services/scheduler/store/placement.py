"""What a step reads and writes of the cluster beyond its own study.

No step takes another study's lock. It reads the others' standing as of their last commit, takes slots with SKIP
LOCKED, and leaves messages in `leave` for those whose trials are to go. So what it reads may be a moment old: shares
are right over time, not at every instant (decision 0022), while what a device can hold is guarded by its row.
"""

import json
import logging
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any

from msgspec import Struct
from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Select,
    Table,
    Text,
    and_,
    any_,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.spec import Resources
from headrace.spec.resources import WHOLE
from headrace_services.scheduler.lifecycle import State
from headrace_services.scheduler.records import Lease, Slot, Standing
from headrace_services.scheduler.step.placement import Request, Running
from headrace_services.scheduler.step.placement.shares import Share, Totals
from headrace_services.scheduler.step.placement.speeds import grant_kind, step_s
from headrace_services.scheduler.store import rows, tables
from headrace_services.scheduler.store.pipeline import Pipeline, Reply, Statement, compiled, pipeline

log = logging.getLogger(__name__)

now = func.clock_timestamp()
MOST_DEVICES = 4096
"""How many devices a search for slots to keep looks at."""


def slots_query(held_by: Table | None = None) -> Select[tuple[object, ...]]:
    """Slots and their workers, with what is left of each; or, joined to `held_by`, with what the lease has of it."""
    s, w = tables.slot, tables.worker
    free: Any = case((s.c.lease_id.is_(None), 1000 - s.c.shared_milli), else_=0)
    used: Any = s.c.shared_memory_bytes
    further: tuple[Any, ...] = ()
    if held_by is not None:
        free = held_by.c.milli
        used = case((held_by.c.milli < 1000, s.c.memory_bytes - held_by.c.memory_bytes), else_=0)
        further = (held_by.c.id.label("held_by"),)
    return select(
        s.c.worker_id,
        s.c.index.label("slot_index"),
        s.c.kind,
        s.c.memory_bytes,
        s.c.model,
        s.c.cores,
        used.label("used_memory_bytes"),
        free.label("free_milli"),
        w.c.labels,
        w.c.name.label("worker_name"),
        w.c.incarnation,
        w.c.log_dir,
        and_(s.c.present, w.c.connected, w.c.expires_at > now).label("placeable"),
        *further,
    ).join_from(s, w, s.c.worker_id == w.c.id)


async def free_slots(conn: AsyncConnection, request: Request, limit: int) -> list[Slot]:
    """Slots with room for a request, as `ask_free_slots` says."""
    async with pipeline(conn) as sent:
        asked = ask_free_slots(sent, request, limit)
    return asked.slots()


class AskedSlots(Struct, frozen=True):
    """Slots on their way."""

    found: Reply

    def slots(self) -> list[Slot]:
        """The slots, in order."""
        return [rows.slot(row) for row in self.found.rows]


def ask_free_slots(sent: Pipeline, request: Request, limit: int) -> AskedSlots:
    """Ask for slots with room for a request, CPU slots first; locked for the transaction, skipping what others take.

    Unsuitable slots would use the limit up: a study that needs GPUs must not be blind behind many free CPUs, nor a
    gang behind workers that have too few. A gang of more slots than the limit gets as many as it needs.
    """
    given: dict[str, object] = {"milli": WHOLE - request.milli, "most": max(limit, request.slots)}
    if request.labels:
        given["labels"] = json.dumps(dict(request.labels))
    if request.gpu:
        given["memory"] = request.memory_bytes
    if request.types:
        given["types"] = [f"%{_escaped(kind)}%" for kind in request.types]
    if request.slots > 1:
        given["slots"] = request.slots
    return AskedSlots(sent.run(_free(frozenset(given)), **given))


@cache
def _free(named: frozenset[str]) -> Statement:
    """Free slots by what a request names of them."""
    s, w = tables.slot, tables.worker
    free: list[ColumnElement[bool]] = [
        s.c.lease_id.is_(None),
        s.c.shared_milli <= bindparam("milli", type_=BigInteger),
        s.c.present,
        w.c.connected,
        w.c.expires_at > now,
    ]
    if "labels" in named:
        free.append(w.c.labels.contains(bindparam("labels", type_=JSONB)))
    if "memory" in named:
        room = s.c.memory_bytes - s.c.shared_memory_bytes
        free += [s.c.kind == literal_column("'GPU'"), room >= bindparam("memory", type_=BigInteger)]
    if "types" in named:
        free.append(s.c.model.ilike(any_(bindparam("types", type_=ARRAY(Text)))))
    query = (
        slots_query()
        .where(*free)
        .order_by(s.c.kind, s.c.worker_id, s.c.index)
        .limit(bindparam("most", type_=BigInteger))
        .with_for_update(of=s, skip_locked=True)
    )
    if "slots" in named:
        enough = select(s.c.worker_id).join_from(s, w, s.c.worker_id == w.c.id).where(*free)
        enough = enough.group_by(s.c.worker_id)
        enough = enough.having(func.count() >= bindparam("slots", type_=BigInteger))
        query = query.where(s.c.worker_id.in_(enough))
    return compiled(query)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


async def devices(conn: AsyncConnection, request: Request) -> tuple[Slot, ...]:
    """Every device that could serve a request, whoever is on it; not locked."""
    s, w = tables.slot, tables.worker
    there = [s.c.present, w.c.connected, w.c.expires_at > now]
    if request.labels:
        there.append(w.c.labels.contains(dict(request.labels)))
    if request.gpu:
        there.append(s.c.kind == "GPU")
    query = slots_query().where(*there).order_by(s.c.worker_id, s.c.index).limit(MOST_DEVICES)
    return tuple(rows.slot(row) for row in await conn.execute(query))


async def runnable_exists(conn: AsyncConnection, study_id: int) -> bool:
    """Whether a study has a trial that should be on a worker and is not."""
    t = tables.trial
    waiting = exists().where(
        t.c.study_id == study_id,
        t.c.state.in_([State.PENDING.value, State.PAUSED.value]),
        t.c.milestone.is_not(None),
        ~t.c.held,
    )
    return bool((await conn.execute(select(waiting))).scalar_one())


async def running_on(conn: AsyncConnection, worker_ids: Iterable[int]) -> tuple[Running, ...]:
    """The trials on these workers, of all studies, each with the time to its next rung where speed was measured."""
    le, t, st, lv = tables.lease, tables.trial, tables.study, tables.leave
    query = (
        select(
            *(
                le.c.id,
                le.c.study_id,
                le.c.number,
                le.c.worker_id,
                le.c.slots,
                le.c.milli,
                le.c.model,
                le.c.step,
            ),
            *(t.c.milestone, t.c.speeds, st.c.name, st.c.priority, st.c.standing),
            lv.c.lease_id.is_not(None).label("asked"),
        )
        .join_from(le, t, and_(t.c.study_id == le.c.study_id, t.c.number == le.c.number))
        .join(st, st.c.id == le.c.study_id)
        .join(lv, lv.c.lease_id == le.c.id, isouter=True)
        .where(le.c.live, le.c.worker_id.in_(sorted(set(worker_ids))))
    )
    found = []
    for row in await conn.execute(query):
        left = None
        standing = readable_standing(row)
        if standing is not None and (per_step := _per_step_s(row, standing)) and row.milestone is not None:
            left = (row.milestone - row.step) * per_step
        running = Running(
            key=(row.study_id, row.number),
            lease_id=row.id,
            worker_id=row.worker_id,
            slots=tuple(row.slots),
            milli=row.milli,
            priority=row.priority,
            leaves_in_s=left,
            asked=row.asked,
        )
        found.append(running)
    return tuple(found)


def _per_step_s(row: Any, standing: Standing) -> float | None:
    try:
        speeds = rows.speeds(row.speeds)
    except Exception:  # noqa: BLE001  (whatever the column holds: its own study's steps find it out)
        return None
    return step_s(grant_kind(row.model, len(row.slots), row.milli), standing.speeds, speeds)


class Others(Struct, frozen=True, kw_only=True):
    """Active studies."""

    shares: tuple[Share, ...] = ()
    names: dict[int, str]
    unreadable: tuple[str, ...] = ()
    """The names of those of whose row any part cannot be read: they are left out, and their own steps find it out."""


class AskedOthers(Struct, frozen=True):
    """Active studies on their way."""

    found: Reply

    def others(self) -> Others:
        """The standing of each that can be read."""
        shares, unreadable = [], []
        for row in self.found.rows:
            try:
                shares.append(_share(row))
            except Exception:  # noqa: BLE001  (whatever its columns hold)
                log.warning("the standing or the resources of study '%s' cannot be read", row.name)
                unreadable.append(row.name)
        names = {row.id: row.name for row in self.found.rows}
        return Others(shares=tuple(shares), names=names, unreadable=tuple(unreadable))


def _share(row: Any) -> Share:
    standing = rows.standing(row.standing)
    return Share(
        study_id=row.id,
        weight=row.weight,
        priority=row.priority,
        usage=standing.usage,
        wants=_request(row.resources, standing.wants_slots) if standing.wants_slots else None,
        wanted=standing.wants_count,
        reserved=standing.reserved,
        quantum_s=standing.quantum_s,
        looked_s=standing.looked_s,
    )


def readable_standing(row: Any) -> Standing | None:
    """The standing in a row with the columns `name` and `standing`; None where it is none, which is logged."""
    try:
        return rows.standing(row.standing)
    except Exception:  # noqa: BLE001  (whatever its columns hold)
        log.warning("the standing of study '%s' cannot be read", row.name)
        return None


def ask_others(sent: Pipeline, study_id: int) -> AskedOthers:
    """Ask for the standing of every other active study that runs on workers; one that is asked takes no slots."""
    return AskedOthers(sent.run(_OTHERS, study=study_id))


def ask_active(sent: Pipeline) -> AskedOthers:
    """Ask for the standing of every active study."""
    return AskedOthers(sent.run(_ACTIVE))


@lru_cache(maxsize=1024)
def _request(resources: str, slots: int) -> Request:
    return Request.of(Resources.model_validate_json(resources), slots)


async def totals(conn: AsyncConnection) -> Totals:
    """What the workers that are there have."""
    async with pipeline(conn) as sent:
        asked = ask_totals(sent)
    return asked.totals()


class AskedTotals(Struct, frozen=True):
    """A count of the cluster's slots on its way."""

    found: Reply

    def totals(self) -> Totals:
        """What the workers that are there have."""
        counts = {row.kind: int(row.slots) for row in self.found.rows}
        return Totals(gpu_milli=counts.get("GPU", 0) * 1000, cpu_slots=counts.get("CPU", 0))


def ask_totals(sent: Pipeline) -> AskedTotals:
    """Ask for the slots of the workers that are there."""
    return AskedTotals(sent.run(_TOTALS))


async def ask_to_leave(
    conn: AsyncConnection, for_study_id: int, asks: dict[str, bool], why: str
) -> list[Lease]:
    """Ask the holders of live leases to go, at their next rung or (True) report. Returns those to be told at once."""
    if not asks:
        return []
    le, lv = tables.lease, tables.leave
    query = select(le).where(le.c.id.in_(sorted(asks)), le.c.live)
    leases = [rows.lease(row) for row in await conn.execute(query)]
    if not leases:
        return []
    asking = insert(lv).values(
        [
            {
                "lease_id": lease.id,
                "study_id": lease.study_id,
                "for_study_id": for_study_id,
                "at_report": asks[lease.id],
                "why": why,
            }
            for lease in leases
        ]
    )
    sooner = {name: asking.excluded[name] for name in ("for_study_id", "at_report", "why")}
    await conn.execute(
        asking.on_conflict_do_update(
            index_elements=[lv.c.lease_id],
            set_=sooner,
            where=and_(~lv.c.at_report, asking.excluded.at_report),
        )
    )
    return [lease for lease in leases if asks[lease.id]]


async def forget_asked(conn: AsyncConnection, lease_ids: Sequence[str]) -> None:
    """Drop what was asked of leases that are over."""
    if lease_ids:
        await conn.execute(delete(tables.leave).where(tables.leave.c.lease_id.in_(sorted(lease_ids))))


async def withdraw_asks(conn: AsyncConnection, for_study_id: int) -> None:
    """Take back what a study asked of others' trials."""
    await conn.execute(delete(tables.leave).where(tables.leave.c.for_study_id == for_study_id))


_s, _w, _st = tables.slot, tables.worker, tables.study
_TOTALS = compiled(
    select(_s.c.kind, func.count().label("slots"))
    .join_from(_s, _w, _s.c.worker_id == _w.c.id)
    .where(_s.c.present, _w.c.connected, _w.c.expires_at > now)
    .group_by(_s.c.kind)
)
_active = (
    select(
        *(_st.c.id, _st.c.name, _st.c.weight, _st.c.priority, _st.c.standing),
        _st.c.spec["resources"].as_string().label("resources"),
    )
    .where(text("state = 'ACTIVE'"))  # as its index says it
    .order_by(_st.c.id)
)
_ACTIVE = compiled(_active)
_OTHERS = compiled(
    _active.where(
        _st.c.id != bindparam("study", type_=BigInteger), _st.c.spec["template"].as_string().is_not(None)
    )
)
