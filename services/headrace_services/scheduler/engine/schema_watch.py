"""Whether this replica may continue with the database's schema: checked before it serves, when notified, and
periodically.

The watch has its own connection, through which migrations see that a replica of this version is running
(`store.schema`). If the schema needs a newer program, or a migration to such a schema waits for this replica, the
watch reports that once, and the replica drains. Workers and users' calls go to another replica; nothing is lost.

While the connection is broken, a migration does not see this replica. So a check is the first thing on a new one.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable

import psycopg
from sqlalchemy.ext.asyncio import AsyncEngine
from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from headrace_services.scheduler.measures import SCHEMA
from headrace_services.scheduler.store import schema
from headrace_services.scheduler.store.migrate import guard

log = logging.getLogger(__name__)

LOOK_EVERY_S = 30.0

Leave = Callable[[str], None]
"""Called with the reason."""


class SchemaWatch:
    """One a replica."""

    def __init__(self, engine: AsyncEngine, leave: Leave, ours: str | None = None) -> None:
        """`ours` is the version that this program knows, unless a test passes another one."""
        self._engine = engine
        self._leave = leave
        self._ours = ours or schema.head()
        self.looked = asyncio.Event()
        """Set once the schema was checked."""
        SCHEMA.labels("program").set(schema.number(self._ours))

    async def first_look(self, given_up: asyncio.Event) -> None:
        """Wait until the schema was checked, or until no one waits for it any more."""
        waits = [asyncio.create_task(one.wait()) for one in (self.looked, given_up)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for one in waits:
            one.cancel()

    async def run(self) -> None:
        """Watch until cancelled, or until the replica must leave."""
        again = AsyncRetrying(
            retry=retry_if_exception_type((psycopg.Error, OSError)),
            wait=wait_random_exponential(multiplier=0.2, max=2),
        )
        async for attempt in again:
            with attempt:
                await self._watch()

    async def _watch(self) -> None:
        name = f"headrace scheduler {socket.gethostname()}:{os.getpid()}"
        async with guard(self._engine, name) as conn:
            await conn.execute(f"LISTEN {schema.CHANNEL}")
            await schema.use(conn, self._ours)
            while not (reason := await self._why_leave(conn)):
                self.looked.set()
                async for _ in conn.notifies(timeout=LOOK_EVERY_S, stop_after=1):
                    pass
            log.error("this replica drains: %s", reason)
            self._leave(reason)
            self.looked.set()
            await asyncio.Event().wait()  # with the lock, until all accepted work is answered

    async def _why_leave(self, conn: schema.Connection) -> str:
        standing = await schema.read(conn)
        SCHEMA.labels("database").set(schema.number(standing.revision))
        return schema.too_old(standing, self._ours) or await schema.announced(conn, self._ours)
