"""Read parts of trials' logs from workers, for clients of this replica.

A part is requested over the worker's session, which another replica may hold. Then the request goes to that
replica through a row in Postgres, with a notification, and the part returns the same way. Replicas need not know
each other's address.

Every part is requested separately, and the next one only when a reader needs it. So the data in flight is bounded
by the number of readers and `AT_ONCE`, and a reader that goes away leaves at most one part behind, which the
cleaner deletes. If a message is lost, the reader is told after `PATIENCE_S` that the worker did not answer, and
may ask again.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.errors import DatabaseUnavailableError, HeadraceError, WorkerAwayError
from headrace.v1 import worker_pb2
from headrace_services.scheduler.store import log_reads
from headrace_services.scheduler.store.database import transaction

log = logging.getLogger(__name__)

AT_ONCE = 4
"""How many parts are read from other replicas at once."""
PATIENCE_S = 15.0
LOOK_EVERY_S = 1.0


class LogSession(Protocol):
    """The part of a worker's session that is needed here."""

    async def read_log(self, ask: worker_pb2.ReadLog) -> worker_pb2.LogChunk:
        """Ask the worker. Raises WorkerAwayError if it does not answer."""


Find = Callable[[int], LogSession | None]
"""Finds a worker's session, if this replica holds it."""


class LogReads:
    """One on each replica."""

    def __init__(self, engine: AsyncEngine, find: Find, tasks: asyncio.TaskGroup) -> None:
        self._engine = engine
        self._find = find
        self._tasks = tasks
        self._few = asyncio.Semaphore(AT_ONCE)
        self._waiting: dict[int, asyncio.Event] = {}
        self._serving: set[int] = set()

    async def read(self, worker_id: int, ask: worker_pb2.ReadLog) -> worker_pb2.LogChunk:
        """Read a part of a log from a worker. Raises WorkerAwayError or DatabaseUnavailableError."""
        session = self._find(worker_id)
        if session is not None:
            return await session.read_log(ask)
        async with self._few:
            return await self._read_elsewhere(worker_id, ask)

    def heard(self, payload: str) -> None:
        """Handle a notification."""
        what, _, number = payload.partition(" ")
        if not number.isdecimal():
            return
        if what == "told" and (waiting := self._waiting.get(int(number))):
            waiting.set()
        elif what == "ask" and self._find(int(number)) is not None:
            self._tasks.create_task(self._serve(int(number)), name=f"logs of worker {number}")

    async def _read_elsewhere(self, worker_id: int, ask: worker_pb2.ReadLog) -> worker_pb2.LogChunk:
        async with transaction(self._engine) as conn:
            read_id = await log_reads.put_ask(conn, worker_id, ask.SerializeToString())
        told = self._waiting[read_id] = asyncio.Event()
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        async with asyncio.timeout(LOOK_EVERY_S):
                            await told.wait()
                    except TimeoutError:
                        pass  # the notification may have been lost
                    async with transaction(self._engine) as conn:
                        chunk = await log_reads.pop(conn, read_id)
                    if chunk is not None:
                        return worker_pb2.LogChunk.FromString(chunk)
        except TimeoutError:
            async with transaction(self._engine) as conn:
                await log_reads.give_up(conn, read_id)
            raise WorkerAwayError(
                "the worker did not answer through the replica that it is connected to"
            ) from None
        finally:
            del self._waiting[read_id]

    async def _serve(self, worker_id: int) -> None:
        """Answer the requests of other replicas for a worker whose session is here."""
        try:
            async with transaction(self._engine) as conn:
                asked = await log_reads.asks(conn, worker_id)
            for read_id, ask in asked:
                if read_id not in self._serving:
                    await self._answer(worker_id, read_id, worker_pb2.ReadLog.FromString(ask))
        except DatabaseUnavailableError as error:
            log.info("parts of logs were not handed over: %s", error)
        except Exception:
            log.exception("parts of logs were not handed over")

    async def _answer(self, worker_id: int, read_id: int, ask: worker_pb2.ReadLog) -> None:
        session = self._find(worker_id)
        if session is None:
            return
        self._serving.add(read_id)
        try:
            chunk = await session.read_log(ask)
        except HeadraceError as error:
            log.info("a part of a log was not read: %s", error)
            chunk = worker_pb2.LogChunk(trouble=worker_pb2.LOG_TROUBLE_AWAY)
        finally:
            self._serving.discard(read_id)
        async with transaction(self._engine) as conn:
            await log_reads.tell(conn, read_id, chunk.SerializeToString())
