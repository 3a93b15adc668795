"""Bring a database's schema up to date.

Replicas may start at the same time: an advisory lock lets only one migrate. All pending migrations are one
transaction, so one that fails leaves the schema as it was. A migration that needs newer programs first waits until
replicas that are too old have exited (`schema`). If they do not, it changes nothing and names them.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace_services.scheduler.store import schema
from headrace_services.scheduler.store.database import is_conflict
from headrace_services.scheduler.store.schema import (
    Migration,
    Replica,
    SchemaError,
    Standing,
)

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger(__name__)

MIGRATION_LOCK = 0x4865_6164_7261_6365
"""The advisory lock's key: "Headrace" in ASCII."""
WAIT_S = 60.0
"""How long a migration waits for another one, and for replicas that are too old for it."""
LOOK_EVERY_S = 0.2
LOCK_TIMEOUT_S = 5.0
"""For a table's lock. Meanwhile everyone who needs the table waits behind the migration."""
ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The pending work."""

    standing: Standing
    pending: list[Migration]
    replicas: list[Replica]

    @property
    def needed(self) -> str:
        """The version that programs must know afterwards; empty if nothing is to be done."""
        return max((one.min_compatible for one in self.pending), default="")


async def look(engine: AsyncEngine) -> Looked:
    """Find the pending migrations. Raises SchemaError if the database is too new for this program."""
    async with guard(engine, "headrace migrate") as conn:
        return await _look(conn)


async def _look(conn: schema.Connection) -> Looked:
    standing = await schema.read(conn)
    return Looked(
        standing=standing,
        pending=schema.pending(standing),
        replicas=await schema.replicas(conn),
    )


async def migrate(
    engine: AsyncEngine,
    *,
    wait_s: float = WAIT_S,
    say: Callable[[str], None] = log.info,
) -> list[Migration]:
    """Apply every migration that the database lacks. Safe to repeat. Returns what was applied.

    Raises SchemaError if the database is too new for this program, or the migration cannot be done within `wait_s`.
    The schema is unchanged then.
    """
    async with guard(engine, "headrace migrate") as conn:
        if not (found := await _look(conn)).pending:
            return []
        await _alone(conn, wait_s)
        if not (found := await _look(conn)).pending:
            return []  # another one did it meanwhile
        await _without_old(conn, found, wait_s, say)
        await _apply(engine, found.pending)
        say(f"the schema is {found.pending[-1].revision} now")
        return found.pending


@asynccontextmanager
async def guard(engine: AsyncEngine, name: str) -> AsyncIterator[schema.Connection]:
    """A separate connection, whose locks end with it."""
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    async with await psycopg.AsyncConnection.connect(
        url, autocommit=True, connect_timeout=5, application_name=name[:63]
    ) as conn:
        yield conn


async def _alone(conn: schema.Connection, wait_s: float) -> None:
    """Wait for another migration to end."""
    deadline = time.monotonic() + wait_s
    while True:
        row = await (await conn.execute("SELECT pg_try_advisory_lock(%s)", (MIGRATION_LOCK,))).fetchone()
        if row and row[0]:
            return
        if time.monotonic() > deadline:
            raise SchemaError(
                f"another migration of this database did not end within {wait_s:g} s",
                remedy="Wait for it, or look in pg_stat_activity for what it waits for.",
            )
        await asyncio.sleep(LOOK_EVERY_S)


async def _without_old(
    conn: schema.Connection, found: Looked, wait_s: float, say: Callable[[str], None]
) -> None:
    """Wait until the replicas that are too old for the new schema have exited."""
    await schema.announce(conn, found.needed)
    deadline, told = time.monotonic() + wait_s, False
    while old := await schema.replicas(conn, before=found.needed):
        names = ", ".join(f"{one.name} ({one.revision})" for one in old)
        if not told:
            say(f"waiting for replicas that are too old for schema {found.needed} to exit: {names}")
            told = True
        if time.monotonic() > deadline:
            raise SchemaError(
                f"replicas that are too old for schema {found.needed} still run after {wait_s:g} s: {names}; "
                "nothing was changed",
                remedy="Stop them, then migrate again.",
            )
        await asyncio.sleep(LOOK_EVERY_S)


async def _apply(engine: AsyncEngine, due: Sequence[Migration]) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            async with engine.begin() as conn:
                for setting in ("statement_timeout", "idle_in_transaction_session_timeout"):
                    await conn.execute(text(f"SET LOCAL {setting} = 0"))
                await conn.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S:g}s'"))
                await conn.run_sync(_upgrade)
                await conn.run_sync(_remember, due)
        except Exception as error:
            if not is_conflict(error):
                raise
            if attempt == ATTEMPTS:
                raise SchemaError(
                    f"other transactions kept the schema's tables locked, {ATTEMPTS} times for {LOCK_TIMEOUT_S:g} s; "
                    "nothing was changed",
                    remedy="Look in pg_stat_activity for long transactions, then migrate again.",
                ) from error
            await asyncio.sleep(LOOK_EVERY_S * attempt)
        else:
            return


def alembic_config() -> "Config":
    """Return the configuration that points at the migrations."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(schema.MIGRATIONS))
    return config


def _upgrade(connection: Connection) -> None:
    from alembic import command

    config = alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _remember(connection: Connection, due: Sequence[Migration]) -> None:
    """Record in the database what the new migrations need, and notify the replicas."""
    connection.execute(
        text(
            "INSERT INTO schema_version (revision, min_compatible) VALUES (:revision, :needed)"
            " ON CONFLICT (revision) DO UPDATE SET min_compatible = EXCLUDED.min_compatible"
        ),
        [{"revision": one.revision, "needed": one.min_compatible} for one in due],
    )
    connection.execute(text("SELECT pg_notify(:channel, '')"), {"channel": schema.CHANNEL})
