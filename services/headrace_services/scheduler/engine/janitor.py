"""Delete what is no longer needed: studies that users deleted, and rows that have reached their age limit.

One replica at a time does it. It holds an advisory lock of Postgres on a connection that is used only for this
work. If the replica dies, so does its connection, and the lock with it. Each batch is a transaction of its own,
which takes at most `BATCH_S`: the number of rows is adjusted to that. After each batch the janitor rests for as
long, so that it uses half of one connection's time. A crash between two batches loses nothing: the rows show what
is left to do (`store.removal`, `store.aging`).

Failures are logged and retried in the next round.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import perf_counter

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from headrace.ages import Ages
from headrace_services.scheduler.store import (
    aging,
    code,
    joins,
    log_reads,
    removal,
    requests,
    tokens,
    workers,
)
from headrace_services.scheduler.store.aging import Due
from headrace_services.scheduler.store.database import is_strained
from headrace_services.scheduler.store.removal import Batch, Key, Part

log = logging.getLogger(__name__)

FIRST_S = 10.0
"""The delay after the start: returning workers and their reports come first."""
EVERY_S = 60.0
BATCH_S = 0.025
"""How long one transaction may take."""
LEAST, MOST = 200, 5000
"""The number of rows in one batch. On a busy machine a batch mostly waits: fewer rows would not make it shorter."""
STUDIES_AT_ONCE = 100
_FIRST = datetime.fromtimestamp(0, UTC)
JANITOR_LOCK = 0x4865_6164_7261_6A61
"""The advisory lock's key: "Headraja" in ASCII."""

Forget = Callable[[AsyncConnection, timedelta, int], Awaitable[int]]
"""Deletes at most this many rows that are older than an age. Returns how many it deleted."""
ForgetOver = Callable[[AsyncConnection, int], Awaitable[int]]
"""The same for rows that carry their own expiry."""
_OF_CLUSTER: dict[str, Forget] = {
    "requests": requests.forget_old,
    "workers": workers.forget_gone,
    "tombstones": aging.forget_tombstones,
    "code": code.forget_unneeded,
}
_OVER: dict[str, ForgetOver] = {
    "ephemeral workers": workers.forget_ephemeral,
    "old tokens": tokens.forget_over,
    "old join tokens": joins.forget_old,
    "parts of logs": log_reads.forget_old,
}
_OF_STUDIES = ("studies", *aging.OF_ROWS, "checkpoints")


@dataclass(slots=True)
class Done:
    """The work that rounds have done."""

    rows: dict[str, int] = field(default_factory=dict)
    """The number of rows, by kind."""
    transactions: int = 0
    longest_s: float = 0.0
    spent_s: float = 0.0
    """The time spent in transactions. `longest_s` is the longest of them."""

    def add(self, what: str, rows: int, took_s: float) -> None:
        """One transaction."""
        if rows:
            self.rows[what] = self.rows.get(what, 0) + rows
        self.transactions += 1
        self.longest_s = max(self.longest_s, took_s)
        self.spent_s += took_s


Work = Callable[[AsyncConnection, Done], Awaitable[None]]
Some = Callable[[Key | None, int], Awaitable[Batch]]
"""Deletes at most this many rows, after a key."""


