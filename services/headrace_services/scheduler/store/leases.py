"""Leases as records: each with its grant, the grant's parts, and how many live leases share it. Also the renewal
of clients' leases."""

from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.store import tables

_le, _g, _p = tables.lease, tables.slot_grant, tables.grant_part
_other = tables.lease.alias("other")
_parts = (
    select(func.jsonb_agg(func.jsonb_build_array(_p.c.worker_id, _p.c.incarnation, _p.c.slots)))
    .where(_p.c.grant_id == _le.c.grant_id)
    .scalar_subquery()
)
_sharing = select(func.count()).where(_other.c.grant_id == _le.c.grant_id, _other.c.live).scalar_subquery()

COLUMNS = (
    *_le.c,
    _g.c.milli,
    _g.c.memory_bytes,
    _g.c.model,
    _g.c.seats,
    _g.c.key,
    _g.c.closed,
    _g.c.bubbles,
    _parts.label("parts"),
    _sharing.label("sharing"),
)
"""What `rows.lease` reads of a row of `SOURCE`."""
SOURCE = _le.outerjoin(_g, _g.c.id == _le.c.grant_id)


async def renew(
    conn: AsyncConnection, project: str, study: str, number: int, *, lease_id: str, attempt: int
) -> bool:
    """Restart the time of a client's lease. Returns False if there is no such live lease."""
    le, s = tables.lease, tables.study
    mine = (le.c.study_id == s.c.id, s.c.project == project, s.c.name == study, s.c.delete_time.is_(None))
    which = (le.c.id == lease_id, le.c.number == number, le.c.attempt == attempt)
    anew = func.clock_timestamp() + le.c.ttl_s * text("interval '1 second'")
    query = update(le).where(*which, *mine, le.c.live, le.c.worker_id.is_(None)).values(expires_at=anew)
    return bool((await conn.execute(query)).rowcount)
