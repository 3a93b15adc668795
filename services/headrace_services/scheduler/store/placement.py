"""What a cycle reads and writes about the cluster beyond its own study.

No cycle takes another study's lock. It reads the others' status as of their last commit, takes slots with SKIP
LOCKED, and leaves messages in `leave` for trials that must leave. So what it reads may be slightly old: shares are
right over time, not at every instant (decision 0022), while the capacity of a device is guarded by its row.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any

from msgspec import Struct
from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Select,
    Text,
    all_,
    and_,
    any_,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import ClauseElement

from headrace.spec.resources import WHOLE
from headrace_services.scheduler.core.changes import Changes
from headrace_services.scheduler.core.lifecycle import State
from headrace_services.scheduler.core.placement import Request, Running, suits
from headrace_services.scheduler.core.placement.shares import Totals
from headrace_services.scheduler.core.placement.speeds import grant_kind, step_s
from headrace_services.scheduler.core.records import LeaseName, Slot
from headrace_services.scheduler.core.study_status import Standing
from headrace_services.scheduler.store import neighbours, rows, tables
from headrace_services.scheduler.store.pipeline import Pipeline, Reply, Statement, given, pipeline

log = logging.getLogger(__name__)

now = func.clock_timestamp()
MOST_DEVICES = 4096
"""How many devices a search for slots to reserve considers."""


def slots_query(*, granted: bool = False) -> Select[tuple[object, ...]]:
    """Slots and their workers, with the free part of each. With `granted`, for each grant, with the part that it
    holds."""
    s, w = tables.slot, tables.worker
    g, p = tables.slot_grant, tables.grant_part
    free: Any = case((s.c.grant_id.is_(None), 1000 - s.c.shared_milli), else_=0)
    used: Any = s.c.shared_memory_bytes
    if granted:
        free = g.c.milli
        used = case((g.c.milli < 1000, s.c.memory_bytes - g.c.memory_bytes), else_=0)
    query = select(
        s.c.worker_id,
        s.c.index.label("slot_index"),
        s.c.kind,
        s.c.memory_bytes,
        s.c.model,
        s.c.cores,
        s.c.unshared,
        s.c.links,
        s.c.owner,
        s.c.stage,
        s.c.duty,
        used.label("used_memory_bytes"),
        free.label("free_milli"),
        w.c.labels,
        w.c.name.label("worker_name"),
        w.c.incarnation,
        w.c.log_dir,
        and_(s.c.present, w.c.connected, w.c.expires_at > now).label("placeable"),
    ).join_from(s, w, s.c.worker_id == w.c.id)
    if granted:
        query = query.join(p, and_(p.c.worker_id == s.c.worker_id, s.c.index == func.any(p.c.slots)))
        query = query.join(g, g.c.id == p.c.grant_id)
    return query


async def free_slots(conn: AsyncConnection, request: Request, limit: int) -> tuple[Slot, ...]:
    """Slots with room for a request, in the order of `ask_free_slots`."""
    async with pipeline(conn) as sent:
        asked = ask_free_slots(sent, request, limit)
    return tuple(asked.slots())


async def any_free(conn: AsyncConnection, request: Request) -> bool:
    """Whether slots with room for a request are free; not locked."""
    given = _named(request, request.slots)
    async with pipeline(conn) as sent:
        there = sent.run(_count_free(frozenset(given)), **given)
    assert there.row is not None
    return int(there.row.slots) >= request.slots


class AskedSlots(Struct, frozen=True):
    """Slots that were requested."""

    found: Reply
    there: Reply
    limit: int

    def slots(self) -> list[Slot]:
        """The slots, in order."""
        return [rows.slot(row) for row in self.found.rows]

    @property
    def passed_over(self) -> bool:
        """Whether there are more, which other cycles have locked."""
        assert self.there.row is not None
        return len(self.found.rows) < min(self.limit, int(self.there.row.slots))


def ask_free_slots(sent: Pipeline, request: Request, limit: int) -> AskedSlots:
    """Ask for slots with room for a request, CPU slots first and ephemeral ones last. They are locked for the
    transaction, and those that other cycles have locked are skipped.

    Unsuitable slots would use up the limit: a study that needs GPUs must not miss them behind many free CPUs, nor
    a gang behind workers that have too few. A gang of more slots than the limit gets as many as it needs.
    """
    given = _named(request, limit)
    named = frozenset(given)
    return AskedSlots(sent.run(_free(named), **given), sent.run(_count_free(named), **given), limit)


def _named(request: Request, limit: int) -> dict[str, object]:
    """The properties of a slot that a request names, as the statements' parameters."""
    given: dict[str, object] = {"milli": WHOLE - request.milli, "most": max(limit, request.slots)}
    if request.labels:
        given["labels"] = json.dumps(dict(request.labels))
    if request.gpu:
        given["memory"] = request.memory_bytes
    if request.types:
        given["types"] = [f"%{_escaped(kind)}%" for kind in request.types]
    if request.avoided:
        given["avoided"] = list(request.avoided)
    if request.ephemeral_memory_bytes is not None:
        given["bubbles"] = request.ephemeral_memory_bytes
    if request.milli < WHOLE:
        given["share"] = request.milli
    if request.slots > 1:
        given["slots"] = request.slots
    return given


