"""Everything that keeps trials off workers and devices.

    what                | why                                | trials there         | until
    ------------------- | ---------------------------------- | -------------------- | ---------------------------------
    worker drained      | a user asked                       | leave at next report | `undrain`; survives its restarts
    worker leaving      | its daemon got a signal, a notice  | leave at next report | its daemon restarts
    worker cordoned     | a user asked                       | stay                 | `uncordon`
    worker suspended    | it did not reach its programs      | stay                 | its pause is over (`unreached`)
    device cordoned     | a user asked                       | stay                 | `uncordon`
    device quarantined  | it failed                          | leave at next report | `uncordon`, on any host
    device with defect  | it failed, and has no uuid         | leave at next report | its daemon restarts

Only `settle` computes `slot.present` from all of this, and placement reads nothing else. Trials that must leave
are asked with rows of `leave`, as when another study needs the slots. A trial that a cycle places at the very
moment may be missed: the worker's next heartbeat asks again (`restate`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Integer,
    Text,
    and_,
    any_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import ClauseElement

from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.pipeline import Pipeline, Statement, pipeline

now = func.clock_timestamp()
DRAIN, CORDON = "DRAIN", "CORDON"
FAILURES_IN_ROW = 3
"""After this many failures in a row with an error of the device, a device is quarantined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a user asks of a worker's daemon."""

    reason: str
    """Why it is drained, in a sentence."""
    grace_s: float | None
    """How long its trials have; None for as long as they take."""
    leave: bool
    """Whether the daemon exits once it is empty. A daemon that started after the drain was requested stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A worker as a change finds it, under a lock."""

    id: int
    hold: str
    leaving: str
    heard_of: bool


async def find(conn: AsyncConnection, name: str) -> Found | None:
    """Lock a worker against other changes; None if there is none with this name."""
    heard_of = and_(_w.c.connected, _w.c.expires_at > now)
    query = select(_w.c.id, _w.c.hold, _w.c.leaving, heard_of.label("heard_of")).where(_w.c.name == name)
    row = (await conn.execute(query.with_for_update(of=_w, key_share=True))).one_or_none()
    if row is None:
        return None
    return Found(id=row.id, hold=row.hold, leaving=row.leaving, heard_of=row.heard_of)


async def hold(
    conn: AsyncConnection, worker_id: int, kind: str, *, reason: str = "", grace_s: float | None = None
) -> None:
    """Drain a worker, or let nothing new start on it."""
    values = {
        "hold_why": reason,
        "hold_time": now,
        "hold_grace_s": grace_s,
        "hold_incarnation": _w.c.incarnation,
    }
    await conn.execute(update(_w).where(_w.c.id == worker_id).values(hold=kind, **values))
    await restate(conn, worker_id)


async def release(conn: AsyncConnection, worker_id: int) -> None:
    """Undo what a user asked of a worker as a whole."""
    nothing = {
        "hold": "",
        "hold_why": "",
        "hold_time": null(),
        "hold_grace_s": null(),
        "hold_incarnation": "",
    }
    await conn.execute(update(_w).where(_w.c.id == worker_id).values(nothing))
    await restate(conn, worker_id)


async def leaves(conn: AsyncConnection, worker_id: int, session: int, why: str) -> None:
    """Record that a worker's daemon leaves, in its own words. An older session changes nothing."""
    mine = (_w.c.id == worker_id, _w.c.session == session)
    if (await conn.execute(update(_w).where(*mine).values(leaving=why))).rowcount:
        await restate(conn, worker_id)


async def cordon(conn: AsyncConnection, worker_id: int, indices: Sequence[int], reason: str) -> None:
    """Let nothing new start on devices. A device that failed stays quarantined."""
    async with pipeline(conn) as sent:
        sent.run(_CORDON, worker=worker_id, indices=list(indices), reason=reason, quarantined=False)
    await restate(conn, worker_id)


async def uncordon(conn: AsyncConnection, worker_id: int, indices: Sequence[int]) -> None:
    """Let trials start on devices again, even on those that failed; without indices, on all devices of the worker.

    The defects that its daemon knows are void, if it is connected and can be told.
    """
    async with pipeline(conn) as sent:
        sent.run(_UNCORDON, worker=worker_id, indices=list(indices), every=not indices)
        sent.run(_FORGIVE, worker=worker_id, indices=list(indices), every=not indices)
    await restate(conn, worker_id)


