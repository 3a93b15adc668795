"""The statements of a cycle, sent to Postgres together: many statements, one round trip.

SQLAlchemy compiles each one from the tables once, when it first runs. They run in psycopg's pipeline mode, each
prepared once on a connection (decision 0024).

A statement over many rows takes them as one JSON array of objects (the parameter `rows`), which Postgres expands
by the types of the table's columns. So the number of statements does not grow with the number of rows.
"""

from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.pq.abc import PGconn
from psycopg.rows import namedtuple_row
from psycopg.waiting import Ready, Wait
from sqlalchemy import Column, TableValuedAlias, bindparam, column, func
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.asyncio import AsyncConnection as Connection
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler

from headrace_services.scheduler.store.database import driver_of

_DIALECT: Dialect = PGDialect_psycopg(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]  # SQLAlchemy does not type it

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """The text of a statement with $1, $2 and so on."""

    text: bytes
    names: tuple[str, ...]
    """The names of $1, $2 and so on."""
    constants: Row
    """The values of those that are always the same."""


class Statement:
    """A statement over the tables. It is built and compiled when it first runs, so that a scheduler need not build
    all of them before it serves: a cycle of reports runs one in four."""

    def __init__(self, build: Callable[[], ClauseElement]) -> None:
        self._build = build

    @cached_property
    def compiled(self) -> Compiled:
        """The compiled form that is sent."""
        text = self._build().compile(dialect=_DIALECT)
        assert isinstance(text, SQLCompiler)
        required = {bind.key for bind in text.binds.values() if bind.required}
        constants = {name: value for name, value in text.params.items() if name not in required}
        names = tuple(dict.fromkeys(text.positiontup or ()))
        return Compiled(text=str(text).encode(), names=names, constants=constants)


def as_json(value: object) -> str:
    """Any JSON value. A number that is not finite would be null, so the rows hold it as text."""
    return _encoder.encode(value).decode()


def _plain(value: object) -> object:
    if isinstance(value, float):  # numpy's numbers are floats
        return float(value)
    raise TypeError(f"{type(value).__name__} has no JSON")


_encoder = msgspec.json.Encoder(enc_hook=_plain)


def given(columns: Mapping[str, Column[Any]]) -> TableValuedAlias:
    """The rows that a statement is run with: their names, each with the column whose type it has."""
    typed = [column(name, of.type) for name, of in columns.items()]
    spread = func.json_to_recordset(bindparam("rows", type_=JSON))
    return spread.table_valued(*typed).render_derived(name="given", with_types=True)


@dataclass(slots=True, eq=False)
class Reply:
    """What a statement returned; available when the pipeline's block has ended."""

    statement: Compiled
    values: Sequence[object]
    count: int = 0
    """How many rows it returned or changed."""
    rows: list[Any] = field(default_factory=list)
    """The rows, each with the columns as attributes."""

    @property
    def row(self) -> Any | None:
        """The first row, if there is one."""
        return self.rows[0] if self.rows else None


class Pipeline:
    """Statements that wait to be sent together."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.commits = False

    def run(self, statement: Statement, rows: Sequence[Row] | None = None, /, **values: object) -> Reply:
        """Add a statement. They run in the order in which they were added."""
        if rows is not None:
            values["rows"] = as_json(rows)
        compiled = statement.compiled
        known = {**compiled.constants, **values}
        reply = Reply(compiled, [known[name] for name in compiled.names])
        self.replies.append(reply)
        return reply

    def commit(self) -> None:
        """Commit the transaction after the last statement, in the same round trip, unless a statement fails."""
        self.commits = True


@asynccontextmanager
async def pipeline(conn: Connection) -> AsyncIterator[Pipeline]:
    """Send what the block has added, in the transaction of `conn`, and receive the replies when the block ends.

    Raises the first statement's error; the statements after it did not run then. A connection whose statements are
    interrupted is closed, as SQLAlchemy does with its own: what it has yet to receive is not known.
    """
    asked = Pipeline()
    yield asked
    if asked.replies or asked.commits:
        try:
            await send(driver_of(conn), asked)
        except BaseException as error:
            if not isinstance(error, Exception):
                await conn.invalidate()
            raise


async def send(driver: AsyncConnection[Any], asked: Pipeline) -> None:
    """Make one round trip."""
    cursors = []
    async with driver.pipeline():
        for reply in asked.replies:
            cursor = AsyncRawCursor(driver, row_factory=namedtuple_row)
            await cursor.execute(reply.statement.text, reply.values, prepare=True)
            cursors.append(cursor)
        await driver.wait(_flush(driver.pgconn))
        if asked.commits:
            await driver.commit()
    for reply, cursor in zip(asked.replies, cursors, strict=True):
        reply.count = cursor.rowcount
        if cursor.pgresult is not None and cursor.pgresult.ntuples:
            reply.rows = await cursor.fetchall()


def _flush(pgconn: PGconn) -> Generator[Wait, Ready | int, None]:
    """Send what libpq still holds, and receive replies meanwhile.

    Psycopg's pipeline tries once to send a large value. If the socket is full, it would wait for ever for the
    reply to what it has not sent.
    """
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()
