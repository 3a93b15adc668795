"""The workers and their slots as users see them. Whether a worker is connected is judged by the database's clock."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import and_, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace import ephemeral
from headrace.spec.names import DEFAULT_PROJECT
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.core.placement.shares import Share, claim, virtual_time_s
from headrace_services.scheduler.core.study_status import Usage
from headrace_services.scheduler.store import failed_starts, loads, machines, neighbours, placement, tables
from headrace_services.scheduler.store.loads import MinuteLoad
from headrace_services.scheduler.store.neighbours import readable_standing
from headrace_services.scheduler.store.pipeline import pipeline
from headrace_services.scheduler.store.workers import EPHEMERAL, FORGOTTEN_AFTER

HEARD_OF = and_(tables.worker.c.connected, tables.worker.c.expires_at > func.clock_timestamp())
"""Whether a worker is connected."""
_TRIAL: Final = re.compile(r"studies/([^/\s:,]+)(?:/trials/\d+)?")
"""How a worker names a trial in its messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderView:
    """A trial on a slot."""

    study: str
    """Empty if it is another project's: then its number and the reason for leaving are not shown either."""
    number: int
    milli: int
    memory_bytes: int
    leaving: str
    bundle: str = ""
    """The bundle that it runs in; empty if it has a process of its own."""
    bundle_seats: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotView:
    """A slot, and the trials that hold it."""

    index: int
    model: str
    memory_bytes: int
    holders: list[HolderView] = field(default_factory=list)
    defect: str = ""
    uuid: str = ""
    loads: list[MinuteLoad] = field(default_factory=list)
    """Oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonView:
    """A device on which no trial starts."""

    index: int
    uuid: str
    reason: str
    quarantined: bool
    time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptView:
    """Slots of a worker that are reserved for a trial; times in seconds since 1970."""

    study: str
    """Empty if it is another project's."""
    number: int
    slots: int
    since_s: float
    ready_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareView:
    """The part of the cluster that an active study has."""

    study: str
    """Empty if it is another project's."""
    share: Share
    usage: Usage
    virtual_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker that is or was connected."""

    name: str
    connected: bool
    labels: dict[str, str]
    version: str
    last_seen: datetime
    trouble: str
    rejected: str
    reused: str
    mps: str
    slots: list[SlotView] = field(default_factory=list)
    cpus: int = 0
    kept: KeptView | None = None
    avoided_by: list[str] = field(default_factory=list)
    """The studies that place nothing on it any more."""
    certificate_until: datetime | None = None
    draining: str = ""
    """Why it is drained; empty if it is not."""
    drain_time: datetime | None = None
    """Since when, if a user drained it."""
    cordoned: str = ""
    """Why nothing new starts on it; empty if trials may start."""
    cordons: list[CordonView] = field(default_factory=list)
    suspended: str = ""
    """Why nothing starts on it for a while; empty while its attempts reach their programs."""
    next_try: datetime | None = None
    """When it is tried again; None if it is being tried."""


@dataclass(frozen=True, slots=True)
class Key:
    """A worker in a list."""

    name: str
    slots: int
    """How many it has or had."""


async def workers_after(conn: AsyncConnection, *, name: str, limit: int) -> list[Key]:
    """Workers after `name`, by name, without those of which only the name is left."""
    w, s = tables.worker, tables.slot
    slots = select(func.count()).where(s.c.worker_id == w.c.id).scalar_subquery().label("slots")
    recent = w.c.last_seen > func.clock_timestamp() - FORGOTTEN_AFTER
    here = or_(and_(recent, or_(~EPHEMERAL, w.c.connected)), exists().where(s.c.worker_id == w.c.id))
    query = select(w.c.name, slots).where(w.c.name > name, here).order_by(w.c.name).limit(limit)
    return [Key(name=row.name, slots=row.slots) for row in await conn.execute(query)]


async def workers(
    conn: AsyncConnection,
    keys: Sequence[Key],
    *,
    project: str = DEFAULT_PROJECT,
    history: bool = False,
) -> list[WorkerView]:
    """Workers with their slots, by name; with `history` the slots' loads of the last hour. Only a project's own
    studies are named."""
    names = [key.name for key in keys]
    w, s, le, st = tables.worker, tables.slot, tables.lease, tables.study
    query = select(w, HEARD_OF.label("heard_of")).where(w.c.name.in_(names)).order_by(w.c.name)
    kept, avoided_by = await _said_by_studies(conn, project)
    rows = (await conn.execute(query)).all()
    own = await _named_of_project(
        conn, project, [text for row in rows for text in (row.trouble, row.rejected)]
    )
    found = {
        row.id: WorkerView(
            name=row.name,
            connected=row.heard_of,
            labels=row.labels,
            version=row.version,
            last_seen=row.last_seen,
            trouble=_without_others(row.trouble, own),
            rejected=_without_others(row.rejected, own),
            reused=row.reused,
            mps=row.mps,
            cpus=row.cpus,
            kept=kept.get(row.id),
            avoided_by=avoided_by.get(row.incarnation, []),
            certificate_until=row.certificate_until,
            draining=machines.draining(row),
            drain_time=row.hold_time if row.hold == machines.DRAIN else None,
            cordoned=row.hold_why or "a user cordoned it" if row.hold == machines.CORDON else "",
            suspended=_suspended(row),
            next_try=row.suspended_until,
        )
        for row in rows
    }
    busy = await loads.of_workers(conn, found, history=history)
    lv, g, p = tables.leave, tables.slot_grant, tables.grant_part
    held = (
        select(
            le.c.id, le.c.grant_id, le.c.study_id, le.c.number, le.c.grant_time, g.c.milli, g.c.memory_bytes
        )
        .add_columns(g.c.seats, p.c.worker_id, p.c.slots)
        .join_from(p, g, g.c.id == p.c.grant_id)
        .join(le, and_(le.c.grant_id == g.c.id, le.c.live))
        .where(p.c.worker_id.in_(found))
        .subquery("held")
    )
    slots = (
        select(
            s,
            s.c.index.label("place"),
            held.c.number,
            held.c.milli,
            st.c.name.label("study_name"),
            st.c.project,
        )
        .add_columns(
            held.c.memory_bytes.label("budget"), held.c.grant_id.label("held_by"), held.c.seats, lv.c.why
        )
        .join_from(
            s,
            held,
            and_(held.c.worker_id == s.c.worker_id, s.c.index == func.any(held.c.slots)),
            isouter=True,
        )
        .join(st, held.c.study_id == st.c.id, isouter=True)
        .join(lv, lv.c.grant_id == held.c.grant_id, isouter=True)
        .where(s.c.worker_id.in_(found), or_(s.c.offered, s.c.defect != "", held.c.id.is_not(None)))
        .order_by(s.c.worker_id, s.c.index, held.c.grant_time, held.c.id)
    )
    for row in await conn.execute(machines.cordons_of(found)):
        cordon = CordonView(
            index=row.slot_index,
            uuid=row.uuid,
            reason=row.reason,
            quarantined=row.quarantined,
            time=row.time,
        )
        found[row.worker_id].cordons.append(cordon)
    failed = {
        (worker_id, cordon.index): cordon.reason
        for worker_id, worker in found.items()
        for cordon in worker.cordons
        if cordon.quarantined
    }
    for row in await conn.execute(slots):
        listed = found[row.worker_id].slots
        if not listed or listed[-1].index != row.place:
            slot = SlotView(
                index=row.place,
                model=_device(row),
                memory_bytes=row.memory_bytes,
                defect=row.defect or failed.get((row.worker_id, row.place), ""),
                uuid=row.uuid,
                loads=busy.get((row.worker_id, row.place), []),
            )
            listed.append(slot)
        if row.study_name is not None:
            listed[-1].holders.append(_own_holder(row) if row.project == project else _other_holder(row))
    return list(found.values())


async def _named_of_project(conn: AsyncConnection, project: str, texts: Sequence[str]) -> set[str]:
    """Which of the studies named in workers' messages are the project's."""
    names = {name for text in texts for name in _TRIAL.findall(text)}
    st = tables.study
    query = select(st.c.name).where(st.c.project == project, st.c.name.in_(names))
    return set((await conn.execute(query)).scalars()) if names else set()


def _without_others(text: str, own: Collection[str]) -> str:
    """A worker's message without the names of other projects' studies."""
    return _TRIAL.sub(lambda found: found[0] if found[1] in own else "a trial of another project", text)


def _suspended(row: Any) -> str:
    if row.unreached < failed_starts.IN_ROW:
        return ""
    return (
        f"{row.unreached} attempts in a row did not reach their programs, the last one: "
        f"{row.unreached_why or 'no reason was given'}"
    )


def _own_holder(row: Any) -> HolderView:
    return HolderView(
        study=row.study_name,
        number=row.number,
        milli=row.milli,
        memory_bytes=row.budget,
        leaving=row.why or "",
        bundle=row.held_by if row.seats > 1 else "",
        bundle_seats=row.seats if row.seats > 1 else 0,
    )


def _other_holder(row: Any) -> HolderView:
    return HolderView(study="", number=0, milli=row.milli, memory_bytes=row.budget, leaving="")


def _device(row: Any) -> str:
    """A slot's device in words; for an ephemeral one, also the job in whose bubbles it is available."""
    return (
        ephemeral.device(row.model, ephemeral.owner_stage(row.owner, row.stage))
        if row.owner
        else str(row.model)
    )


