"""The statements of a step, sent to Postgres in one piece: many at once, one wait.

SQLAlchemy says them, over the tables, once, when a module is imported. They run over libpq's pipeline mode through
`psycopg.pq`, below psycopg's cursors: a cursor hands each statement to the network by itself and looks each time for
what has come back, which costs a quarter of a millisecond a statement, and a step has twenty (decision 0024).

A statement over many rows takes them as one JSON array of objects (the parameter `rows`), which Postgres spreads by
the types of the table's columns: what is sent does not grow with the number of rows but by the rows themselves.

Every statement is prepared once on a connection, under a name of its own, and stays so while the connection lasts: a
transaction that is rolled back takes no prepared statement with it.
"""

from collections import namedtuple
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import psycopg
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.generators import fetch_many, send
from psycopg.pq import ConnStatus, ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from sqlalchemy import Column, TableValuedAlias, bindparam, column, func
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.dialects.postgresql.psycopg import PGCompiler_psycopg, PGDialect_psycopg
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler

from headrace_services.scheduler.store.database import driver_of


class _Compiler(PGCompiler_psycopg):
    """Writes values that are always the same into the text: a plan that is made once may use partial indexes then."""

    def visit_bindparam(self, bindparam: Any, *where: Any, **how: Any) -> Any:
        always = {} if bindparam.required else {"literal_binds": True}
        return super().visit_bindparam(bindparam, *where, **how | always)  # type: ignore[no-untyped-call]  # untyped


_DIALECT: Dialect = PGDialect_psycopg(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]  # SQLAlchemy does not type it
_DIALECT.statement_compiler = _Compiler

Row = Mapping[str, object]
Driver = psycopg.AsyncConnection[Any]
Parameters = tuple[Sequence[Any] | None, Sequence[int] | None]
"""The values of a statement as they are sent, and the format of each."""


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """The text of a statement with $1, $2 and so on."""

    text: bytes
    id: bytes
    """Its name on every connection on which it is prepared."""
    names: tuple[str, ...]
    """What $1, $2 and so on are called."""


def as_json(value: object) -> str:
    """Any JSON value. A number that is not finite, which the rows spell as text, would be null."""
    return _encoder.encode(value).decode()


def _plain(value: object) -> object:
    if isinstance(value, float):  # numpy's are floats
        return float(value)
    raise TypeError(f"{type(value).__name__} has no JSON")


_encoder = msgspec.json.Encoder(enc_hook=_plain)
_ids = count(1)


def compiled(query: ClauseElement) -> Statement:
    """Compile a statement once, for `Pipeline.run`."""
    text = query.compile(dialect=_DIALECT)
    assert isinstance(text, SQLCompiler)
    names = tuple(dict.fromkeys(text.positiontup or ()))
    return Statement(text=str(text).encode(), id=b"headrace_%d" % next(_ids), names=names)


def given(columns: Mapping[str, Column[Any]]) -> TableValuedAlias:
    """The rows that a statement is run with: their names, each with the column whose type it has."""
    typed = [column(name, of.type) for name, of in columns.items()]
    spread = func.json_to_recordset(bindparam("rows", type_=JSON))
    return spread.table_valued(*typed).render_derived(name="given", with_types=True)


@dataclass(slots=True, eq=False)
class Reply:
    """What a statement returned; there when the pipeline's block is left."""

    statement: Statement
    values: Row
    count: int = 0
    """How many rows it returned or changed."""
    _unread: tuple[Driver, PGresult] | None = None
    _rows: list[Any] = field(default_factory=list)

    @property
    def rows(self) -> list[Any]:
        """The rows, each with the columns as attributes; they are converted when they are first looked at."""
        if self._unread is not None:
            (driver, result), self._unread = self._unread, None
            adapter = Transformer(driver)
            adapter.set_pgresult(result)
            self._rows = adapter.load_rows(0, self.count, _maker(self.statement, result))
        return self._rows

    def take(self, driver: Driver, result: PGresult) -> None:
        """Take in what came back."""
        if result.status == ExecStatus.TUPLES_OK:
            self.count = result.ntuples
            self._unread = (driver, result) if self.count else None
        else:
            self.count = result.command_tuples or 0

    @property
    def row(self) -> Any | None:
        """The first row, where there is one."""
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
        reply = Reply(statement, values)
        self.replies.append(reply)
        return reply

    def commit(self) -> None:
        """Commit the transaction behind the last statement, in the same wait; where one fails, nothing is committed."""
        self.commits = True


@asynccontextmanager
async def pipeline(conn: AsyncConnection) -> AsyncIterator[Pipeline]:
    """Send what the block has added, in the transaction of `conn`, and take in the replies when the block is left.

    Raises the first statement's error; the statements behind it did not run then.
    """
    asked = Pipeline()
    yield asked
    if asked.replies or asked.commits:
        driver = driver_of(conn)
        async with driver.lock:
            await driver.wait(_talk(driver, asked))