async def quarantine(conn: AsyncConnection, worker_id: int, lease_id: str, words: str) -> tuple[int, ...]:
    """Quarantine the devices of a lease, on which attempts failed again and again with an error of the device.

    Only if trials of its study make progress elsewhere: otherwise the program fails everywhere. Returns the
    devices' indices.
    """
    async with pipeline(conn) as sent:
        elsewhere = sent.run(_GETS_ON_ELSEWHERE, worker=worker_id, lease=lease_id)
        held = sent.run(_DEVICES_OF, worker=worker_id, lease=lease_id)
    indices = sorted(row.slot_index for row in held.rows)
    if not indices or elsewhere.row is None or not elsewhere.row.found:
        return ()
    async with pipeline(conn) as sent:
        sent.run(_CORDON, worker=worker_id, indices=indices, reason=words, quarantined=True)
    await restate(conn, worker_id)
    return tuple(indices)


async def remember(conn: AsyncConnection, worker_id: int) -> None:
    """Remember the devices of a worker that failed and have a uuid, and update its slots and trials."""
    async with pipeline(conn) as sent:
        sent.run(_REMEMBER, worker=worker_id)
        _settle(sent, worker_id)


async def restate(conn: AsyncConnection, worker_id: int) -> None:
    """Update which slots of a worker may be placed on, and ask exactly those trials to leave that must."""
    async with pipeline(conn) as sent:
        sent.run(_UNASK, worker=worker_id)
        _settle(sent, worker_id)


def _settle(sent: Pipeline, worker_id: int) -> None:
    # In this order: a cycle that places at this moment holds the slots, and its grant is seen after it.
    sent.run(_SETTLE, worker=worker_id)
    sent.run(_ASK_ALL, worker=worker_id)
    sent.run(_ASK_THOSE_ON, worker=worker_id)


async def indices(conn: AsyncConnection, worker_id: int) -> list[int]:
    """The devices that a worker last reported."""
    query = select(_s.c.index.label("slot_index")).where(_s.c.worker_id == worker_id).order_by(_s.c.index)
    return [row.slot_index for row in await conn.execute(query)]


async def held_names(conn: AsyncConnection) -> list[str]:
    """The connected workers that get no trials, because they are drained or cordoned."""
    query = select(_w.c.name).where(_w.c.connected, _w.c.expires_at > now, or_(_w.c.hold != "", DRAINS))
    return list((await conn.execute(query.order_by(_w.c.name))).scalars())


async def suspended(conn: AsyncConnection) -> list[tuple[str, str, datetime]]:
    """The connected workers that are suspended for failed starts: their names, why the last attempt did not
    reach its program, and until when."""
    query = select(_w.c.name, _w.c.unreached_why, _w.c.suspended_until)
    query = query.where(_w.c.connected, _w.c.expires_at > now, _w.c.suspended_until.is_not(None))
    return [
        (row.name, row.unreached_why, row.suspended_until)
        for row in await conn.execute(query.order_by(_w.c.name))
    ]


async def wish_of(conn: AsyncConnection, worker_id: int) -> Wish | None:
    """What a user asks of a worker's daemon."""
    query = select(_w.c.name, *WISH).where(_w.c.id == worker_id)
    row = (await conn.execute(query)).one_or_none()
    return None if row is None else wish(row)


async def sound(conn: AsyncConnection, worker_id: int, indices: Iterable[int]) -> frozenset[int]:
    """Which of these devices a user has declared sound again."""
    query = select(_s.c.index.label("slot_index")).where(_s.c.worker_id == worker_id, _s.c.index.in_(indices))
    found = await conn.execute(query.where(_s.c.defect == ""))
    return frozenset(row.slot_index for row in found)


def cordons_of(worker_ids: Iterable[int]) -> Any:
    """The query for the devices of workers on which nothing starts."""
    query = select(_s.c.worker_id, _s.c.index.label("slot_index"), _s.c.uuid, _c.c.reason, _c.c.quarantined)
    query = query.add_columns(_c.c.time).join_from(_s, _w, _w.c.id == _s.c.worker_id)
    query = query.join(_c, _c.c.device == DEVICE).where(_s.c.worker_id.in_(list(worker_ids)))
    return query.order_by(_s.c.worker_id, _s.c.index)


