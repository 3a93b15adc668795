"""A study's bundles with open seats. Only its own cycles change them, so its lock is all that a cycle needs."""

from typing import Any

from sqlalchemy import BigInteger, bindparam, func, select, text

from headrace_services.scheduler.core.records import Bundle
from headrace_services.scheduler.store import rows, tables
from headrace_services.scheduler.store.pipeline import Pipeline, Reply, Statement
from headrace_services.scheduler.store.placement import slots_query

_g, _p, _member = tables.slot_grant, tables.grant_part, tables.lease.alias("member")
members: Any = select(func.count()).where(_member.c.grant_id == _g.c.id, _member.c.live).scalar_subquery()
"""How many live leases a grant has."""
OPEN = (text("slot_grant.live AND slot_grant.seats > 1 AND NOT slot_grant.closed"), members < _g.c.seats)
"""The condition for a grant with an open seat; the first part is as in its index."""


def ask_open(sent: Pipeline, study_id: int, most: int) -> Reply:
    """Ask for the bundles with open seats, those with the fewest members first; `read` reads the reply."""
    return sent.run(_OPEN, study=study_id, most=most)


def read(found: Reply) -> tuple[Bundle, ...]:
    """The bundles. Each is on one slot."""
    return tuple(Bundle(grant=rows.bundle_grant(row), slots=(rows.slot(row),)) for row in found.rows)


_OPEN = Statement(
    lambda: (
        slots_query(granted=True)
        .add_columns(
            _g.c.id.label("grant_id"),
            _g.c.study_id,
            _g.c.milli,
            _g.c.memory_bytes.label("budget"),
            _g.c.model.label("learnt_by"),
            _g.c.seats,
            _g.c.key,
            _g.c.bubbles,
            _p.c.incarnation.label("granted_to"),
            members.label("members"),
        )
        .where(_g.c.study_id == bindparam("study", type_=BigInteger), *OPEN)
        .order_by(members, _g.c.id)
        .limit(bindparam("most", type_=BigInteger))
    )
)
