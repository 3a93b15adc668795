"""Studies that begin after others, and the gates that others may rely on."""

from dataclasses import dataclass

from sqlalchemy import or_, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.store import tables


async def passed_gate(conn: AsyncConnection, key: str) -> str | None:
    """The name of a gate that has passed with this key."""
    s = tables.study
    query = (
        select(s.c.name)
        .where(s.c.checks == key, s.c.state == StudyState.COMPLETED.value)
        .order_by(s.c.id.desc())
        .limit(1)
    )
    return (await conn.execute(query)).scalar_one_or_none()


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitOver:
    """A study that waits for another one, which has ended, or is no more."""

    id: int
    after: str
    state: StudyState | None
    """The other one's; None where it was deleted."""
    detail: str


async def waits_over(conn: AsyncConnection) -> list[WaitOver]:
    """The studies whose wait for another one is over."""
    s, other = tables.study, tables.study.alias()
    query = (
        select(s.c.id, s.c.after, other.c.state, other.c.detail)
        .select_from(s.join(other, other.c.name == s.c.after, isouter=True))
        .where(
            text("study.after IS NOT NULL AND study.end_time IS NULL"),  # as its index says it
            or_(other.c.id.is_(None), other.c.end_time.is_not(None)),
        )
        .order_by(s.c.id)
    )
    return [
        WaitOver(
            id=row.id,
            after=row.after,
            state=None if row.state is None else StudyState(row.state),
            detail=row.detail or "",
        )
        for row in await conn.execute(query)
    ]