def draining(row: Any) -> str:
    """Why a worker is drained, from its row; empty if it is not."""
    if row.hold == DRAIN:
        return row.hold_why or "a user drained it"
    return str(row.leaving)


def wish(row: Any) -> Wish | None:
    """The wish in a row with a worker's name and the columns `WISH`."""
    if row.hold != DRAIN:
        return None
    return Wish(
        reason=draining(row),
        grace_s=row.hold_grace_s,
        leave=row.hold_incarnation == row.incarnation,
    )


_w, _s, _c = tables.worker, tables.slot, tables.cordon
_le, _g, _p, _lv = tables.lease, tables.slot_grant, tables.grant_part, tables.leave
WISH = (_w.c.hold, _w.c.hold_why, _w.c.hold_grace_s, _w.c.hold_incarnation, _w.c.incarnation, _w.c.leaving)
_worker = bindparam("worker", type_=BigInteger)
_has_uuid = and_(_s.c.kind == "GPU", _s.c.uuid != "", _s.c.owner == "")
DEVICE: Any = case((_has_uuid, _s.c.uuid), else_=_w.c.name + "/" + cast(_s.c.index, Text))
"""The key by which a device is remembered: its uuid, which it has on any machine, else its worker and index."""
DRAINS: Any = or_(_w.c.hold == DRAIN, _w.c.leaving != "")
"""Whether a worker's trials must leave."""
WHY: Any = case((_w.c.hold == DRAIN, _w.c.hold_why), else_=_w.c.leaving)
"""Why, in the words of the user or the daemon."""


def _settling() -> ClauseElement:
    cordoned = exists(select(_c.c.device).where(_c.c.device == DEVICE).correlate(_s, _w))
    held = or_(_w.c.hold != "", _w.c.leaving != "", _w.c.suspended_until.is_not(None))
    may = and_(_s.c.offered, _s.c.defect == "", ~held, ~cordoned)
    query = update(_s).where(_s.c.worker_id == _worker, _w.c.id == _s.c.worker_id, _s.c.present != may)
    return query.values(present=may)


def _asking(grants: Any) -> ClauseElement:
    """Ask grants to leave at their next report, which replaces what others asked of them."""
    query = insert(_lv).from_select(["grant_id", "study_id", "at_report", "why"], grants)
    said = {name: query.excluded[name] for name in ("at_report", "why")}
    theirs = or_(~_lv.c.at_report, _lv.c.for_study_id.is_not(None))
    return query.on_conflict_do_update(
        index_elements=[_lv.c.grant_id], set_={**said, "for_study_id": null()}, where=theirs
    )


def _all_of_the_worker() -> Any:
    why = "worker '" + _w.c.name + "' is draining" + case((WHY != "", ": " + WHY), else_="")
    query = select(_g.c.id, _g.c.study_id, true(), why).distinct()
    query = query.join_from(_le, _g, _g.c.id == _le.c.grant_id).join(_w, _w.c.id == _le.c.worker_id)
    return query.where(_le.c.worker_id == _worker, _le.c.live, _g.c.live, DRAINS)


def _those_on_failed_devices() -> Any:
    """Includes grants on ephemeral slots that their owner has taken back."""
    cordoned = _s.outerjoin(_c, and_(_c.c.device == _s.c.uuid, _has_uuid, _c.c.quarantined))
    gone = "the bubbles that it runs in are gone: " + func.coalesce(
        func.nullif(_s.c.defect, ""), "its worker no longer names them"
    )
    failed = "its device failed: " + func.coalesce(func.nullif(_s.c.defect, ""), _c.c.reason)
    why = case((_s.c.owner != "", gone), else_=failed)
    query = select(_g.c.id, _g.c.study_id, true(), func.min(why)).select_from(
        _le.join(_g, _g.c.id == _le.c.grant_id)
        .join(_p, and_(_p.c.grant_id == _g.c.id, _p.c.worker_id == _le.c.worker_id))
        .join(cordoned, and_(_s.c.worker_id == _p.c.worker_id, _s.c.index == any_(_p.c.slots)))
    )
    bad = or_(_s.c.defect != "", _c.c.device.is_not(None), and_(_s.c.owner != "", ~_s.c.offered))
    query = query.where(_le.c.worker_id == _worker, _le.c.live, _g.c.live, bad)
    return query.group_by(_g.c.id)