_prepared: WeakKeyDictionary[Driver, set[bytes]] = WeakKeyDictionary()
_BEGIN, _COMMIT = b"BEGIN", b"COMMIT"


def _talk(driver: Driver, asked: Pipeline) -> Generator[Any, Any, None]:
    """Send everything, then take what comes back, one list of results for each thing sent."""
    pgconn = driver.pgconn
    parameters = [_parameters(driver, reply) for reply in asked.replies]  # what cannot be said fails here
    pgconn.enter_pipeline_mode()
    results = list[PGresult]()
    try:
        awaited = _say(driver, pgconn, asked, parameters)
        yield from send(pgconn)
        for _ in awaited:
            results += yield from fetch_many(pgconn)
        yield from fetch_many(pgconn)  # the end of the pipeline
    finally:
        _leave(pgconn)
    known = _prepared.setdefault(driver, set())
    failed: PGresult | None = None
    for what, result in zip(awaited, results, strict=True):
        if result.status in (ExecStatus.FATAL_ERROR, ExecStatus.PIPELINE_ABORTED):
            failed = failed or result
        elif isinstance(what, bytes):
            known.add(what)
    if failed is not None:
        raise error_from_result(failed, encoding=driver.info.encoding)
    for what, result in zip(awaited, results, strict=True):
        if isinstance(what, Reply):
            what.take(driver, result)


def _say(
    driver: Driver, pgconn: PGconn, asked: Pipeline, parameters: Sequence[Parameters]
) -> list[Reply | bytes | None]:
    """Queue everything in libpq. Returns what is awaited of each: a reply, the name of what was prepared, nothing."""
    awaited: list[Reply | bytes | None] = []
    if pgconn.transaction_status == TransactionStatus.IDLE and not driver.autocommit:
        pgconn.send_query_params(_BEGIN, None)
        awaited.append(None)
    known = _prepared.get(driver, ())
    new = set[bytes]()
    for reply, (values, formats) in zip(asked.replies, parameters, strict=True):
        statement = reply.statement
        if statement.id not in known and statement.id not in new:
            pgconn.send_prepare(statement.id, statement.text)
            new.add(statement.id)
            awaited.append(statement.id)
        pgconn.send_query_prepared(statement.id, values, formats)
        awaited.append(reply)
    if asked.commits:
        pgconn.send_query_params(_COMMIT, None)
        awaited.append(None)
    pgconn.pipeline_sync()
    return awaited


def _parameters(driver: Driver, reply: Reply) -> Parameters:
    """Everything as text, whose type the statement says; bytes as they are."""
    names = reply.statement.names
    if not names:
        return None, None
    dumped = [_dumped(driver, reply.values[name]) for name in names]
    return dumped, [Format.BINARY if isinstance(reply.values[name], bytes) else Format.TEXT for name in names]


def _dumped(driver: Driver, value: object) -> Any:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        if "\0" in value:
            raise psycopg.DataError("text in Postgres cannot hold a NUL character")
        return value.encode()
    if type(value) is int:
        return b"%d" % value
    if type(value) is list:
        return b"{%b}" % b",".join(map(_element, value))
    return Transformer(driver).dump_sequence([value], [PyFormat.TEXT])[0]


def _element(value: object) -> bytes:
    """A value in the text of an array, of which psycopg's own dumper takes ten times as long."""
    if type(value) is int:
        return b"%d" % value
    if isinstance(value, bytes):
        return b'"\\\\x%b"' % value.hex().encode()
    if isinstance(value, str) and "\0" not in value:
        return b'"%b"' % value.replace("\\", "\\\\").replace('"', '\\"').encode()
    raise psycopg.DataError(f"{value!r} is no element of an array in Postgres")


_makers: dict[bytes, Callable[[Sequence[Any]], Any]] = {}


def _maker(statement: Statement, result: PGresult) -> Callable[[Sequence[Any]], Any]:
    """What makes a row of its values; the columns of a statement are always the same."""
    maker = _makers.get(statement.id)
    if maker is None:
        columns = [(result.fname(place) or b"").decode() for place in range(result.nfields)]
        row_type: Any = namedtuple("Row", columns)  # type: ignore[misc]  # the names are what Postgres says
        maker = _makers[statement.id] = row_type._make
    return maker


def _leave(pgconn: PGconn) -> None:
    """Leave the pipeline mode; a connection on which that fails, because the wait was cut short, is closed."""
    if pgconn.status == ConnStatus.BAD:
        return
    try:
        pgconn.exit_pipeline_mode()
    except psycopg.OperationalError:
        pgconn.finish()
