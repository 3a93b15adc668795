"""The stores of checkpoints that workers use, by address, and the id that the marker of each must have.

    no row   ── a worker names an address and finds no marker: it must make one, with an id that is drawn here
             ── it finds one: that is the id
    unseen   ── its maker is working on it; another worker replaces the maker only when that one is gone
    seen     ── a worker has found the marker. From now on a place without it is not the store

If the cluster already has checkpoints at an address, some must be there when its marker is made. Otherwise it is a
mount point without its file system.
"""

import uuid
from dataclasses import dataclass

from sqlalchemy import exists, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.store import tables

now = func.clock_timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a worker reports about its store."""

    url: str
    id: str
    """The id in its marker; empty if there is none."""
    unseen: bool
    """The store has not answered yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The answer to the worker."""

    id: str = ""
    """Empty if it depends on what the worker has not seen yet."""
    seen: bool = False
    """Whether a worker has found the marker."""
    set_up: bool = False
    """The worker must make the marker."""
    used: bool = False
    """The cluster already has checkpoints there."""


async def greet(conn: AsyncConnection, worker: str, found: Found) -> Known:
    """Compare what a worker finds with what is known about its store."""
    s, w = tables.checkpoint_store, tables.worker
    here = s.c.url == found.url
    if not found.unseen:
        new = {"url": found.url, "id": found.id or uuid.uuid4().hex, "maker": worker}
        await conn.execute(insert(s).values(new).on_conflict_do_nothing())
    row = (await conn.execute(select(s).where(here).with_for_update())).one_or_none()
    if row is None:
        return Known()
    if row.seen:
        return Known(id=row.id, seen=True)
    if found.id:
        await conn.execute(update(s).where(here).values(id=found.id, seen=True))
        return Known(id=found.id, seen=True)
    maker_lives = exists().where(w.c.name == row.maker, w.c.connected, w.c.expires_at > now)
    others = row.maker != worker and (await conn.execute(select(maker_lives))).scalar_one()
    if found.unseen or others:
        return Known(id=row.id)
    await conn.execute(update(s).where(here).values(maker=worker))
    return Known(id=row.id, set_up=True, used=await _has_checkpoints(conn, found.url))


async def seen(conn: AsyncConnection, url: str, identity: str) -> None:
    """Record that a worker has found the marker of a store."""
    s = tables.checkpoint_store
    which = (s.c.url == url, s.c.id == identity, ~s.c.seen)
    await conn.execute(update(s).where(*which).values(seen=True))


async def _has_checkpoints(conn: AsyncConnection, url: str) -> bool:
    """Whether a trial continues from a checkpoint at this address. This reads all trials, once for each address."""
    t = tables.trial
    there = exists().where(func.starts_with(t.c.checkpoint["uri"].as_string(), f"{url.rstrip('/')}/"))
    return bool((await conn.execute(select(there))).scalar_one())
