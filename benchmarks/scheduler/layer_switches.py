"""Runs a scheduler in which a layer that only serves speed can be switched off and on again by signals.

    python benchmarks/scheduler/layer_switches.py LAYER --database-url … --listen …

SIGUSR1 switches the layer off, SIGUSR2 on. `layers.py` measures the contribution of each. A switch replaces what
the modules that use a layer look up, only in this process. The scheduler's own code has no switches.
"""

import gc
import importlib
import json
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import sqlalchemy
from sqlalchemy.pool import NullPool

from headrace.cli import main
from headrace_services.scheduler.store import pipeline

Switch = Callable[[], AbstractContextManager[object]]


def _module(name: str) -> Any:
    return importlib.import_module(f"headrace_services.scheduler.{name}")


def batching() -> AbstractContextManager[object]:
    """One input per cycle."""
    return patch.object(_module("engine.runner"), "MAX_BATCH", 1)


def fold() -> AbstractContextManager[object]:
    """The policy's state is rebuilt from the rows for each cycle."""
    runner = _module("engine.runner").StudyRunner
    transact = runner._transact

    async def without(self: Any, submissions: Any) -> Any:
        self._fold = None
        return await transact(self, submissions)

    return patch.object(runner, "_transact", without)


def known_spec() -> AbstractContextManager[object]:
    """The study's spec is read and checked in each cycle."""
    cycle = _module("engine.cycle")
    open_study = cycle.open_study

    async def without(conn: Any, study_id: int, named: Any, asked: Any, _spec: Any) -> Any:
        return await open_study(conn, study_id, named, asked)

    return patch.object(cycle, "open_study", without)


def known_studies() -> AbstractContextManager[object]:
    """A study's id is read for each message, and its immutable part for each assignment."""
    known = _module("session.known_studies").KnownStudies
    id_of, by_id = known.id_of, known.by_id

    async def id_without(self: Any, uid: str) -> Any:
        self._ids.pop(uid, None)
        return await id_of(self, uid)

    async def by_id_without(self: Any, study_id: int) -> Any:
        self._studies.pop(study_id, None)
        return await by_id(self, study_id)

    return patch.multiple(known, id_of=id_without, by_id=by_id_without)


def own_sending() -> AbstractContextManager[object]:
    """SQLAlchemy runs the texts of the statements, one after the other; psycopg prepares those that come often."""
    texts: dict[Any, Any] = {}

    def text_of(statement: Any) -> Any:
        if statement not in texts:
            spelled = statement.text.decode().replace(":", r"\:")
            texts[statement] = sqlalchemy.text(re.sub(r"\$(\d+)", r":p\1", spelled))
        return texts[statement]

    async def send(conn: Any, asked: Any) -> None:
        for reply in asked.replies:
            values = {f"p{place}": value for place, value in enumerate(reply.values, 1)}
            result = await conn.execute(text_of(reply.statement), values)
            reply.count = result.rowcount
            if result.returns_rows:
                reply.rows = result.all()
        if asked.commits:
            await driver_of(conn).commit()

    driver_of = pipeline.driver_of
    return patch.multiple(pipeline, send=send, driver_of=lambda conn: conn)


def pipeline_mode() -> AbstractContextManager[object]:
    """Each statement of a cycle is a round trip of its own, and so is the commit."""

    async def send(driver: Any, asked: Any) -> None:
        for reply in asked.replies:
            cursor = pipeline.AsyncRawCursor(driver, row_factory=pipeline.namedtuple_row)
            await cursor.execute(reply.statement.text, reply.values, prepare=True)
            reply.count = cursor.rowcount
            if cursor.pgresult is not None and cursor.pgresult.ntuples:
                reply.rows = await cursor.fetchall()
        if asked.commits:
            await driver.commit()

    return patch.object(pipeline, "send", send)


