"""Connections: the engine, and which of its errors mean that the database is unavailable."""

import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psycopg
from psycopg.types.numeric import Int8Dumper
from sqlalchemy import URL, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from headrace.errors import DatabaseUnavailableError, InvalidFieldError, Violation
from headrace_services.scheduler import measures

log = logging.getLogger(__name__)

POOL_SIZE = 16
STATEMENT_TIMEOUT_MS = 60_000
IDLE_IN_TRANSACTION_MS = 10_000
"""A replica that freezes in the middle of a cycle holds the study's lock; after this time Postgres disconnects it."""
PLANS = (
    "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off"
    " -c plan_cache_mode=force_generic_plan"
)
"""A plan is made once and kept. A plan made while a study had ten trials would later scan ten thousand. So plans
must use the indexes that every statement has, whatever the size of the tables. For a statement without an index,
older servers take the penalty of the switched-off methods for a long run time, and would compile it (jit)."""
_RETRYABLE_STATES = {
    "40001",  # serialization failure
    "40P01",  # deadlock detected
    "55P03",  # lock not available
}

_OVERTAKEN = {
    "23503",  # a referenced row is gone
    "23505",  # another row has the key
    "23P01",  # another row excludes it
}
"""Constraints that fail because another transaction came first. A CHECK that fails is a defect of this program."""
_TAKEN_AWAY = {"25P03", "25P04"}
"""Postgres ended the connection of a transaction that took too long: this replica was frozen."""
_NO_SLOTS = "53300"
"""Too many connections: treated as unavailable."""
_STRAINED = ("53", "57014", "58")
"""Lack of disk space or memory, the statement timeout, and errors of the database's machine."""
_OTHER_SCHEMA = {
    "0A000",  # a cached plan whose result has changed
    "42703",  # undefined column
    "42883",  # undefined function
    "42P01",  # undefined table
}
"""A newer program has migrated the schema. This replica is about to learn of it and to exit."""
_TOO_LARGE = "54"
"""Psycopg counts a value that is too large for any row or index among the operational errors; a retry never helps."""

# A cycle runs its statements through psycopg, all others through SQLAlchemy, which wraps psycopg's errors.
_AWAY = (
    *(OperationalError, InterfaceError, PoolTimeoutError),
    *(psycopg.OperationalError, psycopg.InterfaceError),
    *(ConnectionError, TimeoutError),
)


def parse_url(url: str) -> URL:
    """Return a database URL in psycopg's dialect, from any spelling of a Postgres URL.

    Raises InvalidFieldError for any other database.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        parsed = None
    if parsed is None or parsed.get_backend_name() not in ("postgresql", "postgres"):
        shown = parsed.render_as_string() if parsed else re.sub(r"//.*@", "//***@", url)
        raise InvalidFieldError(
            [
                Violation(
                    field="database_url",
                    value=shown,
                    message="is not the URL of a Postgres database",
                    remedy="Write postgresql://user:password@host:5432/name.",
                )
            ]
        )
    return parsed.set(drivername="postgresql+psycopg")


def open_engine(url: str, *, pool_size: int = POOL_SIZE) -> AsyncEngine:
    """Return an engine; nothing is connected yet."""
    engine = create_async_engine(
        parse_url(url),
        pool_size=pool_size,
        max_overflow=0,  # making a connection for one transaction costs more than waiting for one
        pool_use_lifo=True,  # so that a quiet replica uses one connection, whose statements are prepared
        pool_timeout=30,
        pool_recycle=1800,
        json_deserializer=msgspec.json.decode,
        connect_args={
            "connect_timeout": 5,
            "client_encoding": "utf8",
            "application_name": "headrace scheduler",
            "options": f"-c statement_timeout={STATEMENT_TIMEOUT_MS} "
            f"-c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_MS} {PLANS}",
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
        },
    )
    event.listen(engine.sync_engine, "connect", _on_connect)
    return engine


def _on_connect(connection: Any, _: Any) -> None:
    driver: psycopg.AsyncConnection[Any] = connection.driver_connection
    driver.prepared_max = None  # as many as `store` uses
    driver.adapters.register_dumper(
        int, Int8Dumper
    )  # so that a statement is prepared only once for numbers of all sizes


def is_away(error: BaseException) -> bool:
    """Whether an error means that the database cannot be reached now, and not that a statement is wrong."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    state = _state(error)
    if state.startswith(_TOO_LARGE) or is_strained(error):
        return False
    if state in _TAKEN_AWAY:
        return True
    return isinstance(error, _AWAY)


def is_strained(error: BaseException) -> bool:
    """Whether the database is there but lacked time, memory or disk space for this, or has another schema now.
    Such an error says nothing about the work itself."""
    state = _state(error)
    return (state.startswith(_STRAINED) and state != _NO_SLOTS) or state in _OTHER_SCHEMA


def is_conflict(error: BaseException) -> bool:
    """Whether a transaction lost against another one and should be retried."""
    return _state(error) in _RETRYABLE_STATES


def is_overtaken(error: BaseException) -> bool:
    """Whether a row of another transaction that came first is in the way."""
    return _state(error) in _OVERTAKEN


def _state(error: BaseException) -> str:
    """Postgres' code of an error; empty if there is none, as when no connection could be made."""
    if isinstance(error, DatabaseUnavailableError) and error.__cause__ is not None:
        error = error.__cause__
    cause = error.orig if isinstance(error, DBAPIError) else error
    return (cause.sqlstate or "") if isinstance(cause, psycopg.Error) else ""


@asynccontextmanager
async def reached(engine: AsyncEngine) -> AsyncIterator[None]:
    """Report a database that cannot be reached within the block in one line. Raises DatabaseUnavailableError."""
    try:
        yield
    except Exception as error:
        if not is_away(error):
            raise
        where = engine.url.render_as_string(hide_password=True)
        reason = str(getattr(error, "orig", error)).strip().splitlines()[0]
        raise DatabaseUnavailableError(
            f"cannot reach Postgres at {where}: {reason}",
            remedy="Start the database or correct --database-url.",
        ) from error


@asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Run a block in one transaction. Raises DatabaseUnavailableError if the database is unavailable or lacks
    resources."""
    try:
        async with engine.begin() as conn:
            yield conn
    except Exception as error:
        if kind := _kind(error):
            measures.DATABASE_ERRORS.labels(kind).inc()
        if is_away(error) and not is_conflict(error):
            raise DatabaseUnavailableError("the database does not answer") from error
        if is_strained(error) and not isinstance(error, DatabaseUnavailableError):
            said = " ".join(str(error.orig if isinstance(error, DBAPIError) else error).split())
            raise DatabaseUnavailableError(f"the database could not do this now: {said[:300]}") from error
        raise


def _kind(error: BaseException) -> str:
    """The metric label for a failure of the database; empty for any other error."""
    return "conflict" if is_conflict(error) else "strained" if is_strained(error) else "away" * is_away(error)


def driver_of(conn: AsyncConnection) -> psycopg.AsyncConnection[Any]:
    """Psycopg's connection below SQLAlchemy's, with a transaction started."""
    assert conn.sync_connection is not None
    driver = conn.sync_connection.connection.driver_connection
    assert isinstance(driver, psycopg.AsyncConnection)
    return driver
