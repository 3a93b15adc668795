"""The code of studies: archives by digest, in chunks, which every replica sees.

A code stays while a study that has not ended needs it, and for a while after the last study with it has ended, since
`headrace extend` and `headrace retry` let such a study go on. It also stays for a while after a client has asked for
it: that client is about to create a study. Whoever creates a study touches the row in the same transaction, so a
deletion that waits for the row finds it young.

A code has one copy, and the projects that shipped it. No other project is told that it is there, and none may create a
study with it. A client that is told so uploads the archive, and by that shows that its project has it too.
"""

from collections.abc import AsyncIterator
from datetime import timedelta

from sqlalchemy import ColumnElement, and_, any_, delete, exists, func, insert, or_, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.store import tables

CHUNK_BYTES = 1 << 20
AT_LEAST = timedelta(days=1)
"""So long a code stays after a client has asked for it, whatever its age may be: the client creates a study next."""


async def needed(conn: AsyncConnection) -> set[str]:
    """The digests that studies need which have not ended: these must stay, here and wherever else they are kept."""
    s = tables.study
    query = select(s.c.code).distinct().where(s.c.code.is_not(None), s.c.end_time.is_(None))
    return set((await conn.execute(query)).scalars())


async def touch(conn: AsyncConnection, digest: str, project: str) -> bool:
    """Keep a code for a while from now on. Returns whether this project has it."""
    c, p = tables.code, tables.code_project
    has_it = exists().where(p.c.digest == c.c.digest, p.c.project == project)
    used = update(c).where(c.c.digest == digest, has_it).values(use_time=func.clock_timestamp())
    return (await conn.execute(used.returning(c.c.digest))).first() is not None


async def put(
    conn: AsyncConnection, digest: str, project: str, size_bytes: int, chunks: AsyncIterator[bytes]
) -> None:
    """Keep an archive that was compared with its digest, and note that a project has it. One that is there stays as
    it is."""
    c, p = tables.code, tables.code_project
    used = {"use_time": func.clock_timestamp()}
    # Its row is locked from here on, so what is there now is not deleted meanwhile.
    await conn.execute(
        upsert(c)
        .values(digest=digest, size_bytes=size_bytes)
        .on_conflict_do_update(index_elements=[c.c.digest], set_=used)
    )
    await conn.execute(upsert(p).values(digest=digest, project=project).on_conflict_do_nothing())
    if await chunk(conn, digest, 0) is not None:
        return
    number = 0
    async for data in chunks:
        await conn.execute(insert(tables.code_chunk).values(digest=digest, number=number, data=data))
        number += 1


async def chunk(conn: AsyncConnection, digest: str, number: int) -> bytes | None:
    """One chunk of an archive; None behind the last one, and where there is no such code."""
    k = tables.code_chunk
    query = select(k.c.data).where(k.c.digest == digest, k.c.number == number)
    return (await conn.execute(query)).scalar_one_or_none()


async def forget_unneeded(conn: AsyncConnection, age: timedelta, most: int) -> int:
    """Forget at most so many codes that nobody needs and nobody asked for lately. Returns how many."""
    c = tables.code
    some = select(c.c.digest).where(_unneeded(age)).order_by(c.c.use_time).limit(most)
    some = some.with_for_update(skip_locked=True)
    # Asked again of each row, for it may have been touched since.
    gone = delete(c).where(c.c.digest == any_(func.array(some.scalar_subquery())), _unasked(age))
    return (await conn.execute(gone)).rowcount


async def count_unneeded(conn: AsyncConnection, age: timedelta) -> int:
    """How many codes may be forgotten."""
    query = select(func.count()).select_from(tables.code).where(_unneeded(age))
    return int((await conn.execute(query)).scalar_one())


def _unneeded(age: timedelta) -> ColumnElement[bool]:
    c, s = tables.code, tables.study
    ended = s.c.end_time <= func.now() - age
    wanted = exists().where(s.c.code == c.c.digest, or_(s.c.end_time.is_(None), ~ended))
    return and_(_unasked(age), ~wanted)


def _unasked(age: timedelta) -> ColumnElement[bool]:
    return tables.code.c.use_time < func.now() - max(age, AT_LEAST)