def prepared_statements() -> AbstractContextManager[object]:
    """Postgres parses and plans each statement every time."""
    raw: Any = pipeline.AsyncRawCursor

    class Unprepared(raw):  # type: ignore[misc]  # its base is looked up
        async def execute(self, query: Any, params: Any = None, **more: Any) -> Any:
            return await super().execute(query, params, **{**more, "prepare": False})

    return patch.object(pipeline, "AsyncRawCursor", Unprepared)


def rows_in_one() -> AbstractContextManager[object]:
    """One statement per row, where many rows share one statement."""
    run = pipeline.Pipeline.run

    def single(self: Any, statement: Any, rows: Sequence[Any] | None = None, /, **values: Any) -> Any:
        if rows is None:
            return run(self, statement, **values)
        if "expected" in values:
            values["expected"] = 1
        return [run(self, statement, [row], **values) for row in rows][-1]

    return patch.object(pipeline.Pipeline, "run", single)


def json_by_msgspec() -> AbstractContextManager[object]:
    """The rows of statements are encoded by the standard library."""

    def plain(value: object) -> str:
        return value.isoformat() if hasattr(value, "isoformat") else str(value)

    return patch.object(pipeline, "as_json", lambda value: json.dumps(value, default=plain))


def acknowledgements_together() -> AbstractContextManager[object]:
    """Each answer to a worker is a separate message."""
    return patch.object(_module("session.outgoing"), "_parted", lambda batch: (batch, []))


def heartbeats_together() -> AbstractContextManager[object]:
    """One transaction per heartbeat."""

    async def note(self: Any, beat: Any) -> Any:
        return (await self._write([beat]))[beat]

    return patch.object(_module("session.heartbeats").Heartbeats, "note", note)


@contextmanager
def frozen_survivors() -> Iterator[None]:
    """Each full garbage collection traverses everything."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


def _by_another_engine(**changed: Any) -> AbstractContextManager[object]:
    """The cycles run on an engine that is opened differently."""
    database, runner = _module("store.database"), _module("engine.runner")
    with patch.multiple(database, **changed):
        other = database.open_engine(sys.argv[sys.argv.index("--database-url") + 1])
    return patch.object(runner, "transaction", lambda _: database.transaction(other))


def kept_plans() -> AbstractContextManager[object]:
    """Postgres chooses plans by the tables' sizes, again whenever it sees fit."""
    return _by_another_engine(PLANS="")


def one_dumper() -> AbstractContextManager[object]:
    """Numbers are sent with the smallest type; psycopg keeps 100 prepared statements."""
    return _by_another_engine(_on_connect=lambda *_: None)


def last_connection_first() -> AbstractContextManager[object]:
    """The pool hands out its connections in turn."""
    create = _module("store.database").create_async_engine
    return _by_another_engine(
        create_async_engine=lambda url, **more: create(url, **{**more, "pool_use_lifo": False})
    )


def pool() -> AbstractContextManager[object]:
    """A connection for each cycle."""
    create = _module("store.database").create_async_engine

    def without(url: Any, **more: Any) -> Any:
        kept = {name: value for name, value in more.items() if not name.startswith(("pool_", "max_"))}
        return create(url, poolclass=NullPool, **kept)

    return _by_another_engine(create_async_engine=without)


SWITCHES: dict[str, Switch] = {
    switch.__name__: switch
    for switch in (
        batching,
        fold,
        known_studies,
        known_spec,
        own_sending,
        pipeline_mode,
        prepared_statements,
        rows_in_one,
        json_by_msgspec,
        kept_plans,
        one_dumper,
        pool,
        last_connection_first,
        acknowledgements_together,
        heartbeats_together,
        frozen_survivors,
    )
}


def serve(layer: str) -> None:
    """Run a scheduler until it is told to stop."""
    replaced = ExitStack()
    signal.signal(signal.SIGUSR1, lambda *_: replaced.enter_context(SWITCHES[layer]()))
    signal.signal(signal.SIGUSR2, lambda *_: replaced.close())
    main()


if __name__ == "__main__":
    asked = sys.argv[1]
    sys.argv = ["headrace", "scheduler", *sys.argv[2:]]
    serve(asked)