@cache
def _free(named: frozenset[str]) -> Statement:
    """Free slots by the properties that a request names, locked."""
    query = slots_query().where(*_suitable(named))
    s = tables.slot
    query = query.order_by(s.c.owner != "", s.c.kind, s.c.worker_id, s.c.index)
    query = query.limit(bindparam("most", type_=BigInteger))
    return Statement(lambda: query.with_for_update(of=tables.slot, skip_locked=True))


@cache
def _count_free(named: frozenset[str]) -> Statement:
    """How many such slots there are, even if locked by others; counted up to the limit."""
    s, w = tables.slot, tables.worker
    suitable = select(s.c.index).join_from(s, w, s.c.worker_id == w.c.id).where(*_suitable(named))
    suitable = suitable.limit(bindparam("most", type_=BigInteger))
    return Statement(lambda: select(func.count().label("slots")).select_from(suitable.subquery()))


def _suitable(named: frozenset[str]) -> list[ColumnElement[bool]]:
    """The conditions for a slot that is free for a request, by the properties that the request names."""
    s, w = tables.slot, tables.worker
    free: list[ColumnElement[bool]] = [
        s.c.grant_id.is_(None),
        s.c.shared_milli <= bindparam("milli", type_=BigInteger),
        s.c.present,
        w.c.connected,
        w.c.expires_at > now,
    ]
    if "labels" in named:
        free.append(w.c.labels.contains(bindparam("labels", type_=JSONB)))
    room: ColumnElement[bool] = s.c.owner == literal_column("''")
    if "memory" in named:
        free.append(s.c.kind == literal_column("'GPU'"))
        left = s.c.memory_bytes - s.c.shared_memory_bytes
        room = and_(room, left >= bindparam("memory", type_=BigInteger))
    if "bubbles" in named:
        kind: Any = literal_column("'GPU'" if "memory" in named else "'CPU'")
        least = s.c.memory_bytes >= bindparam("bubbles", type_=BigInteger)
        room = or_(room, and_(s.c.owner != literal_column("''"), s.c.kind == kind, least))
    free.append(room)
    if "types" in named:
        free.append(s.c.model.ilike(any_(bindparam("types", type_=ARRAY(Text)))))
    if "avoided" in named:
        free.append(w.c.incarnation != all_(bindparam("avoided", type_=ARRAY(Text))))
    if "share" in named:
        free.append(~s.c.unshared)
    if "slots" in named:
        free.append(s.c.model.not_like(literal_column("'% MIG %'")))
        enough = select(s.c.worker_id).join_from(s, w, s.c.worker_id == w.c.id).where(*free)
        enough = enough.group_by(s.c.worker_id)
        enough = enough.having(func.count() >= bindparam("slots", type_=BigInteger))
        free.append(s.c.worker_id.in_(enough))
    return free


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


async def devices(conn: AsyncConnection, request: Request) -> tuple[Slot, ...]:
    """Every device that could serve a request, occupied or not; not locked, and without ephemeral ones."""
    s, w = tables.slot, tables.worker
    there = [s.c.present, s.c.owner == "", w.c.connected, w.c.expires_at > now]
    if request.labels:
        there.append(w.c.labels.contains(dict(request.labels)))
    if request.gpu:
        there.append(s.c.kind == "GPU")
    query = slots_query().where(*there).order_by(s.c.worker_id, s.c.index).limit(MOST_DEVICES)
    return tuple(rows.slot(row) for row in await conn.execute(query))


async def able_workers(conn: AsyncConnection, request: Request) -> frozenset[str]:
    """The names of the connected workers that could serve a request if nobody else used them."""
    suitable = Counter(slot.worker_name for slot in await devices(conn, request) if suits(slot, request))
    return frozenset(name for name, slots in suitable.items() if slots >= request.slots)


async def runnable_exists(conn: AsyncConnection, study_id: int) -> bool:
    """Whether a study has a trial that should be on a worker but is not."""
    t = tables.trial
    waiting = exists().where(
        t.c.study_id == study_id,
        t.c.state.in_([State.PENDING.value, State.PAUSED.value]),
        t.c.milestone.is_not(None),
        ~t.c.user_paused,
    )
    return bool((await conn.execute(select(waiting))).scalar_one())


