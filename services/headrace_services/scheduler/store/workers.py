"""Workers: which are connected, what they hold, and which are silent. Times are the database's own."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from functools import cache, cached_property, partial
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Float,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace import worker_labels
from headrace.errors import WorkerNameTakenError
from headrace.spec import StudySpec
from headrace_services.scheduler.core.lifecycle import State, StudyState
from headrace_services.scheduler.core.records import Lease, Trial
from headrace_services.scheduler.store import (
    bundles,
    checkpoint_stores,
    failed_starts,
    leases,
    machines,
    rows,
    tables,
)
from headrace_services.scheduler.store.defects import Defect, each
from headrace_services.scheduler.store.pipeline import given

T = TypeVar("T")

CHANNEL = "headrace_worker"
"""Notifies the replica that holds a worker's stream that the worker's leases changed elsewhere."""

FORGOTTEN_AFTER = timedelta(days=7)
"""A worker that has been silent for this long is removed from the cluster, unless it still has a live lease."""

EPHEMERAL_GONE_AFTER = timedelta(minutes=2)
"""An ephemeral worker that did not say that it leaves is removed after being silent for this long: long enough to
change the replica, and for its leases to expire."""

EPHEMERAL = tables.worker.c.labels.has_key(worker_labels.EPHEMERAL)
"""Whether a worker never returns once it is gone."""

now = func.clock_timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A slot as its worker describes it."""

    index: int
    kind: str
    model: str
    memory_bytes: int
    uuid: str
    defect: str = ""
    """Why nothing may be placed on it; empty if it is sound."""
    unshared: bool = False
    """Whether trials cannot share it."""
    links: tuple[int, ...] = ()
    """The interconnect to the device of each index; empty if the worker does not know it."""
    owner: str = ""
    """The large job in whose bubbles it is available, with `stage` and `duty`; empty for an ordinary device."""
    stage: int | None = None
    duty: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """What a worker says about itself."""

    name: str
    incarnation: str
    devices: tuple[Device, ...]
    labels: dict[str, str]
    version: str
    log_dir: str
    cpus: int = 0
    host: str = ""
    home: str = ""
    home_lock: str = ""
    """Names the lock that the daemon holds on its home."""
    certificate_until: datetime | None = None
    """The end of the certificate that it showed; None if it needs none."""
    leaving: str = ""
    """Why the daemon leaves; empty if it does not."""
    store: checkpoint_stores.Found | None = None
    """None if it names no store."""