class Janitor:
    """One on each replica; only one works at a time."""

    def __init__(
        self, engine: AsyncEngine, ages: Ages | None = None, *, rest: float = 1.0, batch_s: float = BATCH_S
    ) -> None:
        self.ages = ages or Ages()
        self._engine = engine
        self._rest = rest
        """How long it rests after a batch, as a multiple of the time that the batch took."""
        self._batch_s = batch_s
        self._size = LEAST
        self._wanted = asyncio.Event()
        self.looked_through: dict[str, datetime] = {}
        """For each kind: rows of studies that ended before this time are already deleted. So no round scans the
        whole past."""

    def wake(self) -> None:
        """Start the next round now."""
        self._wanted.set()

    async def run(self) -> None:
        """Clean up soon after the start, then every minute, with jitter, and when woken, until cancelled."""
        pause_s = FIRST_S
        while True:
            try:
                async with asyncio.timeout(pause_s * random.uniform(0.8, 1.2)):  # noqa: S311  # jitter
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            await self.clean()
            pause_s = EVERY_S

    async def clean(self) -> Done | None:
        """Delete everything that can be deleted. Returns the work done, or None if another replica is doing it."""
        done = Done()
        try:
            async with self._turn() as conn:
                if conn is None:
                    return None
                for what, work in self._works():
                    with self.one_of_many(conn, what):
                        await work(conn, done)
        except Exception:
            log.warning("the janitor's connection was lost; the next round continues", exc_info=True)
        if done.rows:
            told = ", ".join(f"{rows} {what}" for what, rows in done.rows.items())
            log.info(
                "deleted %s in %d transactions, the longest of %.0f ms, %.0f ms in all",
                told,
                done.transactions,
                done.longest_s * 1e3,
                done.spent_s * 1e3,
            )
        return done

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[AsyncConnection | None]:
        """A connection that holds the lock; None if another replica holds it."""
        conn = await self._engine.connect()
        ended_well = False
        try:
            async with conn.begin():
                mine = (await conn.execute(_LOCK, {"key": JANITOR_LOCK})).scalar_one()
            yield conn if mine else None
            if mine:
                async with conn.begin():
                    await conn.execute(_UNLOCK, {"key": JANITOR_LOCK})
            ended_well = True
        finally:
            if not ended_well:  # the pool must not keep a connection that holds the lock
                await conn.invalidate()
            await conn.close()

    def _works(self) -> "list[tuple[str, Work]]":
        """The work in order: whole studies first, so that their rows need not be checked one by one."""
        aged = {
            kind: _Aging(self, kind, age)
            for kind in _OF_STUDIES
            if (age := getattr(self.ages, kind)) is not None
        }
        old = {
            kind: _ForgettingOld(self, kind, forget, age)
            for kind, forget in _OF_CLUSTER.items()
            if (age := getattr(self.ages, kind)) is not None
        }
        over = {what: _ForgettingOver(self, what, forget) for what, forget in _OVER.items()}
        works: dict[str, Work] = {**aged, **old, **over}
        first = {"studies": works.pop("studies")} if "studies" in works else {}
        return [*first.items(), ("deleted studies", self._remove_studies), *works.items()]

    async def _remove_studies(self, conn: AsyncConnection, done: Done) -> None:
        left: set[int] = set()
        while True:
            async with conn.begin():
                found = await removal.deleted_studies(conn, STUDIES_AT_ONCE + len(left))
            found = [study_id for study_id in found if study_id not in left]
            if not found:
                return
            for study_id in found:
                left.add(study_id)  # if this one fails, the others are deleted anyway
                with self.one_of_many(conn, f"study {study_id}"):
                    for part in removal.PARTS:
                        await self.in_batches(
                            conn, done, f"{part.table.name}s", _removing(conn, study_id, part)
                        )
                    await self.in_batches(conn, done, "deleted studies", _removing(conn, study_id, None))

    @contextmanager
    def one_of_many(self, conn: AsyncConnection, what: str) -> Iterator[None]:
        """Leave a study that fails to the next round, without affecting the others."""
        try:
            yield
        except Exception:
            if conn.invalidated or conn.closed:
                raise
            log.warning("could not delete %s; the next round tries again", what, exc_info=True)

    async def in_batches(
        self,
        conn: AsyncConnection,
        done: Done,
        what: str,
        some: Some,
    ) -> None:
        """Delete repeatedly, each time in a transaction of its own, until nothing is left."""
        after: Key | None = None
        while True:
            began = perf_counter()
            try:
                async with conn.begin():
                    batch = await some(after, self._size)
            except Exception as error:
                self._size = max(1, self._size // 4)
                if is_strained(error) and self._size > 1 and not conn.invalidated:
                    continue  # it took too long: try with fewer rows
                raise
            took_s = perf_counter() - began
            done.add(what, batch.rows, took_s)
            if batch.rows >= self._size:
                fitting = int(self._size * min(2.0, self._batch_s / max(took_s, 1e-6)))
                self._size = min(MOST, max(min(LEAST, 2 * self._size), fitting))
            if batch.through is None:
                return
            after = batch.through
            await asyncio.sleep(self._rest * took_s)


class _ForgettingOld:
    """Rows of the cluster that have reached their age limit."""

    def __init__(self, janitor: Janitor, kind: str, forget: Forget, age: timedelta) -> None:
        self._janitor, self._kind, self._forget, self._age = janitor, kind, forget, age

    async def __call__(self, conn: AsyncConnection, done: Done) -> None:
        async def some(after: Key | None, most: int) -> Batch:  # noqa: ARG001  # these are found anew each time
            rows = await self._forget(conn, self._age, most)
            return Batch(rows=rows, through=() if rows >= most else None)

        await self._janitor.in_batches(conn, done, self._kind, some)


class _ForgettingOver:
    """Rows that have expired."""

    def __init__(self, janitor: Janitor, what: str, forget: ForgetOver) -> None:
        self._janitor, self._what, self._forget = janitor, what, forget

    async def __call__(self, conn: AsyncConnection, done: Done) -> None:
        async def some(after: Key | None, most: int) -> Batch:  # noqa: ARG001  # these are found anew each time
            rows = await self._forget(conn, most)
            return Batch(rows=rows, through=() if rows >= most else None)

        await self._janitor.in_batches(conn, done, self._what, some)


class _Aging:
    """Parts of ended studies that have reached their age limit."""

    def __init__(self, janitor: Janitor, kind: str, age: timedelta) -> None:
        self._janitor, self._kind, self._age = janitor, kind, age

    async def __call__(self, conn: AsyncConnection, done: Done) -> None:
        left: dict[int, datetime] = {}
        since = self._janitor.looked_through.get(self._kind, _FIRST)
        async with conn.begin():
            through = await aging.over_before(conn, self._age)
        while True:
            async with conn.begin():
                found = await aging.due(conn, self._kind, self._age, STUDIES_AT_ONCE + len(left), since)
            found = [one for one in found if one.id not in left]
            if not found:
                break
            for one in found:
                left[one.id] = one.end_time
                with self._janitor.one_of_many(conn, f"{self._kind} of study {one.id}"):
                    if await self._one(conn, done, one):
                        del left[one.id]
        self._janitor.looked_through[self._kind] = min([through, *left.values()])

    async def _one(self, conn: AsyncConnection, done: Done, one: Due) -> bool:
        """Delete what is due of a study. Returns False if the study continues or is busy: the next round checks
        again."""
        keep: frozenset[int] = frozenset()
        if self._kind == "checkpoints":
            async with conn.begin():
                found = await aging.worth_keeping(conn, one)
            if found is None:
                return False
            keep = found
        held = True

        async def some(after: Key | None, most: int) -> Batch:
            nonlocal held
            held = await aging.hold(conn, one)
            if not held:
                return Batch(rows=0, through=None)
            if self._kind == "studies":
                await removal.mark_deleted(conn, one.id)
                return Batch(rows=1, through=None)
            if self._kind == "checkpoints":
                batch = await aging.forget_checkpoints(conn, one, keep, most, after)
            else:
                batch = await aging.remove_aged(conn, self._kind, one, most, after)
            if batch.through is None or after is None:
                await aging.note_aged(conn, self._kind, one, all_of_it=batch.through is None)
            return batch

        await self._janitor.in_batches(conn, done, self._kind, some)
        return held


def _removing(conn: AsyncConnection, study_id: int, part: Part | None) -> Some:
    """How to delete rows of a deleted study: those of a part or, in the end, its own row."""

    async def some(after: Key | None, most: int) -> Batch:
        if part is not None:
            return await removal.remove_some(conn, study_id, part, most, after=after)
        await removal.remove_study(conn, study_id)
        return Batch(rows=1, through=None)

    return some


_LOCK = text("SELECT pg_try_advisory_lock(:key)")
_UNLOCK = text("SELECT pg_advisory_unlock(:key)")
