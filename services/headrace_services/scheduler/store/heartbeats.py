"""The heartbeats of many workers, written down together: one commit, whatever their number."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import ARRAY, BigInteger, Float, and_, any_, bindparam, case, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.records import Lease
from headrace_services.scheduler.store import rows, tables
from headrace_services.scheduler.store.pipeline import compiled, given, pipeline

now = func.clock_timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a session heard of its worker."""

    worker_id: int
    session: int
    connected: bool = True
    """False when the stream has ended; the worker's leases go on until they expire."""
    trouble: str = ""
    """What the worker says of its own trouble; empty where all is well."""
    set_aside: str = ""
    """What the worker says of the refused messages that it keeps; empty where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """What the rows say to a heartbeat."""

    mine: bool
    """False when a newer session speaks for the worker."""
    leases: frozenset[str]
    """The worker's live leases."""
    leaving: tuple[tuple[Lease, str], ...]
    """Those whose trials are to leave at their next report, with the reason."""


async def note(conn: AsyncConnection, beats: Iterable[Beat], ttl_s: float) -> dict[Beat, Noted]:
    """Note that workers live, which extends their leases, or are gone. At most one heartbeat a session."""
    noted = sorted(beats, key=lambda beat: beat.worker_id)
    ids = [beat.worker_id for beat in noted]
    async with pipeline(conn) as sent:
        said = [
            {
                "g_worker": b.worker_id,
                "g_session": b.session,
                "connected": b.connected,
                "trouble": b.trouble,
                "set_aside": b.set_aside,
            }
            for b in noted
        ]
        heard = sent.run(_NOTE, said, ttl_s=ttl_s)
        held = sent.run(_LEASES, ids=ids)
        asked = sent.run(_LEAVING, ids=ids)
    current = {(row.id, row.session) for row in heard.rows}
    leases: dict[int, set[str]] = {}
    for row in held.rows:
        leases.setdefault(row.worker_id, set()).add(row.id)
    leaving: dict[int, list[tuple[Lease, str]]] = {}
    for row in asked.rows:
        with suppress(Exception):  # the worker's own session finds out what cannot be read of a lease
            leaving.setdefault(row.worker_id, []).append((rows.lease(row), row.why))
    return {
        beat: Noted(
            mine=(beat.worker_id, beat.session) in current,
            leases=frozenset(leases.get(beat.worker_id, ())),
            leaving=tuple(leaving.get(beat.worker_id, ())),
        )
        for beat in noted
    }


_w, _le, _lv = tables.worker, tables.lease, tables.leave
_theirs = and_(_le.c.worker_id == any_(bindparam("ids", type_=ARRAY(BigInteger))), _le.c.live)
_said = given(
    {
        "g_worker": _w.c.id,
        "g_session": _w.c.session,
        "connected": _w.c.connected,
        "trouble": _w.c.trouble,
        "set_aside": _w.c.set_aside,
    }
)
_until = now + bindparam("ttl_s", type_=Float) * text("interval '1 second'")
_NOTE = compiled(
    update(_w)
    .where(_w.c.id == _said.c.g_worker, _w.c.session == _said.c.g_session)
    .values(
        connected=_said.c.connected,
        trouble=_said.c.trouble,
        # The end of a stream says nothing of them: they are there while the worker is away too.
        set_aside=case((_said.c.connected, _said.c.set_aside), else_=_w.c.set_aside),
        last_seen=case((_said.c.connected, now), else_=_w.c.last_seen),
        expires_at=case((_said.c.connected, _until), else_=_w.c.expires_at),
    )
    .returning(_w.c.id, _w.c.session)
)
_LEASES = compiled(select(_le.c.id, _le.c.worker_id).where(_theirs))
_LEAVING = compiled(
    select(_le, _lv.c.why).join_from(_lv, _le, _lv.c.lease_id == _le.c.id).where(_theirs, _lv.c.at_report)
)
