"""Rows that cannot be read: a list continues without them, and names them.

A list reads its keys first, which are plain numbers and names, and then the rest. If one row holds a value that
the code cannot process, reading all of them fails. The keys are then halved until each defect is isolated, so d
defects among n elements cost O(d log n) reads.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.store.database import is_away, is_conflict, is_strained

log = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")

MOST_BYTES = 8 * 1024 * 1024
"""How many bytes of large columns, which are not compressed, one page reads: more would not fit in its answer."""


@dataclass(frozen=True, slots=True)
class Defect:
    """An element that cannot be read or shown, and why."""

    reason: str


async def each(
    conn: AsyncConnection, keys: Sequence[K], read: Callable[[Sequence[K]], Awaitable[Sequence[T]]]
) -> list[T | Defect]:
    """The result of `read` for each key, in order, or the reason why it has none."""
    if not keys:
        return []
    try:
        async with conn.begin_nested():
            return _all(await read(keys), len(keys))
    except Exception as error:
        if is_transient(error):
            raise
        if len(keys) == 1:
            log.warning("%s cannot be read", keys[0], exc_info=error)
            return [Defect(reason_of(error))]
    half = len(keys) // 2
    return [*await each(conn, keys[:half], read), *await each(conn, keys[half:], read)]


def _all(found: Sequence[T], count: int) -> list[T | Defect]:
    if len(found) != count:
        raise LookupError(f"{count - len(found)} of {count} are not there")
    return list(found)


def within(sizes: Sequence[int], most: int = MOST_BYTES) -> int:
    """How many elements of these sizes to read at once: at least one."""
    total = 0
    for place, size in enumerate(sizes):
        total += size
        if place and total > most:
            return place
    return len(sizes)


def is_transient(error: BaseException) -> bool:
    """Whether the same might succeed later: the database is unavailable or overloaded, or another transaction came
    first."""
    return is_away(error) or is_strained(error) or is_conflict(error)


def reason_of(error: BaseException) -> str:
    """A defect in one line."""
    if isinstance(error, DBAPIError) and isinstance(error.orig, psycopg.Error):
        error = error.orig
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said[:300]}" if said else type(error).__name__