class StudyInfo:
    """The part of a study that only an extension changes once its trials exist."""

    def __init__(
        self,
        study_id: int,
        uid: str,
        name: str,
        columns: dict[str, Any],
        scale: int | None = None,
        *,
        project: str,
    ) -> None:
        self.id = study_id
        self.uid = uid
        self.name = name
        self.project = project
        self.scale = scale
        """The scale of its copies, if its pilot has chosen one."""
        self._columns = columns

    @property
    def waits(self) -> bool:
        """Whether its pilot has not chosen a scale yet: then this must not be cached."""
        surrogate = self._columns.get("surrogate") or {}
        return bool(surrogate.get("pilot")) and self.scale is None

    @property
    def budget(self) -> int:
        """The full budget of a trial, in steps."""
        return int(self._columns.get("max_steps") or 0)

    @cached_property
    def spec(self) -> StudySpec:
        """The spec. Raises ValidationError if its columns are not a valid one: only the study's own assignments
        need it."""
        return StudySpec.stored(self._columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLease:
    """A worker's live lease with its trial."""

    lease: Lease
    trial: Trial


def _seconds(value: float) -> Any:
    return func.make_interval(0, 0, 0, 0, 0, 0, value)


async def greet(conn: AsyncConnection, greeting: Greeting, ttl_s: float) -> tuple[int, int]:
    """Open a session: write the worker and its slots. Returns the worker's id and the session's number.

    Raises WorkerNameTakenError while another worker with this name is connected.
    """
    w, s = tables.worker, tables.slot
    await _refuse_namesake(conn, greeting)
    await _refuse_copy(conn, greeting)
    values: dict[str, Any] = {
        "incarnation": greeting.incarnation,
        "connected": True,
        "labels": greeting.labels,
        "version": greeting.version,
        "log_dir": greeting.log_dir,
        "cpus": greeting.cpus,
        "host": greeting.host,
        "home": greeting.home,
        "home_lock": greeting.home_lock,
        "certificate_until": greeting.certificate_until,
        "leaving": greeting.leaving,
        "session_time": now,
        "last_seen": now,
        "expires_at": now + _seconds(ttl_s),
    }
    query = insert(w).values(name=greeting.name, session=1, **values)
    query = query.on_conflict_do_update(
        index_elements=[w.c.name],
        set_={
            **values,
            **{
                name: case((w.c.incarnation == greeting.incarnation, w.c[name]), else_=nothing)
                for name, nothing in failed_starts.NOTHING.items()
            },
            "session": w.c.session + 1,
        },
    )
    worker_id, session = (await conn.execute(query.returning(w.c.id, w.c.session))).one()
    unknown = {"offered": False, "present": False, "defect": ""}
    await conn.execute(update(s).where(s.c.worker_id == worker_id).values(unknown))
    if greeting.devices:
        cores = greeting.cpus / max(1, sum(not device.owner for device in greeting.devices))
        described = [asdict(device) for device in greeting.devices]
        await conn.execute(_offering(), {"rows": described, "of_worker": worker_id, "cores_each": cores})
    await machines.remember(conn, int(worker_id))
    unused = (s.c.grant_id.is_(None), s.c.shared_milli == 0, s.c.defect == "")
    await conn.execute(delete(s).where(s.c.worker_id == worker_id, ~s.c.offered, *unused))
    return int(worker_id), int(session)


async def _refuse_namesake(conn: AsyncConnection, greeting: Greeting) -> None:
    """Refuse a worker while another one with its name is connected; the two would end each other's sessions for
    ever.

    A worker with the same home and lock is the same worker again. So is one on the same host with another home, as
    soon as the earlier stream has ended: its home was lost. On another host, or on a copy of the home, the leases
    must also have ended, or have expired.
    """
    w, le = tables.worker, tables.lease
    holds = exists().where(le.c.worker_id == w.c.id, le.c.live)
    query = select(w.c.host, w.c.home, w.c.home_lock, w.c.incarnation, w.c.connected, holds.label("holds"))
    query = query.where(w.c.name == greeting.name, w.c.expires_at > now)
    # Not FOR UPDATE: a cycle that places here holds slots and refers to the worker, and would wait for it.
    query = query.with_for_update(of=w, key_share=True)
    found = (await conn.execute(query)).one_or_none()
    if found is None or found.incarnation == greeting.incarnation:
        return
    same_home = found.home == greeting.home
    if same_home and found.home_lock == greeting.home_lock:
        return
    if found.connected or (found.holds and (same_home or found.host != greeting.host)):
        copied = ", from a home of which this one's is a copy" if same_home else ""
        raise WorkerNameTakenError(f"a worker '{greeting.name}' runs already{_on(found)}{copied}")


async def _refuse_copy(conn: AsyncConnection, greeting: Greeting) -> None:
    """Refuse a worker with another name on a copy of a home whose worker is connected: the copy's outbox has
    messages about leases that only the other worker may send."""
    w, le = tables.worker, tables.lease
    holds = exists().where(le.c.worker_id == w.c.id, le.c.live)
    query = select(w.c.name, w.c.host, w.c.home_lock)
    query = query.where(w.c.home == greeting.home, w.c.name != greeting.name, w.c.expires_at > now)
    for found in await conn.execute(query.where(or_(w.c.connected, holds))) if greeting.home else ():
        if found.home_lock != greeting.home_lock:
            raise WorkerNameTakenError(
                f"this worker's home is a copy of that of worker '{found.name}', which runs{_on(found)}",
                remedy="Give it a --home of its own, or stop the other one.",
            )


def _on(found: Any) -> str:
    return f" on host '{found.host}'" if found.host else ""


async def note_defects(conn: AsyncConnection, worker_id: int, session: int, defects: dict[int, str]) -> None:
    """Make failed devices, by index, unavailable for placement, with the reason, and remember those with a uuid.

    An older session changes nothing.
    """
    w, s = tables.worker, tables.slot
    mine = exists().where(w.c.id == worker_id, w.c.session == session)
    for index, reason in sorted(defects.items()):
        which = (s.c.worker_id == worker_id, s.c.index == index, mine)
        await conn.execute(update(s).where(*which).values(present=False, defect=reason))
    await machines.remember(conn, worker_id)


@cache
def _offering() -> Insert:
    """Write all of a worker's slots at once; known ones are updated."""
    s = tables.slot
    names = [field.name for field in fields(Device)]
    new = given({name: s.c[name] for name in names})
    computed = {
        "worker_id": bindparam("of_worker", type_=BigInteger),
        "cores": bindparam("cores_each", type_=Float),
        "offered": literal(True),
        "present": new.c.defect == "",
    }
    query = insert(s).from_select(
        [*names, *computed], select(*(new.c[name] for name in names), *computed.values())
    )
    changed = {
        name: query.excluded[name] for name in (*names, "cores", "offered", "present") if name != "index"
    }
    return query.on_conflict_do_update(index_elements=[s.c.worker_id, s.c.index], set_=changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableLease:
    """A live lease that cannot be read, or whose trial cannot be read."""

    id: str
    study_id: int
    reason: str


async def held_leases(conn: AsyncConnection, worker_id: int) -> tuple[list[HeldLease], list[UnreadableLease]]:
    """The worker's live leases with their trials, in the order of their placement, and those that cannot be read."""
    le = tables.lease
    query = select(le.c.id, le.c.study_id).where(le.c.worker_id == worker_id, le.c.live)
    keys = [(row.id, row.study_id) for row in await conn.execute(query.order_by(le.c.grant_time, le.c.id))]
    held, unreadable = _parted(keys, await each(conn, keys, partial(_held, conn)))
    # A lease that ended between the two reads is no longer held.
    return [one for one in held if one.lease.live], unreadable


async def _held(conn: AsyncConnection, keys: Sequence[tuple[str, int]]) -> list[HeldLease]:
    le, t = tables.lease, tables.trial
    mine = le.c.id.in_([lease_id for lease_id, _ in keys])
    query = select(*leases.COLUMNS).select_from(leases.SOURCE).where(mine)
    found = {row.id: rows.lease(row) for row in await conn.execute(query)}
    theirs = select(t).join(le, and_(t.c.study_id == le.c.study_id, t.c.number == le.c.number)).where(mine)
    trials = {(row.study_id, row.number): rows.trial(row) for row in await conn.execute(theirs)}
    held = [found[lease_id] for lease_id, _ in keys]
    return [HeldLease(lease=lease, trial=trials[lease.study_id, lease.number]) for lease in held]


def _parted(
    keys: Sequence[tuple[str, int]], found: Sequence[T | Defect]
) -> tuple[list[T], list[UnreadableLease]]:
    unreadable = [
        UnreadableLease(id=lease_id, study_id=study_id, reason=item.reason)
        for (lease_id, study_id), item in zip(keys, found, strict=True)
        if isinstance(item, Defect)
    ]
    return [item for item in found if not isinstance(item, Defect)], unreadable


async def study_by_uid(conn: AsyncConnection, uid: str) -> StudyInfo | None:
    """A study's immutable part."""
    return await _study(conn, tables.study.c.uid == uid)


async def study_by_id(conn: AsyncConnection, study_id: int) -> StudyInfo | None:
    """A study's immutable part."""
    return await _study(conn, tables.study.c.id == study_id)


async def _study(conn: AsyncConnection, which: Any) -> StudyInfo | None:
    s = tables.study
    query = select(s.c.id, s.c.uid, s.c.name, s.c.project, s.c.spec, s.c.scale_choice).where(which)
    row = (await conn.execute(query.where(s.c.delete_time.is_(None)))).one_or_none()
    if row is None:
        return None
    scale = row.scale_choice["scale"] if row.scale_choice else None
    return StudyInfo(row.id, row.uid, row.name, row.spec, scale, project=row.project)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredLease:
    """A live lease whose holder was not heard from in time."""

    lease: Lease
    why: str
    silent_worker: str
    """The name of its worker, if that is silent; empty if the worker did not name the lease, or for a client's
    lease."""


async def expired_leases(
    conn: AsyncConnection, *, late_s: float = 0.0
) -> tuple[list[ExpiredLease], list[UnreadableLease]]:
    """Live leases whose holder was not heard from in time, and those that cannot be read.

    `late_s`: for how long no holder could be heard from, because this replica was held up itself. They last that
    much longer.
    """
    w, then = tables.worker, now - _seconds(late_s)
    keys = [(row.id, row.study_id) for row in await conn.execute(_silent(then))]
    found = await each(conn, keys, partial(_expired, conn, then))
    await conn.execute(update(w).where(w.c.connected, w.c.expires_at < then).values(connected=False))
    return _parted(keys, found)


async def silent_leases(conn: AsyncConnection, leases: Collection[str]) -> frozenset[str]:
    """Which of the leases are live and have a holder that was not heard from in time."""
    found = await conn.execute(_silent(now).where(tables.lease.c.id.in_(leases)))
    return frozenset(row.id for row in found)


def _silent(then: Any) -> Any:
    le, w = tables.lease, tables.worker
    return (
        select(le.c.id, le.c.study_id)
        .join_from(le, w, le.c.worker_id == w.c.id, isouter=True)
        .where(le.c.live, or_(w.c.expires_at < then, le.c.expires_at < then))
    )


async def _expired(conn: AsyncConnection, then: Any, keys: Sequence[tuple[str, int]]) -> list[ExpiredLease]:
    le, w = tables.lease, tables.worker
    query = (
        select(
            *leases.COLUMNS, w.c.name.label("worker_name"), (w.c.expires_at < then).label("worker_is_silent")
        )
        .select_from(leases.SOURCE.outerjoin(w, le.c.worker_id == w.c.id))
        .where(le.c.id.in_([lease_id for lease_id, _ in keys]))
    )
    found = {}
    row: Any
    for row in await conn.execute(query):
        lease = rows.lease(row)
        who = f"worker '{row.worker_name}'" if row.worker_name else f"client '{lease.client_id}'"
        found[lease.id] = ExpiredLease(
            lease=lease,
            why=f"{who} sent nothing for longer than its lease lasts",
            silent_worker=row.worker_name if row.worker_is_silent else "",
        )
    return [found[lease_id] for lease_id, _ in keys if lease_id in found]


async def forget_asked_of_ended(conn: AsyncConnection) -> None:
    """Delete what was asked of grants that are over.

    The cycle that ends a grant does so too, but it cannot see what another study's cycle was about to ask at that
    moment.
    """
    g, lv = tables.slot_grant, tables.leave
    await conn.execute(delete(lv).where(lv.c.grant_id == g.c.id, ~g.c.live))


async def studies_waiting_for_slots(conn: AsyncConnection) -> list[int]:
    """Active studies that might start a trial, oldest first: on a free slot, or on an open seat of their own.

    A trial without a milestone counts too: it may be the next one to be promoted, which only a cycle can decide.
    """
    st, t, s, w = tables.study, tables.trial, tables.slot, tables.worker
    free = exists().where(
        s.c.worker_id == w.c.id,
        s.c.grant_id.is_(None),
        s.c.shared_milli < 1000,
        s.c.present,
        or_(s.c.owner == "", st.c.spec["bubbles"].as_boolean()),
        w.c.connected,
        w.c.expires_at > now,
    )
    waiting = exists().where(
        t.c.study_id == st.c.id, t.c.state.in_([State.PENDING.value, State.PAUSED.value]), ~t.c.user_paused
    )
    untouched = st.c.next_number == 0
    own = exists().where(tables.slot_grant.c.study_id == st.c.id, *bundles.OPEN)
    query = (
        select(st.c.id)
        .where(
            st.c.state == StudyState.ACTIVE.value,
            st.c.after.is_(None),
            or_(free, own),
            or_(waiting, untouched),
        )
        .order_by(st.c.id)
    )
    return [int(row.id) for row in await conn.execute(query)]


async def forget_gone(conn: AsyncConnection, age: timedelta, most: int) -> int:
    """Remove at most `most` workers that have been gone for `age`. Returns how many.

    Their slots are removed. A worker itself is removed when no grant refers to it any more: until then its row is
    the name that past attempts show.
    """
    return await _forget(conn, most, tables.worker.c.last_seen < now - age)


async def forget_ephemeral(conn: AsyncConnection, most: int) -> int:
    """Remove at most `most` ephemeral workers, as soon as they have left, or were silent for a while. Returns how
    many."""
    w = tables.worker
    left = or_(w.c.leaving != "", w.c.last_seen < now - EPHEMERAL_GONE_AFTER)
    return await _forget(conn, most, and_(EPHEMERAL, left))


async def _forget(conn: AsyncConnection, most: int, gone_for_good: Any) -> int:
    w, s, g, p = tables.worker, tables.slot, tables.slot_grant, tables.grant_part
    has_slots = exists().where(s.c.worker_id == w.c.id)
    has_grants = exists().where(p.c.worker_id == w.c.id)
    query = (
        select(w.c.id)
        .where(~w.c.connected, gone_for_good, or_(has_slots, ~has_grants))
        .where(~exists().where(p.c.worker_id == w.c.id, g.c.id == p.c.grant_id, g.c.live))
        .order_by(w.c.last_seen)
        .limit(most)
        .with_for_update(of=w, skip_locked=True)
    )
    gone = (await conn.execute(query)).scalars().all()
    if gone:
        await conn.execute(delete(s).where(s.c.worker_id.in_(gone)))
        await conn.execute(delete(w).where(w.c.id.in_(gone), ~has_grants))
    return len(gone)


async def notify(conn: AsyncConnection, worker_ids: Sequence[int]) -> None:
    """Ask the replicas that hold these workers' streams to check their leases again."""
    for worker_id in sorted(set(worker_ids)):
        await conn.execute(
            text("SELECT pg_notify(:channel, :id)"), {"channel": CHANNEL, "id": str(worker_id)}
        )
