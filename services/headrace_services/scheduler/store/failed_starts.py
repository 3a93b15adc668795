"""Suspend workers, for a while, whose attempts do not reach their programs.

    sound → 1, 2 in a row → suspended → the pause is over: it is tried again → suspended for twice as long …
          ← an attempt that started after the last of them reaches its program, or its daemon restarts

Attempts that already run prove nothing: they may hold a connection that a new one would not get. Failed starts
during the suspension do not count, as they were placed before it. `machines` keeps trials off the worker
meanwhile.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import case, exists, func, null, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.store import machines, tables

IN_ROW = 3
"""After this many attempts in a row a worker is suspended."""
FIRST_S, LONGEST_S = 5.0, 300.0
"""For how long, the first time and at most."""

now = func.clock_timestamp()
_w, _le = tables.worker, tables.lease
NOTHING: dict[str, Any] = {
    "unreached": 0,
    "unreached_why": "",
    "unreached_time": null(),
    "suspended_until": null(),
}
"""The columns of a worker that reaches its programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """The failed starts of a worker."""

    times: int
    suspended: bool


async def doubt(conn: AsyncConnection, worker_id: int) -> Doubt:
    """The failed starts of a worker at this moment."""
    query = select(_w.c.unreached, _w.c.suspended_until.is_not(None).label("suspended")).where(
        _w.c.id == worker_id
    )
    row = (await conn.execute(query)).one_or_none()
    return Doubt(times=row.unreached if row else 0, suspended=bool(row and row.suspended))


async def count(conn: AsyncConnection, worker_id: int, lease_id: str, why: str) -> Doubt:
    """Count an attempt that did not reach its program, once."""
    times = _w.c.unreached + 1
    pause_s = func.least(FIRST_S * func.power(2.0, times - IN_ROW), LONGEST_S)
    until = case((times >= IN_ROW, now + pause_s * text("interval '1 second'")))
    live = exists().where(_le.c.id == lease_id, _le.c.worker_id == worker_id, _le.c.live)
    counted = update(_w).where(_w.c.id == worker_id, _w.c.suspended_until.is_(None), live)
    await conn.execute(
        counted.values(unreached=times, unreached_why=why, unreached_time=now, suspended_until=until)
    )
    found = await doubt(conn, worker_id)
    if found.suspended:
        await machines.restate(conn, worker_id)
    return found


async def reached(conn: AsyncConnection, worker_id: int, lease_id: str) -> bool:
    """An attempt reached its program. Returns whether its worker is cleared of failed starts."""
    later = exists().where(
        _le.c.id == lease_id, _le.c.worker_id == _w.c.id, _le.c.grant_time > _w.c.unreached_time
    )
    changed = update(_w).where(_w.c.id == worker_id, _w.c.unreached > 0, later).values(NOTHING)
    if not (await conn.execute(changed)).rowcount:
        return (await doubt(conn, worker_id)).times == 0
    await machines.restate(conn, worker_id)
    return True


async def try_again(conn: AsyncConnection, worker_id: int) -> bool:
    """Let trials start again on a worker whose pause is over. Returns whether it was."""
    ripe = update(_w).where(_w.c.id == worker_id, _w.c.suspended_until <= now)
    if not (await conn.execute(ripe.values(suspended_until=null()))).rowcount:
        return False
    await machines.restate(conn, worker_id)
    return True
