"""Connections: the engine, and which of its errors mean that the database is away."""

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any

import msgspec
import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import QueuePool

from headrace.errors import DatabaseUnavailableError, InvalidFieldError, Violation

log = logging.getLogger(__name__)

POOL_SIZE = 16
STATEMENT_TIMEOUT_MS = 60_000
IDLE_IN_TRANSACTION_MS = 10_000
"""A replica that freezes in the middle of a step holds the study's lock; Postgres takes it away after this time."""
_PLANS = "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off"
"""A plan is made once and kept. One that was made while a study had ten trials would read all of ten thousand later:
every statement has its index, whatever the size of the tables. Where one has none, older servers take the price of what
is switched off for a long statement, and would compile it."""
_RETRYABLE_STATES = {
    "40001",  # serialization failure
    "40P01",  # deadlock detected
    "55P03",  # lock not available
}

_TAKEN_AWAY = {"25P03", "25P04"}
"""Postgres ended the connection of a transaction that took too long: this replica was frozen."""
_TOO_LARGE = "54"
"""Psycopg counts a value that no row or index can hold among the operational errors; it never passes."""

# A step runs its statements by psycopg itself, all others by SQLAlchemy, which wraps psycopg's errors.
_AWAY = (
    *(OperationalError, InterfaceError, PoolTimeoutError),
    *(psycopg.OperationalError, psycopg.InterfaceError),
    *(ConnectionError, TimeoutError),
)


def parse_url(url: str) -> URL:
    """Return a database URL, of psycopg's dialect whatever Postgres spelling it came in.

    Raises InvalidFieldError for anything but Postgres.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        parsed = None
    if parsed is None or parsed.get_backend_name() not in ("postgresql", "postgres"):
        shown = parsed.render_as_string() if parsed else url
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
    return create_async_engine(
        parse_url(url),
        pool_size=pool_size,
        max_overflow=0,  # a connection made for one transaction costs more than to wait for one
        pool_use_lifo=True,  # so that a quiet replica works on one connection, whose statements are prepared
        pool_timeout=30,
        pool_recycle=1800,
        json_deserializer=msgspec.json.decode,
        connect_args={
            "connect_timeout": 5,
            "client_encoding": "utf8",
            "prepare_threshold": None,  # `store.pipeline` has its own, which psycopg would drop
            "application_name": "headrace scheduler",
            "options": f"-c statement_timeout={STATEMENT_TIMEOUT_MS} "
            f"-c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_MS} {_PLANS}",
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
        },
    )


def is_away(error: BaseException) -> bool:
    """Whether an error says that the database cannot be reached now, and not that a statement is wrong."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    cause = error.orig if isinstance(error, DBAPIError) else error
    state = (cause.sqlstate or "") if isinstance(cause, psycopg.Error) else ""
    if state.startswith(_TOO_LARGE):
        return False
    if state in _TAKEN_AWAY:
        return True
    return isinstance(error, _AWAY)


def is_conflict(error: BaseException) -> bool:
    """Whether a transaction lost against another one and should be tried again."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return isinstance(cause, psycopg.Error) and cause.sqlstate in _RETRYABLE_STATES


@asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Run a block in one transaction. Raises DatabaseUnavailableError where the database is away."""
    try:
        async with engine.begin() as conn:
            yield conn
    except Exception as error:
        if is_away(error) and not is_conflict(error):
            raise DatabaseUnavailableError("the database does not answer") from error
        raise


class KeptConnection:
    """A connection for transactions that follow each other closely, each of which is a block under `async with`.

    The first one takes it from the pool, which costs SQLAlchemy as much as Postgres needs for a small statement. It is
    kept while blocks end their transactions themselves (`store.pipeline` commits behind the last statement) and the
    pool has more for others; a block that fails, or leaves its transaction open, ends with it as `transaction` does.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._transaction: AbstractAsyncContextManager[AsyncConnection, bool | None] | None = None
        self._conn: AsyncConnection | None = None

    async def __aenter__(self) -> AsyncConnection:
        """Begin a block. Raises DatabaseUnavailableError where the database is away."""
        if self._conn is None:
            begun = transaction(self._engine)
            self._conn = await begun.__aenter__()
            self._transaction = begun
        return self._conn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End a block. Raises DatabaseUnavailableError for errors that say that the database is away."""
        assert self._conn is not None
        if error is not None or self._is_open() or not _has_more(self._engine):
            await self._leave(kind, error, trace)

    async def give_back(self) -> None:
        """Let others have the connection, where one is kept."""
        try:
            await self._leave(None, None, None)
        except Exception:  # everything on it was committed: whoever gets it next will find out
            log.info("a connection could not be given back as it was", exc_info=True)

    async def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        begun, self._transaction, self._conn = self._transaction, None, None
        if begun is not None:
            await begun.__aexit__(kind, error, trace)

    def _is_open(self) -> bool:
        """Whether there is more to end than a block that committed; also where the connection is not as it was."""
        assert self._conn is not None
        try:
            status = driver_of(self._conn).info.transaction_status
        except SQLAlchemyError:
            return True
        return status != TransactionStatus.IDLE


def driver_of(conn: AsyncConnection) -> psycopg.AsyncConnection[Any]:
    """Psycopg's connection below SQLAlchemy's, which has begun already."""
    assert conn.sync_connection is not None
    driver = conn.sync_connection.connection.driver_connection
    assert isinstance(driver, psycopg.AsyncConnection)
    return driver


def _has_more(engine: AsyncEngine) -> bool:
    assert isinstance(engine.pool, QueuePool)
    return engine.pool.checkedout() < engine.pool.size()
