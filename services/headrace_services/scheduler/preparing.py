"""Before a scheduler serves: wait for the database, migrate it, and detect whether it was restored from a copy.

Machines start in any order. So the scheduler waits for a database that does not answer yet, with a limit: a
supervisor must learn if it never does. If the database answers and refuses (a wrong password, an unknown
database), the scheduler does not wait.
"""

import asyncio
import logging
from time import monotonic

from psycopg import pq
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.errors import DatabaseUnavailableError
from headrace_services.scheduler.store.database import open_engine, reached
from headrace_services.scheduler.store.lineage import Restored, notice_restore
from headrace_services.scheduler.store.migrate import look, migrate
from headrace_services.scheduler.store.schema import SchemaError

log = logging.getLogger(__name__)

PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0


async def prepare(engine: AsyncEngine, *, migrates: bool, wait_s: float) -> None:
    """Reach the database, waiting for it if it is unavailable, and migrate it, or only check whether that is due.

    Raises DatabaseUnavailableError if it refuses, or does not answer within `wait_s`, and SchemaError.
    """
    until, pause_s, refusals = monotonic() + wait_s, PAUSE_S, 0
    while True:
        try:
            async with reached(engine):
                await _prepare(engine, migrates=migrates)
                return
        except DatabaseUnavailableError as error:
            refusals = 0 if await asyncio.to_thread(_is_away, engine) else refusals + 1
            if refusals > 1 or monotonic() >= until:  # only one: it may have come up just then
                raise
            if pause_s == PAUSE_S:
                log.warning("%s; waiting for it for up to %g s", error.message, wait_s)
        await asyncio.sleep(min(pause_s, max(0.0, until - monotonic())))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _is_away(engine: AsyncEngine) -> bool:
    """Whether there is no answer at the database's address, or a server that is still starting."""
    url = engine.url.set(drivername="postgresql").update_query_dict({"connect_timeout": "5"})
    found = pq.PGconn.ping(url.render_as_string(hide_password=False).encode())
    return found in (pq.Ping.NO_RESPONSE, pq.Ping.REJECT)


async def _prepare(engine: AsyncEngine, *, migrates: bool) -> None:
    async with engine.connect() as conn:
        await conn.execute(text("SELECT 1"))
    if migrates:
        await migrate(engine)
    elif due := (await look(engine)).pending:
        raise SchemaError(
            f"the database lacks {len(due)} migrations, up to {due[-1].revision}",
            remedy="Run `headrace migrate`, or start the scheduler without --no-migrate.",
        )
    await look_back(engine)


async def look_back(engine: AsyncEngine, *, certain: bool = False) -> Restored | None:
    """Detect a database that was restored from a copy, before anything is issued from it."""
    async with engine.begin() as conn:
        restored = await notice_restore(conn, certain=certain)
    if restored is not None:
        log.warning(
            "this database was restored from a copy: %d trials that were running when the copy was made resume "
            "from their last checkpoints, in new attempts",
            restored.leases,
        )
    return restored


async def mark_restored(database_url: str) -> Restored:
    """Record that a database was restored from a copy of the server's files. Raises HeadraceError."""
    engine = open_engine(database_url)
    try:
        async with reached(engine):
            await migrate(engine)
            restored = await look_back(engine, certain=True)
    finally:
        await engine.dispose()
    assert restored is not None, "it is certain"
    return restored
