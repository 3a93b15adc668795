"""Remove studies that users deleted, and rows that have reached their age limit, a few rows at a time.

Deleting a study takes one small transaction: it loses its name, is marked, and leaves a tombstone
(`mark_deleted`). From then on it cannot be found. Its rows are removed later, those that refer to others first. A
batch is everything up to the `most`th row by the table's key, so each batch starts where the last one ended and
skips no deleted row. Between batches all state is in the rows: after a crash the work starts at the first row
there is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Table, any_, bindparam, delete, exists, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import ARRAY, Text

from headrace.folders import study_folder
from headrace_services.scheduler.store import tables

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The rows that one table holds of a study."""

    table: Table
    key: tuple[str, ...]
    """The sort key within the study; with the study's id in front it is a unique index."""


PARTS = (
    Part(table=tables.event, key=("cursor",)),
    Part(table=tables.report, key=("number", "attempt", "sequence")),
    Part(table=tables.exploit, key=("number", "rung")),
    Part(table=tables.rung_result, key=("number", "rung")),
    Part(table=tables.lease, key=("number", "attempt")),
    Part(table=tables.trial, key=("number",)),
)
"""In the order of removal: rows that refer to others first. What remains is removed with the study's own row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one transaction deleted."""

    rows: int
    through: Key | None
    """The key up to which nothing is left; None if nothing at all is left."""


async def mark_deleted(conn: AsyncConnection, study_id: int) -> None:
    """Take an ended study off the list; its rows are removed later. Its name is free from now on."""
    s = tables.study
    mine = s.c.id == study_id
    found = (await conn.execute(select(s.c.uid, s.c.name).where(mine).with_for_update())).one()
    gone = {"name": f"~{found.uid}", "delete_time": func.clock_timestamp(), "checks": None, "after": None}
    await conn.execute(update(s).where(mine).values(gone))
    stone = insert(tables.tombstone).values(uid=found.uid, folder=study_folder(found.name, found.uid))
    await conn.execute(stone.on_conflict_do_nothing())


async def deleted_studies(conn: AsyncConnection, most: int) -> list[int]:
    """The studies whose rows must be removed, oldest first."""
    s = tables.study
    query = select(s.c.id).where(s.c.delete_time.is_not(None)).order_by(s.c.id).limit(most)
    return [int(row.id) for row in await conn.execute(query)]


async def remove_some(
    conn: AsyncConnection,
    study_id: int,
    part: Part,
    most: int,
    *,
    after: Key | None = None,
    only: Sequence[ColumnElement[bool]] = (),
) -> Batch:
    """Delete at most this many rows of a study, the next ones after a key. With `only`, just those that meet these
    conditions."""
    columns = [part.table.c[name] for name in part.key]
    of_study = part.table.c.study_id == study_id
    beyond = [tuple_(*columns) > tuple_(*after)] if after is not None else []
    query = select(*columns).where(of_study, *beyond, *only).order_by(*columns).offset(most - 1).limit(1)
    last = (await conn.execute(query)).one_or_none()
    upto = [tuple_(*columns) <= tuple_(*last)] if last is not None else []
    which = delete(part.table).where(of_study, *beyond, *upto, *only)
    if part.table is tables.lease:
        rows = await _remove_leases(conn, which)
    else:
        rows = (await conn.execute(which)).rowcount
    return Batch(rows=rows, through=None if last is None else tuple(last))


async def _remove_leases(conn: AsyncConnection, which: Any) -> int:
    """Delete leases, and the grants without any lease left."""
    gone = (await conn.execute(which.returning(tables.lease.c.grant_id))).scalars().all()
    grants = sorted({grant for grant in gone if grant is not None})
    if grants:
        await conn.execute(_REMOVE_GRANTS, {"grants": grants})
    return len(gone)


async def remove_study(conn: AsyncConnection, study_id: int) -> None:
    """Delete the row of a study that users deleted, and the little that is left with it."""
    s = tables.study
    await conn.execute(delete(s).where(s.c.id == study_id, s.c.delete_time.is_not(None)))


_g, _le = tables.slot_grant, tables.lease
_REMOVE_GRANTS = delete(_g).where(
    _g.c.id == any_(bindparam("grants", type_=ARRAY(Text))),
    ~_g.c.live,
    ~exists().where(_le.c.grant_id == _g.c.id),
)
