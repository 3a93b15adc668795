"""Tokens: creating, finding, listing and revoking them. Whether one has expired is judged by the database's clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Row, any_, bindparam, delete, extract, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from headrace_services.identity.known import StoredToken
from headrace_services.identity.roles import Role
from headrace_services.identity.tokens import Token
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.database import transaction

NOTED_EVERY: Final = timedelta(minutes=10)
"""The last use of a token is recorded at most this often."""
KEPT_AFTER_END: Final = timedelta(days=90)
"""How long a revoked or expired token is listed."""

_t = tables.token
_now = func.clock_timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """A token as users see it."""

    id: str
    number: int
    name: str
    project: str
    role: Role
    create_time: datetime
    expire_time: datetime | None
    revoke_time: datetime | None
    last_used_time: datetime | None


class TokenRows:
    """The table as the gate reads it, each time in a transaction of its own."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def find(self, token_id: str) -> StoredToken | None:
        """The row with an id; None if there is none."""
        async with transaction(self._engine) as conn:
            row = (await conn.execute(_FIND, {"token": token_id})).one_or_none()
        if row is None:
            return None
        return StoredToken(
            id=row.id,
            digest=row.digest,
            name=row.name,
            project=row.project,
            role=Role(row.role),
            revoked=row.revoked,
            left_s=None if row.left_s is None else float(row.left_s),
            note_use=row.note_use,
        )

    async def note_use(self, token_id: str) -> None:
        """Record that a token is used now, unless another replica has just done so."""
        async with transaction(self._engine) as conn:
            await conn.execute(_NOTE, {"token": token_id})


async def add(
    conn: AsyncConnection, token: Token, *, name: str, project: str, role: Role, lifetime_s: float | None
) -> TokenView:
    """Store a new token."""
    ends = None if lifetime_s is None else _now + timedelta(seconds=lifetime_s)
    values = {"id": token.id, "digest": token.digest, "name": name, "project": project, "role": role.value}
    return _view((await conn.execute(insert(_t).values(**values, expire_time=ends).returning(*_SEEN))).one())


async def get(conn: AsyncConnection, token_id: str) -> TokenView | None:
    """A token; None if there is none with this id."""
    row = (await conn.execute(select(*_SEEN).where(_t.c.id == token_id))).one_or_none()
    return None if row is None else _view(row)


async def newest(
    conn: AsyncConnection, *, project: str | None, before: int | None, limit: int
) -> Sequence[TokenView]:
    """The newest tokens, of one project or of all, made before the one with a given number."""
    query = select(*_SEEN).order_by(_t.c.number.desc()).limit(limit)
    if project is not None:
        query = query.where(_t.c.project == project)
    if before is not None:
        query = query.where(_t.c.number < before)
    return [_view(row) for row in await conn.execute(query)]


async def revoke(conn: AsyncConnection, token_id: str) -> TokenView | None:
    """End a token. One that was already revoked keeps its time."""
    revoked = update(_t).where(_t.c.id == token_id).values(revoke_time=func.coalesce(_t.c.revoke_time, _now))
    row = (await conn.execute(revoked.returning(*_SEEN))).one_or_none()
    return None if row is None else _view(row)


async def forget_over(conn: AsyncConnection, most: int) -> int:
    """Delete at most this many tokens that have been over for long. Returns how many."""
    end = func.least(_t.c.revoke_time, _t.c.expire_time)  # LEAST ignores NULL
    some = select(_t.c.id).where(end < _now - KEPT_AFTER_END).limit(most).with_for_update(skip_locked=True)
    gone = delete(_t).where(_t.c.id == any_(func.array(some.scalar_subquery())))
    return (await conn.execute(gone)).rowcount


def _view(row: Row[Any]) -> TokenView:
    return TokenView(**{**row._mapping, "role": Role(row.role)})


_SEEN: Final = tuple(column for column in _t.c if column.name != "digest")
_long_ago = func.coalesce(_t.c.last_used_time < _now - NOTED_EVERY, True)
_FIND: Final = select(
    *(_t.c.id, _t.c.digest, _t.c.name, _t.c.project, _t.c.role),
    _t.c.revoke_time.is_not(None).label("revoked"),
    extract("epoch", _t.c.expire_time - _now).label("left_s"),
    _long_ago.label("note_use"),
).where(_t.c.id == bindparam("token"))
_NOTE: Final = update(_t).where(_t.c.id == bindparam("token"), _long_ago).values(last_used_time=_now)