_SETTLE = Statement(_settling)
_ASK_ALL = Statement(lambda: _asking(_all_of_the_worker()))
_ASK_THOSE_ON = Statement(lambda: _asking(_those_on_failed_devices()))
_UNASK = Statement(
    lambda: delete(_lv).where(
        _lv.c.for_study_id.is_(None),
        _lv.c.grant_id.in_(select(_le.c.grant_id).where(_le.c.worker_id == _worker, _le.c.live)),
    )
)
_indices = bindparam("indices", type_=ARRAY(Integer))
_named = or_(bindparam("every", type_=Boolean), _s.c.index == any_(_indices))
_its_devices = select(DEVICE).join_from(_s, _w, _w.c.id == _s.c.worker_id).where(_s.c.worker_id == _worker)


def _cordoning(devices: Any) -> ClauseElement:
    query = insert(_c).from_select(["device", "reason", "quarantined"], devices, include_defaults=False)
    said = {name: query.excluded[name] for name in ("reason", "quarantined")}
    return query.on_conflict_do_update(
        index_elements=[_c.c.device],
        set_={**said, "time": now},
        where=and_(~_c.c.quarantined, query.excluded.quarantined),
    )


_CORDON = Statement(
    lambda: _cordoning(
        select(DEVICE, bindparam("reason", type_=Text), bindparam("quarantined", type_=Boolean))
        .join_from(_s, _w, _w.c.id == _s.c.worker_id)
        .where(_s.c.worker_id == _worker, _s.c.index == any_(_indices))
    )
)
_REMEMBER = Statement(
    lambda: _cordoning(
        select(_s.c.uuid, func.min(_s.c.defect), true())
        .where(_s.c.worker_id == _worker, _has_uuid, _s.c.defect != "")
        .group_by(_s.c.uuid)
    )
)
_UNCORDON = Statement(lambda: delete(_c).where(_c.c.device.in_(_its_devices.where(_named))))
_FORGIVE = Statement(
    lambda: (
        update(_s)
        .where(_s.c.worker_id == _worker, _named, _s.c.defect != "", _s.c.owner == "")
        .where(_w.c.id == _s.c.worker_id, _w.c.connected, _w.c.expires_at > now)
        .values(defect="")
    )
)
_lease = bindparam("lease", type_=Text)
_DEVICES_OF = Statement(
    lambda: (
        select(_s.c.index.label("slot_index"))
        .join_from(_le, _p, and_(_p.c.grant_id == _le.c.grant_id, _p.c.worker_id == _le.c.worker_id))
        .join(_s, and_(_s.c.worker_id == _p.c.worker_id, _s.c.index == any_(_p.c.slots)))
        .where(_le.c.id == _lease, _le.c.worker_id == _worker, _has_uuid)
    )
)


def _getting_on_elsewhere() -> ClauseElement:
    """Whether other attempts of the trial, or other trials of its study that run now, make progress on other
    devices."""
    mine, mine_on, its = _le.alias("mine"), _p.alias("mine_on"), _p.alias("its")
    begun = func.coalesce(cast(_le.c.resume["step"].astext, BigInteger), 0)
    same = exists(
        select(its.c.grant_id)
        .where(its.c.grant_id == _le.c.grant_id, its.c.worker_id == mine_on.c.worker_id)
        .where(its.c.slots.op("&&")(mine_on.c.slots))
        .correlate(_le, mine_on)
    )
    query = (
        select(_le.c.id)
        .select_from(
            mine.join(
                mine_on, and_(mine_on.c.grant_id == mine.c.grant_id, mine_on.c.worker_id == mine.c.worker_id)
            ).join(_le, _le.c.study_id == mine.c.study_id)
        )
        .where(mine.c.id == _lease, mine.c.worker_id == _worker)
        .where(or_(_le.c.live, _le.c.number == mine.c.number), _le.c.step > begun, ~same)
    )
    return select(exists(query).label("found"))


_GETS_ON_ELSEWHERE = Statement(_getting_on_elsewhere)