async def connected_slots(conn: AsyncConnection) -> int:
    """How many slots the connected workers have, without ephemeral ones."""
    w, s = tables.worker, tables.slot
    query = select(func.count()).select_from(s.join(w, s.c.worker_id == w.c.id))
    query = query.where(s.c.present, s.c.owner == "", HEARD_OF)
    return int((await conn.execute(query)).scalar_one())


async def _said_by_studies(
    conn: AsyncConnection, project: str
) -> tuple[dict[int, KeptView], dict[str, list[str]]]:
    """What active studies record about workers: the reservations, by worker, and the project's studies that avoid
    a worker, by incarnation."""
    st = tables.study
    query = select(st.c.name, st.c.project, st.c.standing).where(st.c.state == StudyState.ACTIVE.value)
    found = {}
    avoided_by: dict[str, list[str]] = {}
    for row in await conn.execute(query.order_by(st.c.name)):
        standing = readable_standing(row)
        own = row.project == project
        for incarnation in standing.avoided if standing and own else ():
            avoided_by.setdefault(incarnation, []).append(row.name)
        reserved = standing.reserved if standing else None
        if reserved is not None:
            found[reserved.worker_id] = KeptView(
                study=row.name if own else "",
                number=reserved.number if own else 0,
                slots=len(reserved.slots),
                since_s=reserved.since_s,
                ready_s=reserved.ready_s,
            )
    return found, avoided_by


async def shares(conn: AsyncConnection, project: str) -> tuple[list[ShareView], tuple[str, ...]]:
    """The part of the cluster that each active study has, in the order in which they get free slots, and the
    studies whose status cannot be read. Only a project's own studies are named."""
    async with pipeline(conn) as sent:
        asked = neighbours.ask_active(sent)
    found = neighbours.read(asked.rows)
    unreadable = tuple(name for its_project, name in found.unreadable if its_project == project)
    if not found.shares:
        return [], unreadable
    totals = await placement.totals(conn)
    now_s = float((await conn.execute(select(func.extract("epoch", func.clock_timestamp())))).scalar_one())
    ordered = sorted(found.shares, key=lambda share: claim(share, totals, now_s))
    views = [
        ShareView(
            study=share.name if share.project == project else "",
            share=share,
            usage=share.usage.settled(now_s),
            virtual_time_s=virtual_time_s(share, totals, now_s),
        )
        for share in ordered
    ]
    return views, unreadable
