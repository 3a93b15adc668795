"""Which folders of studies workers may delete, and the sizes of the scheduler's own tables.

A worker names the folders that it keeps, `{study}-{uid}`. A folder may be deleted only if the rows say so for
certain: a study that was deleted left a tombstone, and a study whose checkpoints or logs have reached their age
limit has ended. An unknown folder stays: two clusters may share a store.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import false, func, or_, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.ages import KINDS, Ages
from headrace_services.scheduler.store import aging, code, tables

_s, _t, _stone = tables.study, tables.trial, tables.tombstone


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What may be deleted of a study's folders; `kept` are the addresses of checkpoints to keep."""

    folder: str
    deleted: bool = False
    checkpoints: bool = False
    logs: bool = False
    kept: tuple[str, ...] = ()


async def judge(conn: AsyncConnection, folders: Sequence[str], ages: Ages) -> list[Verdict]:
    """The verdicts on these folders; a folder of which nothing may be deleted is left out."""
    by_uid = {folder.rpartition("-")[2]: folder for folder in folders}
    stones = select(_stone.c.folder).where(_stone.c.uid.in_(by_uid))
    known = set(folders)
    found = [
        Verdict(folder=folder, deleted=True)
        for folder in (await conn.execute(stones)).scalars()
        if folder in known
    ]
    logs = aging.is_over(ages.logs) if ages.logs is not None else false()
    query = (
        select(_s.c.id, _s.c.uid, _s.c.name, logs.label("logs"), aging.is_noted("checkpoints").label("bare"))
        .where(_s.c.uid.in_(by_uid), _s.c.delete_time.is_(None), _s.c.end_time.is_not(None))
        .where(~aging.is_ending, ~aging.is_referred_to)
    )
    for row in await conn.execute(query):
        folder = f"{row.name}-{row.uid}"
        if folder in known and (row.logs or row.bare):
            kept = await _kept(conn, row.id) if row.bare else ()
            found.append(Verdict(folder=folder, checkpoints=row.bare, logs=row.logs, kept=kept))
    return found


async def _kept(conn: AsyncConnection, study_id: int) -> tuple[str, ...]:
    """The checkpoints that the trials of a study still refer to."""
    columns = (_t.c.checkpoint, _t.c.best_checkpoint)
    has = or_(*(column.is_not(None) for column in columns), _t.c.earlier_ends != text("'[]'"))
    query = select(*columns, _t.c.earlier_ends).where(_t.c.study_id == study_id, has)
    found: set[str] = set()
    for row in await conn.execute(query):
        ends = (end["checkpoint"] for end in row.earlier_ends)
        found |= {one["uri"] for one in (row.checkpoint, row.best_checkpoint, *ends) if one is not None}
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """The size of a table with its indexes; `rows` is Postgres' estimate."""

    table: str
    size_bytes: int
    rows: int


async def table_sizes(conn: AsyncConnection) -> list[TableSize]:
    """The tables, largest first."""
    return [
        TableSize(table=row.name, size_bytes=row.size_bytes, rows=row.row_count)
        for row in await conn.execute(_SIZES, {"tables": sorted(tables.metadata.tables)})
    ]


async def due_now(conn: AsyncConnection, ages: Ages, project: str | None = None) -> dict[str, int]:
    """How many of each kind are due for deletion: studies, or rows if a kind does not belong to a study. For a
    project only its studies are counted, and kinds that do not belong to a study are left out."""
    found = {kind: 0 for kind in KINDS if project is None or kind not in {*_OF_CLUSTER, "code"}}
    for kind in ("studies", *aging.OF_ROWS, "checkpoints"):
        if (age := getattr(ages, kind)) is not None:
            found[kind] = await aging.count_due(conn, kind, age, project)
    if project is not None:
        return found
    if ages.code is not None:
        found["code"] = await code.count_unneeded(conn, ages.code)
    for kind, (table, time, further) in _OF_CLUSTER.items():
        if (age := getattr(ages, kind)) is not None:
            query = select(func.count()).select_from(table).where(time < func.now() - age, *further)
            found[kind] = int((await conn.execute(query)).scalar_one())
    return found


async def count_deleted(conn: AsyncConnection, project: str | None = None) -> int:
    """How many deleted studies have rows left, of a project or, if it is None, of all."""
    mine = () if project is None else (_s.c.project == project,)
    query = select(func.count()).select_from(_s).where(_s.c.delete_time.is_not(None), *mine)
    return int((await conn.execute(query)).scalar_one())


async def count_restores(conn: AsyncConnection) -> int:
    """How often the database was restored from a copy."""
    return int((await conn.execute(select(tables.lineage.c.restores))).scalar_one())


_w, _slot = tables.worker, tables.slot
_OF_CLUSTER = {
    "requests": (tables.request, tables.request.c.time, ()),
    "tombstones": (_stone, _stone.c.time, ()),
    "workers": (
        _w,
        _w.c.last_seen,
        (~_w.c.connected, select(_slot.c.worker_id).where(_slot.c.worker_id == _w.c.id).exists()),
    ),
}
_SIZES = text(
    "SELECT relname AS name, pg_total_relation_size(oid) AS size_bytes,"
    " greatest(reltuples, 0)::bigint AS row_count"
    " FROM pg_class WHERE relkind = 'r' AND relname = ANY(:tables) AND pg_table_is_visible(oid)"
    " ORDER BY size_bytes DESC, name"
)
