"""The pipeline: its guarantees about order, errors, guards, prepared statements and broken waits."""

import asyncio
import json

import numpy as np
import psycopg
import pytest
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Integer,
    LargeBinary,
    Text,
    bindparam,
    cast,
    func,
    insert,
    literal,
    select,
    text,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from headrace_services.scheduler.core.lifecycle import State
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.pipeline import Reply, Statement, as_json, pipeline

_r = tables.request
REMEMBER = Statement(
    lambda: insert(_r).values(
        request_id=bindparam("id", type_=Text),
        method="m",
        digest=bindparam("digest", type_=LargeBinary),
        response=b"",
    )
)
IDS = Statement(lambda: select(_r.c.request_id, _r.c.digest).order_by(_r.c.request_id))
ECHO = Statement(
    lambda: select(
        bindparam("text", type_=Text).label("text"),
        bindparam("number", type_=BigInteger).label("number"),
        bindparam("texts", type_=ARRAY(Text)).label("texts"),
        cast(bindparam("raw", type_=LargeBinary), LargeBinary).label("raw"),
        literal(7).label("seven"),
    )
)
ARRAYS = Statement(
    lambda: select(
        bindparam("texts", type_=ARRAY(Text)).label("texts"),
        bindparam("numbers", type_=ARRAY(BigInteger)).label("numbers"),
        bindparam("raws", type_=ARRAY(LargeBinary)).label("raws"),
    )
)
FAIL = Statement(lambda: select(cast(bindparam("said", type_=Text), Integer).label("number")))
SLOW = Statement(lambda: select(func.pg_sleep(30)))


Said = tuple[Statement, dict[str, object]]
NOTED: Said = (REMEMBER, {"id": "a", "digest": b""})
FAILING: Said = (FAIL, {"said": "no number"})


async def say(conn: AsyncConnection, *said: Said, commits: bool = False) -> list[Reply]:
    """Run statements in one pipeline."""
    async with pipeline(conn) as sent:
        replies = [sent.run(statement, **values) for statement, values in said]
        if commits:
            sent.commit()
    return replies


async def say_alone(
    engine: AsyncEngine, *said: Said, commits: bool = False, then: Exception | None = None
) -> None:
    """Run statements in one pipeline of one transaction, and raise an error after it."""
    async with transaction(engine) as conn:
        await say(conn, *said, commits=commits)
        if then is not None:
            raise then


async def stored(engine: AsyncEngine) -> list[str]:
    async with transaction(engine) as conn:
        async with pipeline(conn) as sent:
            found = sent.run(IDS)
        return [row.request_id for row in found.rows]


async def test_values_come_back_as_they_went(engine: AsyncEngine) -> None:
    raw = bytes(range(256))
    async with transaction(engine) as conn, pipeline(conn) as sent:
        full = sent.run(ECHO, text='a "b" \\ ü', number=-(2**62), texts=['{"', "", "NULL"], raw=raw)
        empty = sent.run(ECHO, text=None, number=None, texts=None, raw=None)
    assert full.row is not None
    assert (full.row.text, full.row.number, full.row.texts) == ('a "b" \\ ü', -(2**62), ['{"', "", "NULL"])
    assert (full.row.raw, full.row.seven, full.count) == (raw, 7, 1)
    assert empty.row is not None
    assert tuple(empty.row) == (None, None, None, None, 7)


async def test_arrays_come_back_as_they_went(engine: AsyncEngine) -> None:
    texts = [
        "",
        " ",
        "NULL",
        "null",
        '"',
        "\\",
        '\\"',
        "{",
        "}",
        ",",
        "a,b",
        "ü \u2192",
        "\n\t",
        "\\x41",
        "'",
    ]
    texts += [one + other for one in texts for other in texts]
    numbers = [0, -1, 2**63 - 1, -(2**63)]
    raws = [b"", bytes(range(256)), b'"\\,{}']
    async with transaction(engine) as conn, pipeline(conn) as sent:
        full = sent.run(ARRAYS, texts=texts, numbers=numbers, raws=raws)
        empty = sent.run(ARRAYS, texts=[], numbers=[], raws=[])
    assert tuple(full.row or ()) == (texts, numbers, raws)
    assert tuple(empty.row or ()) == ([], [], [])


async def test_a_nul_in_text_is_refused(engine: AsyncEngine) -> None:
    for texts, id_ in ((["a\0b"], "b"), ([], "a\0b")):
        with pytest.raises(psycopg.DataError, match="NUL"):
            await say_alone(
                engine,
                (ARRAYS, {"texts": texts, "numbers": [], "raws": []}),
                (REMEMBER, {"id": id_, "digest": b""}),
            )
    assert await stored(engine) == []


def test_rows_are_said_as_json() -> None:
    value = {"a": [1, 0.1, None, True, "ü\0"], "b": State.PENDING, "c": (np.float64(0.1), -1e300)}
    assert json.loads(as_json(value)) == {
        "a": [1, 0.1, None, True, "ü\0"],
        "b": "PENDING",
        "c": [0.1, -1e300],
    }
    with pytest.raises(TypeError, match="object has no JSON"):
        as_json({"a": object()})


