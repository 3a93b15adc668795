"""Where a trial's attempts ran, and parts of logs in transit from one replica to another."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import and_, delete, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.cluster import HEARD_OF

CHANNEL = "headrace_log"
"""Notifies that a part is requested (`ask WORKER`), or available (`told ID`)."""
KEPT_FOR = timedelta(minutes=1)
AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of a trial on a worker."""

    lease_id: str
    number: int
    live: bool
    worker_id: int | None
    """None if a client runs the trial in its own loop."""
    worker: str
    """The worker's name; empty if it is no longer known."""
    here: bool
    """Whether the worker is connected to a replica."""
    over_s: float | None
    """How many seconds ago it ended; None while it is live."""


async def attempt(conn: AsyncConnection, study_id: int, number: int, which: int) -> Attempt | None:
    """The attempt `which` of a trial, counted from 1."""
    le, w = tables.lease, tables.worker
    over_s = func.extract("epoch", func.clock_timestamp() - le.c.end_time).label("over_s")
    query = (
        select(le.c.id, le.c.live, le.c.worker_id, w.c.name, HEARD_OF.label("here"), over_s)
        .join_from(le, w, w.c.id == le.c.worker_id, isouter=True)
        .where(le.c.study_id == study_id, le.c.number == number, le.c.attempt == which)
    )
    row = (await conn.execute(query)).one_or_none()
    if row is None:
        return None
    return Attempt(
        lease_id=row.id,
        number=which,
        live=row.live,
        worker_id=row.worker_id,
        worker=row.name or "",
        here=bool(row.here),
        over_s=None if row.over_s is None else float(row.over_s),
    )


async def connected(conn: AsyncConnection, most: int) -> list[int]:
    """Some connected workers, most recently seen first."""
    w = tables.worker
    query = select(w.c.id).where(HEARD_OF).order_by(w.c.last_seen.desc()).limit(most)
    return [int(found) for found in (await conn.execute(query)).scalars()]


async def put_ask(conn: AsyncConnection, worker_id: int, ask: bytes) -> int:
    """Ask the replica that a worker is connected to for a part. Returns the id of the request."""
    r = tables.log_read
    query = insert(r).values(worker_id=worker_id, ask=ask).returning(r.c.id)
    found = (await conn.execute(query)).scalar_one()
    await _notify(conn, f"ask {worker_id}")
    return int(found)


async def asks(conn: AsyncConnection, worker_id: int) -> list[tuple[int, bytes]]:
    """The open requests to a worker."""
    r = tables.log_read
    query = (
        select(r.c.id, r.c.ask)
        .where(r.c.worker_id == worker_id, r.c.chunk.is_(None))
        .where(r.c.time > func.clock_timestamp() - KEPT_FOR)
        .order_by(r.c.id)
        .limit(AT_ONCE)
    )
    return [(row.id, row.ask) for row in await conn.execute(query)]


async def tell(conn: AsyncConnection, read_id: int, chunk: bytes) -> None:
    """Deliver a part. Do nothing if nobody waits for it any more."""
    r = tables.log_read
    await conn.execute(update(r).where(r.c.id == read_id).values(chunk=chunk))
    await _notify(conn, f"told {read_id}")


async def pop(conn: AsyncConnection, read_id: int) -> bytes | None:
    """Take a part out of the table; None if it has not arrived yet."""
    r = tables.log_read
    query = delete(r).where(and_(r.c.id == read_id, r.c.chunk.is_not(None))).returning(r.c.chunk)
    return (await conn.execute(query)).scalar_one_or_none()


async def give_up(conn: AsyncConnection, read_id: int) -> None:
    """Give up waiting for a part."""
    await conn.execute(delete(tables.log_read).where(tables.log_read.c.id == read_id))


async def forget_old(conn: AsyncConnection, most: int) -> int:
    """Delete at most this many parts that a replica left behind. Returns how many."""
    r = tables.log_read
    old = select(r.c.id).where(r.c.time < func.clock_timestamp() - KEPT_FOR).limit(most)
    gone: Sequence[int] = (await conn.execute(old.with_for_update(skip_locked=True))).scalars().all()
    if gone:
        await conn.execute(delete(r).where(r.c.id.in_(gone)))
    return len(gone)


async def _notify(conn: AsyncConnection, payload: str) -> None:
    await conn.execute(text("SELECT pg_notify(:channel, :payload)"), {"channel": CHANNEL, "payload": payload})
