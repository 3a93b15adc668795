"""Leases as records are made of them: each with its grant, the grant's parts, and how many live leases share it."""

from sqlalchemy import func, select

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