async def test_statements_run_in_order_and_see_each_other(engine: AsyncEngine) -> None:
    async with transaction(engine) as conn, pipeline(conn) as sent:
        before = sent.run(IDS)
        changed = sent.run(REMEMBER, id="a", digest=b"\0\1")
        after = sent.run(IDS)
    assert (before.rows, changed.count) == ([], 1)
    assert [tuple(row) for row in after.rows] == [("a", b"\0\1")]
    assert await stored(engine) == ["a"]


async def test_a_commit_in_the_pipeline_is_the_transactions(engine: AsyncEngine) -> None:
    with pytest.raises(RuntimeError, match="afterwards"):
        await say_alone(engine, NOTED, commits=True, then=RuntimeError("afterwards"))
    assert await stored(engine) == ["a"]


async def test_an_error_takes_the_commit_and_all_else_with_it(engine: AsyncEngine) -> None:
    with pytest.raises(psycopg.DataError, match="no number"):
        await say_alone(engine, NOTED, FAILING, (REMEMBER, {"id": "b", "digest": b""}), commits=True)
    assert await stored(engine) == []


async def test_a_connection_is_kept_after_an_error(engine: AsyncEngine) -> None:
    """Statements prepared before the pipeline, in it, or due after it still run."""
    pids = set()
    for id_ in ("a", "b"):
        noted: Said = (REMEMBER, {"id": id_, "digest": b""})
        with pytest.raises(psycopg.DataError):
            await say_alone(engine, (IDS, {}), FAILING, noted)
        async with transaction(engine) as conn:
            driver = (await conn.get_raw_connection()).driver_connection
            assert isinstance(driver, psycopg.AsyncConnection)
            pids.add(driver.info.backend_pid)
            await say(conn, noted)
    assert await stored(engine) == ["a", "b"]
    assert len(pids) == 1


async def test_a_value_that_cannot_be_sent_takes_the_transaction_with_it(engine: AsyncEngine) -> None:
    with pytest.raises(psycopg.ProgrammingError, match="cannot adapt"):
        await say_alone(engine, NOTED, (REMEMBER, {"id": object(), "digest": b""}), commits=True)
    assert await stored(engine) == []
    await say_alone(engine, (REMEMBER, {"id": "b", "digest": b""}))  # the connection is as it was
    assert await stored(engine) == ["b"]


async def test_a_statement_is_prepared_once_whatever_the_size_of_its_numbers(engine: AsyncEngine) -> None:
    async with transaction(engine) as conn:
        for number in (1, 2**20, 2**40):
            await say(conn, (ECHO, {"text": "", "number": number, "texts": [], "raw": b""}))
        names = (await conn.exec_driver_sql("SELECT statement FROM pg_prepared_statements")).scalars()
        assert sum(ECHO.compiled.text.decode() == name for name in names) == 1


async def test_more_than_a_sockets_buffer_each_way(engine: AsyncEngine) -> None:
    """Postgres stops reading while nobody reads what it wrote: a client that only sends would wait forever."""
    large = "x" * 300_000
    async with asyncio.timeout(60), transaction(engine) as conn, pipeline(conn) as sent:
        echoes = [sent.run(ECHO, text=large, number=n, texts=[], raw=b"") for n in range(40)]
    assert all(echo.row and echo.row.text == large and echo.row.number == n for n, echo in enumerate(echoes))


async def test_a_cancelled_wait_leaves_a_usable_pool(engine: AsyncEngine) -> None:
    async def wait_long() -> None:
        async with transaction(engine) as conn, pipeline(conn) as sent:
            sent.run(REMEMBER, id="a", digest=b"")
            started.set()
            sent.run(SLOW)
            sent.commit()

    started = asyncio.Event()
    waiting = asyncio.create_task(wait_long())
    await started.wait()
    done, _ = await asyncio.wait([waiting], timeout=0.2)
    assert not done
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await stored(engine) == []


async def test_a_connection_whose_statements_are_interrupted_is_not_used_again(engine: AsyncEngine) -> None:
    pid = text("SELECT pg_backend_pid()")
    interrupted: list[int] = []

    async def wait_long() -> None:
        async with transaction(engine) as conn:
            interrupted.append((await conn.execute(pid)).scalar_one())
            async with pipeline(conn) as sent:
                sent.run(SLOW)

    for _ in range(3):  # at different places
        waiting = asyncio.create_task(wait_long())
        await asyncio.wait([waiting], timeout=0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with engine.connect() as conn:
        assert (await conn.execute(pid)).scalar_one() not in interrupted
    assert len(set(interrupted)) == 3


@pytest.mark.parametrize("commits", [False, True])
async def test_a_large_value_arrives_whole_however_slowly_the_server_reads(
    engine: AsyncEngine, commits: bool
) -> None:
    """Psycopg stops sending when the socket is full, and would wait for the answer to what it has not sent yet."""
    length = Statement(lambda: select(func.length(bindparam("text", type_=Text)).label("length")))
    async with asyncio.timeout(60), engine.connect() as conn:
        await conn.execute(text("SELECT 1"))
        async with pipeline(conn) as sent:
            replies = [sent.run(length, text="x" * 20_000_000) for _ in range(2)]
            if commits:
                sent.commit()
    assert [reply.row.length for reply in replies] == [20_000_000] * 2
