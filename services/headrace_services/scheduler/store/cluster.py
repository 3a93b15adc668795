"""The workers and their slots as users see them. Whether a worker is there is judged by the database's clock."""

from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.store import tables

_HEARD_OF = and_(tables.worker.c.connected, tables.worker.c.expires_at > func.clock_timestamp())


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotView:
    """A slot, and the trial that holds it."""

    index: int
    model: str
    memory_bytes: int
    study: str | None
    number: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker that is or was connected."""

    name: str
    connected: bool
    labels: dict[str, str]
    version: str
    last_seen: datetime
    trouble: str
    slots: list[SlotView] = field(default_factory=list)


async def workers_after(conn: AsyncConnection, *, name: str, limit: int) -> list[WorkerView]:
    """Workers by name, after the one of `name`, with their slots."""
    w, s, le, st = tables.worker, tables.slot, tables.lease, tables.study
    query = select(w, _HEARD_OF.label("heard_of")).where(w.c.name > name).order_by(w.c.name).limit(limit)
    found = {
        row.id: WorkerView(
            name=row.name,
            connected=row.heard_of,
            labels=row.labels,
            version=row.version,
            last_seen=row.last_seen,
            trouble=row.trouble,
        )
        for row in await conn.execute(query)
    }
    slots = (
        select(s, s.c.index.label("place"), le.c.number, st.c.name.label("study_name"))
        .join_from(s, le, s.c.lease_id == le.c.id, isouter=True)
        .join(st, le.c.study_id == st.c.id, isouter=True)
        .where(s.c.worker_id.in_(found), or_(s.c.present, s.c.lease_id.is_not(None)))
        .order_by(s.c.worker_id, s.c.index)
    )
    for row in await conn.execute(slots):
        slot = SlotView(
            index=row.place,
            model=row.model,
            memory_bytes=row.memory_bytes,
            study=row.study_name,
            number=row.number,
        )
        found[row.worker_id].slots.append(slot)
    return list(found.values())


async def connected_slots(conn: AsyncConnection) -> int:
    """How many slots the workers that are there have."""
    w, s = tables.worker, tables.slot
    query = select(func.count()).select_from(s.join(w, s.c.worker_id == w.c.id)).where(s.c.present, _HEARD_OF)
    return int((await conn.execute(query)).scalar_one())
