"""The code of studies: archives by digest, in chunks, which every replica sees.

A code is kept while an unfinished study needs it, and for a while after the last study with it has ended, since
`headrace extend` and `headrace retry` let such a study continue. It is also kept for a while after a client has
asked for it, because that client is about to create a study. Creating a study touches the row in the same
transaction, so a deletion that waits for the row finds it young.

A code is stored once, with the projects that shipped it. No other project learns that it exists, and none may
create a study with it. A client that has to upload the archive thereby shows that its project has it too.
"""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    and_,
    any_,
    cast,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.errors import QuotaExceededError
from headrace.spec.names import DEFAULT_PROJECT
from headrace_services.scheduler.store import tables

CHUNK_BYTES = 1 << 20
DEFAULT_MIB = 10 << 10
"""The total size of the codes of a project, unless another limit is set."""
AT_LEAST = timedelta(days=1)
"""How long a code is kept at least after a client has asked for it, whatever its age limit: the client creates a
study next."""


async def needed(conn: AsyncConnection) -> set[str]:
    """The digests that unfinished studies need: these must be kept, here and wherever else they are stored."""
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
    """Store an archive that was checked against its digest, and record that a project has it. An existing one is
    left as it is. Raises QuotaExceededError, with nothing to commit."""
    c, p = tables.code, tables.code_project
    used = {"use_time": func.clock_timestamp()}
    # Its row is locked from here on, so that it is not deleted meanwhile.
    await conn.execute(
        upsert(c)
        .values(digest=digest, size_bytes=size_bytes)
        .on_conflict_do_update(index_elements=[c.c.digest], set_=used)
    )
    if await chunk(conn, digest, 0) is None:
        number = 0
        async for data in chunks:
            await conn.execute(insert(tables.code_chunk).values(digest=digest, number=number, data=data))
            number += 1
    # Last, because the project's row is locked from here on: cycles that place for it pass it over.
    await require_room(conn, digest, project, size_bytes=size_bytes, lock=True)
    await conn.execute(upsert(p).values(digest=digest, project=project).on_conflict_do_nothing())


async def require_room(
    conn: AsyncConnection, digest: str, project: str, *, size_bytes: int, lock: bool = False
) -> None:
    """Raise QuotaExceededError if a project has no room for another code of this size. With `lock` no other client
    can store one for it until the transaction ends. A code that it already has needs no room."""
    p, owns = tables.project, tables.code_project
    has_it = select(owns.c.digest).where(owns.c.digest == digest, owns.c.project == project)
    if (await conn.execute(has_it)).first() is not None:
        return
    most = select(p.c.code_mib).where(p.c.name == project)
    if lock:
        most = most.with_for_update(key_share=True)
    mib = (await conn.execute(most)).scalar_one_or_none()
    most_bytes = (DEFAULT_MIB if mib is None else mib) << 20
    held_bytes = int((await conn.execute(held_by(project))).scalar_one())
    if held_bytes + max(1, size_bytes) > most_bytes:
        from headrace.code.sizes import size  # only those who ship code need this

        raise QuotaExceededError(
            f"project '{project}' has {size(held_bytes)} of code kept, and may have {size(most_bytes)}: no room for "
            f"{size(size_bytes) if size_bytes else 'more'}",
            remedy="Code that no study needs is deleted after a while. Or ship less, with a .headraceignore. Or ask an "
            f"admin of project '{DEFAULT_PROJECT}': `headrace project set {project} --code-mib N`.",
        )


def held_by(project: str | ColumnElement[str]) -> Select[Any]:
    """The total size of a project's codes, in bytes."""
    c, p = tables.code, tables.code_project
    total = cast(func.coalesce(func.sum(c.c.size_bytes), 0), BigInteger)
    return select(total).select_from(c).join(p, p.c.digest == c.c.digest).where(p.c.project == project)


async def chunk(conn: AsyncConnection, digest: str, number: int) -> bytes | None:
    """One chunk of an archive; None after the last one, and if there is no such code."""
    k = tables.code_chunk
    query = select(k.c.data).where(k.c.digest == digest, k.c.number == number)
    return (await conn.execute(query)).scalar_one_or_none()


async def is_run_by(conn: AsyncConnection, digest: str, worker: str) -> bool:
    """Whether a worker runs a trial, or a part of one, of a study that has this code."""
    w, s, one, part = tables.worker, tables.study, tables.lease, tables.grant_part
    query = (
        select(one.c.id)
        .join_from(w, part, part.c.worker_id == w.c.id)
        .join(one, and_(one.c.grant_id == part.c.grant_id, one.c.live))
        .join(s, s.c.id == one.c.study_id)
        .where(w.c.name == worker, s.c.code == digest)
        .limit(1)
    )
    return (await conn.execute(query)).first() is not None


async def forget_unneeded(conn: AsyncConnection, age: timedelta, most: int) -> int:
    """Delete at most this many codes that are not needed and were not requested lately. Returns how many."""
    c = tables.code
    some = select(c.c.digest).where(_unneeded(age)).order_by(c.c.use_time).limit(most)
    some = some.with_for_update(skip_locked=True)
    # Checked again for each row, as it may have been touched meanwhile.
    gone = delete(c).where(c.c.digest == any_(func.array(some.scalar_subquery())), _unasked(age))
    return (await conn.execute(gone)).rowcount


async def count_unneeded(conn: AsyncConnection, age: timedelta) -> int:
    """How many codes may be deleted."""
    query = select(func.count()).select_from(tables.code).where(_unneeded(age))
    return int((await conn.execute(query)).scalar_one())


def _unneeded(age: timedelta) -> ColumnElement[bool]:
    c, s = tables.code, tables.study
    ended = s.c.end_time <= func.now() - age
    wanted = exists().where(s.c.code == c.c.digest, or_(s.c.end_time.is_(None), ~ended))
    return and_(_unasked(age), ~wanted)


def _unasked(age: timedelta) -> ColumnElement[bool]:
    return tables.code.c.use_time < func.now() - max(age, AT_LEAST)
