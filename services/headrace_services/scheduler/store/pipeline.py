"""The statements of a step, run in a pipeline: many at once, one wait.

SQLAlchemy says them, over the tables, once, when a module is imported; psycopg runs the text. Running them through
SQLAlchemy costs a third of a millisecond each and a wait each, and a step has a dozen (decision 0018).

A statement over many rows takes them as one JSON array of objects (the parameter `rows`), which Postgres spreads by
the types of the table's columns: what is sent does not grow with the number of rows but by the rows themselves.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy import Column, TableValuedAlias, bindparam, column, func
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler

_DIALECT: Dialect = PGDialect_psycopg()  # type: ignore[no-untyped-call]  # SQLAlchemy does not type it

Cursor = psycopg.AsyncCursor[Any]
Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Statement:
    """The text of a statement, with the values of the constants in it."""

    text: str
    constants: Row


def compiled(query: ClauseElement) -> Statement:
    """Compile a statement once, for `Pipeline.run`."""
    text = query.compile(dialect=_DIALECT)
    assert isinstance(text, SQLCompiler)
    constants = {name: bind.value for bind, name in text.bind_names.items() if not bind.required}
    return Statement(str(text), constants)


def given(columns: Mapping[str, Column[Any]]) -> TableValuedAlias:
    """The rows that a statement is run with: their names, each with the column whose type it has."""
    typed = [column(name, of.type) for name, of in columns.items()]
    spread = func.json_to_recordset(bindparam("rows", type_=JSON))
    return spread.table_valued(*typed).render_derived(name="given", with_types=True)


class Pipeline:
    """Statements under way on one connection."""

    def __init__(self, driver: psycopg.AsyncConnection[Any]) -> None:
        self._driver = driver

    async def run(
        self, statement: Statement, rows: Sequence[Row] | None = None, /, **values: object
    ) -> Cursor:
        """Send a statement. What it returned can be read from the cursor when the pipeline's block is left."""
        if rows is not None:
            values["rows"] = json.dumps(rows, separators=(",", ":"), allow_nan=False)
        cursor: Cursor = self._driver.cursor(row_factory=namedtuple_row)
        return await cursor.execute(statement.text, {**statement.constants, **values}, prepare=True)


@asynccontextmanager
async def pipeline(conn: AsyncConnection) -> AsyncIterator[Pipeline]:
    """Run the block's statements in the transaction of `conn`; an error of any of them is raised at its end at last."""
    driver = (await conn.get_raw_connection()).driver_connection
    assert isinstance(driver, psycopg.AsyncConnection)
    async with driver.pipeline():
        yield Pipeline(driver)