async def running_on(conn: AsyncConnection, worker_ids: Iterable[int]) -> tuple[Running, ...]:
    """The grants on these workers, of all studies, each with the time until the last of its trials is at its next
    rung, if its speed was measured."""
    le, t, st, lv = tables.lease, tables.trial, tables.study, tables.leave
    g, p = tables.slot_grant, tables.grant_part
    query = (
        select(
            *(
                le.c.id,
                le.c.study_id,
                le.c.number,
                le.c.attempt,
                le.c.grant_id,
                p.c.worker_id,
                p.c.slots,
                g.c.milli,
                g.c.model,
                le.c.step,
            ),
            *(t.c.milestone, t.c.speeds, st.c.name, st.c.project, st.c.priority, st.c.standing),
            lv.c.grant_id.is_not(None).label("asked"),
        )
        .join_from(le, t, and_(t.c.study_id == le.c.study_id, t.c.number == le.c.number))
        .join(g, g.c.id == le.c.grant_id)
        .join(p, p.c.grant_id == g.c.id)
        .join(st, st.c.id == le.c.study_id)
        .join(lv, lv.c.grant_id == le.c.grant_id, isouter=True)
        .where(le.c.live, g.c.bubbles == "", p.c.worker_id.in_(sorted(set(worker_ids))))
    )
    found: dict[tuple[str, int], Running] = {}
    for row in await conn.execute(query):
        left = None
        standing = neighbours.readable_standing(row)
        if standing is not None and (per_step := _per_step_s(row, standing)) and row.milestone is not None:
            left = (row.milestone - row.step) * per_step
        running = Running(
            key=(row.study_id, row.number),
            grant_id=row.grant_id,
            leases=(LeaseName(id=row.id, study_id=row.study_id, number=row.number, attempt=row.attempt),),
            worker_id=row.worker_id,
            slots=tuple(row.slots),
            milli=row.milli,
            priority=row.priority,
            leaves_in_s=left,
            asked=row.asked,
            project=row.project,
        )
        first = found.get((row.grant_id, row.worker_id))
        found[row.grant_id, row.worker_id] = running if first is None else first.beside(running)
    return tuple(found.values())


def _per_step_s(row: Any, standing: Standing) -> float | None:
    try:
        speeds = rows.speeds(row.speeds)
    except Exception:  # noqa: BLE001  (whatever the column holds: its own study's cycles find it out)
        return None
    return step_s(grant_kind(row.model, len(row.slots), row.milli), standing.speeds, speeds)


async def totals(conn: AsyncConnection) -> Totals:
    """The totals of the connected workers."""
    async with pipeline(conn) as sent:
        asked = ask_totals(sent)
    return asked.totals()


class AskedTotals(Struct, frozen=True):
    """A count of the cluster's slots that was requested."""

    found: Reply

    def totals(self) -> Totals:
        """The totals of the connected workers."""
        counts = {row.kind: int(row.slots) for row in self.found.rows}
        return Totals(gpu_milli=counts.get("GPU", 0) * 1000, cpu_slots=counts.get("CPU", 0))


def ask_totals(sent: Pipeline) -> AskedTotals:
    """Ask for the slots of the connected workers."""
    return AskedTotals(sent.run(_TOTALS))


def tell_others(sent: Pipeline, study_id: int, changes: Changes) -> None:
    """Write the messages of a study to others' trials, and delete earlier ones that are void."""
    if changes.forgotten_asks:
        sent.run(_FORGET_ASKS, grants=sorted(changes.forgotten_asks))
    if changes.withdraw_asks:
        sent.run(_WITHDRAW_ASKS, study=study_id)
    if changes.asks:
        asks = [
            {
                "grant_id": grant_id,
                "for_study_id": ask.for_study_id,
                "at_report": ask.at_report,
                "why": ask.why,
            }
            for grant_id, ask in sorted(changes.asks.items())
        ]
        sent.run(_ASK, asks)


def _asking() -> ClauseElement:
    """Ask the grants that are still live; a request for the next report replaces one for the next rung."""
    g, lv = tables.slot_grant, tables.leave
    new = given({name: lv.c[name] for name in ("grant_id", "for_study_id", "at_report", "why")})
    live = select(g.c.id, g.c.study_id, new.c.for_study_id, new.c.at_report, new.c.why)
    live = live.join_from(new, g, g.c.id == new.c.grant_id).where(g.c.live)
    names = ("grant_id", "study_id", "for_study_id", "at_report", "why")
    asking = insert(lv).from_select(names, live, include_defaults=False)
    return asking.on_conflict_do_update(
        index_elements=[lv.c.grant_id],
        set_={name: asking.excluded[name] for name in ("for_study_id", "at_report", "why")},
        where=and_(~lv.c.at_report, asking.excluded.at_report),
    )


_ASK = Statement(_asking)
_FORGET_ASKS = Statement(
    lambda: delete(tables.leave).where(
        tables.leave.c.grant_id == any_(bindparam("grants", type_=ARRAY(Text)))
    )
)
_WITHDRAW_ASKS = Statement(
    lambda: delete(tables.leave).where(tables.leave.c.for_study_id == bindparam("study", type_=BigInteger))
)
_s, _w, _st = tables.slot, tables.worker, tables.study
_TOTALS = Statement(
    lambda: (
        select(_s.c.kind, func.count().label("slots"))
        .join_from(_s, _w, _s.c.worker_id == _w.c.id)
        .where(_s.c.present, _s.c.owner == "", _w.c.connected, _w.c.expires_at > now)
        .group_by(_s.c.kind)
    )
)
