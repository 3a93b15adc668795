"""The heartbeats of many workers, written together: one commit, whatever their number."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import ARRAY, BigInteger, Float, Text, and_, any_, bindparam, case, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.store import leases as lease_rows
from headrace_services.scheduler.store import machines, rows, tables
from headrace_services.scheduler.store.machines import Wish
from headrace_services.scheduler.store.pipeline import Statement, given, pipeline

now = func.clock_timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a session has received from its worker."""

    worker_id: int
    session: int
    connected: bool = True
    """False if the stream has ended; the worker's leases continue until they expire."""
    named: frozenset[str] = frozenset()
    """The leases that the worker says it holds."""
    trouble: str = ""
    """The worker's own trouble, in its words; empty if all is well."""
    rejected: str = ""
    """What the worker says about the rejected messages that it keeps; empty if there are none."""
    reused: str = ""
    """What the worker says about processes that run several trials; empty if none does."""
    mps: str = ""
    """What the worker says about how trials share its GPUs; empty if there is nothing to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """The answer of the rows to a heartbeat."""

    mine: bool
    """False if a newer session speaks for the worker."""
    leases: frozenset[str]
    """The worker's live leases."""
    leaving: tuple[tuple[Lease, str], ...]
    """The leases whose trials must leave at their next report, with the reason."""
    wish: Wish | None = None
    """What a user asks of the daemon."""
    drains: bool = False
    """Whether all its trials must leave."""

    @property
    def unasked(self) -> bool:
        """Whether a trial that must leave was not asked to, because it was placed at the very moment of the drain."""
        return self.drains and len(self.leases) > len(self.leaving)


async def note(conn: AsyncConnection, beats: Iterable[Beat], ttl_s: float) -> dict[Beat, Noted]:
    """Record that workers live, which extends the leases that they name, or that they are gone. At most one
    heartbeat for each session.

    A live lease that its worker does not name expires `ttl_s` seconds later, unless it is named or reports until
    then.
    """
    noted = sorted(beats, key=lambda beat: beat.worker_id)
    ids = [beat.worker_id for beat in noted]
    async with pipeline(conn) as sent:
        said = [
            {
                "g_worker": b.worker_id,
                "g_session": b.session,
                "connected": b.connected,
                "trouble": b.trouble,
                "rejected": b.rejected,
                "reused": b.reused,
                "mps": b.mps,
            }
            for b in noted
        ]
        heard = sent.run(_NOTE, said, ttl_s=ttl_s)
        here = [one for one, beat in zip(said, noted, strict=True) if beat.connected]
        named = sorted(set().union(*(beat.named for beat in noted)))
        sent.run(_EXTEND, here, named=named, ttl_s=ttl_s)
        held = sent.run(_LEASES, ids=ids)
        asked = sent.run(_LEAVING, ids=ids)
    current = {(row.id, row.session): row for row in heard.rows}
    leases: dict[int, set[str]] = {}
    for row in held.rows:
        leases.setdefault(row.worker_id, set()).add(row.id)
    leaving: dict[int, list[tuple[Lease, str]]] = {}
    for row in asked.rows:
        with suppress(Exception):  # the worker's own session detects leases that cannot be read
            leaving.setdefault(row.worker_id, []).append((rows.lease(row), row.why))
    found = {}
    for beat in noted:
        row = current.get((beat.worker_id, beat.session))
        found[beat] = Noted(
            mine=row is not None,
            leases=frozenset(leases.get(beat.worker_id, ())),
            leaving=tuple(leaving.get(beat.worker_id, ())),
            wish=None if row is None else machines.wish(row),
            drains=row is not None and bool(row.drains),
        )
    return found


async def asked_to_leave(conn: AsyncConnection, worker_id: int) -> tuple[tuple[Lease, str], ...]:
    """A worker's leases whose trials must leave at their next report, with the reason."""
    async with pipeline(conn) as sent:
        asked = sent.run(_LEAVING, ids=[worker_id])
    return tuple((rows.lease(row), row.why) for row in asked.rows)


_w, _le, _lv = tables.worker, tables.lease, tables.leave
_theirs = and_(_le.c.worker_id == any_(bindparam("ids", type_=ARRAY(BigInteger))), _le.c.live)
_said = given(
    {
        "g_worker": _w.c.id,
        "g_session": _w.c.session,
        "connected": _w.c.connected,
        "trouble": _w.c.trouble,
        "rejected": _w.c.rejected,
        "reused": _w.c.reused,
        "mps": _w.c.mps,
    }
)
_until = now + bindparam("ttl_s", type_=Float) * text("interval '1 second'")
_NOTE = Statement(
    lambda: (
        update(_w)
        .where(_w.c.id == _said.c.g_worker, _w.c.session == _said.c.g_session)
        .values(
            connected=_said.c.connected,
            trouble=_said.c.trouble,
            # The end of a stream says nothing about them: they exist while the worker is away too.
            rejected=case((_said.c.connected, _said.c.rejected), else_=_w.c.rejected),
            reused=case((_said.c.connected, _said.c.reused), else_=_w.c.reused),
            mps=case((_said.c.connected, _said.c.mps), else_=_w.c.mps),
            last_seen=case((_said.c.connected, now), else_=_w.c.last_seen),
            expires_at=case((_said.c.connected, _until), else_=_w.c.expires_at),
        )
        .returning(_w.c.id, _w.c.session, *machines.WISH, machines.DRAINS.label("drains"))
    )
)
_named = _le.c.id == any_(bindparam("named", type_=ARRAY(Text)))
_differing = (
    # A cycle that holds the row is working on the lease: the row is left to the next heartbeat.
    select(_le.c.id, _named.label("named"))
    .join_from(_said, _w, and_(_w.c.id == _said.c.g_worker, _w.c.session == _said.c.g_session))
    .join(_le, and_(_le.c.worker_id == _w.c.id, _le.c.live))
    .where(_named != _le.c.expires_at.is_(None))
    .with_for_update(of=_le, skip_locked=True, key_share=True)
    .cte("differing")
)
_EXTEND = Statement(
    lambda: (
        update(_le).where(_le.c.id == _differing.c.id).values(expires_at=case((~_differing.c.named, _until)))
    )
)
_LEASES = Statement(lambda: select(_le.c.id, _le.c.worker_id).where(_theirs))
_LEAVING = Statement(
    lambda: (
        select(*lease_rows.COLUMNS, _lv.c.why)
        .select_from(lease_rows.SOURCE.join(_lv, _lv.c.grant_id == _le.c.grant_id))
        .where(_theirs, _lv.c.at_report)
    )
)
