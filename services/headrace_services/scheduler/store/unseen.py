"""What happened to a study since a cache was last used, a page at a time.

A replica that takes over a study reads all of it. Reading ten thousand trials at once would block the event loop
for hundreds of milliseconds, so other tasks run between two pages. The study's lock keeps the pages consistent.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Set
from functools import partial
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.core.fold import Fold
from headrace_services.scheduler.core.lifecycle import Reason
from headrace_services.scheduler.store import exploits, rows, tables

AT_ONCE = 512
"""Rows that are read between two yields to the event loop."""


async def catch_up(
    conn: AsyncConnection, study_id: int, fold: Fold, *, reopened: Set[int] = frozenset()
) -> None:
    """Fold in what happened since the fold was last used. The trials that a cycle has just `reopened` count as not
    over."""
    async for page in trials_created(conn, study_id, fold.next_number):
        for row in page:
            fold.joined(row.number, row.bracket, row.params, baseline=row.baseline)
    folds: list[tuple[int, int, Callable[[], None]]] = []
    async for page in rung_results(conn, study_id, fold.cursor):
        for row in page:
            entry = rows.rung_entry(row)
            if row.cursor > fold.cursor:
                folds.append((row.cursor, 0, partial(fold.record, entry)))
            if row.promoted_cursor is not None and row.promoted_cursor > fold.cursor:
                past = partial(fold.promoted, entry.number, entry.bracket, entry.rung)
                folds.append((row.promoted_cursor, 1, past))
    if fold.spec.shares_checkpoints:
        for exploit, cursor in await exploits.since(conn, study_id, fold.cursor):
            folds.append((cursor, 1, partial(fold.policy.exploited, exploit)))
    async for page in trials_ended(conn, study_id, fold.cursor):
        over = (row for row in page if row.number not in reopened)
        folds += [(row.end_cursor, 2, partial(fold.ended, row.number, Reason(row.reason))) for row in over]
    for place, (_, _, fold_in) in enumerate(sorted(folds, key=itemgetter(0, 1)), start=1):
        fold_in()
        if place % AT_ONCE == 0:
            await asyncio.sleep(0)  # let others run


async def trials_created(conn: AsyncConnection, study_id: int, number: int) -> AsyncIterator[list[Row[Any]]]:
    """What a policy needs to know about the trials from a number on, in order."""
    t = tables.trial
    query = select(t.c.number, t.c.bracket, t.c.params, t.c.baseline)
    async for page in _pages(conn, query.where(t.c.study_id == study_id, t.c.number >= number), t.c.number):
        yield page


async def rung_results(conn: AsyncConnection, study_id: int, cursor: int) -> AsyncIterator[list[Row[Any]]]:
    """Rung results recorded or promoted after an event, by trial and rung."""
    r = tables.rung_result
    since = or_(r.c.cursor > cursor, r.c.promoted_cursor > cursor)
    query = select(r).where(r.c.study_id == study_id, since)
    async for page in _pages(conn, query, r.c.number, r.c.rung):
        yield page


async def trials_ended(conn: AsyncConnection, study_id: int, cursor: int) -> AsyncIterator[list[Row[Any]]]:
    """Trials that ended after an event, each with the event that ended it (`end_cursor`)."""
    t = tables.trial
    query = select(t.c.number, t.c.end_cursor, t.c.reason).where(
        t.c.study_id == study_id, t.c.end_cursor > cursor
    )
    async for page in _pages(conn, query, t.c.number):
        yield page


async def _pages(
    conn: AsyncConnection, query: Select[Any], *key: ColumnElement[int]
) -> AsyncIterator[list[Row[Any]]]:
    """The rows of a query, by a unique key."""
    query, rest = query.order_by(*key).limit(AT_ONCE), query
    while True:
        page = list(await conn.execute(query))
        if page:
            yield page
        if len(page) < AT_ONCE:
            return
        last = [getattr(page[-1], column.key) for column in key if column.key]
        query = rest.where(tuple_(*key) > tuple_(*last)).order_by(*key).limit(AT_ONCE)
