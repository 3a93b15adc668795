"""A connection that is kept from one step to the next: until one fails, nothing is left to do, or others need it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.pool import QueuePool
from study_site import StudySite, make_spec

from headrace.errors import DatabaseUnavailableError
from headrace_services.scheduler.arrivals import Kick
from headrace_services.scheduler.step import runner as runner_module
from headrace_services.scheduler.step.runner import StudyRunner
from headrace_services.scheduler.step.submissions import Submission
from headrace_services.scheduler.step.transaction import StepResult
from headrace_services.scheduler.store import step_reads
from headrace_services.scheduler.store.database import KeptConnection, driver_of, transaction
from headrace_services.scheduler.store.pipeline import compiled, pipeline

PID = compiled(select(func.pg_backend_pid().label("pid")))


@pytest_asyncio.fixture
async def kept(engine: AsyncEngine) -> AsyncIterator[KeptConnection]:
    connection = KeptConnection(engine)
    yield connection
    await connection.give_back()


async def pid_of(conn: AsyncConnection, *, commits: bool = True) -> int:
    async with pipeline(conn) as sent:
        found = sent.run(PID)
        if commits:
            sent.commit()
    assert found.row is not None
    return int(found.row.pid)


async def one_step(kept: KeptConnection) -> int:
    async with kept as conn:
        return await pid_of(conn)


def out(engine: AsyncEngine) -> int:
    """How many connections the pool has given out."""
    assert isinstance(engine.pool, QueuePool)
    return engine.pool.checkedout()


async def test_blocks_that_commit_share_a_connection(engine: AsyncEngine, kept: KeptConnection) -> None:
    assert len({await one_step(kept) for _ in range(3)}) == 1
    assert out(engine) == 1
    await kept.give_back()
    assert out(engine) == 0
    await one_step(kept)  # and takes one again


async def test_a_block_that_leaves_its_transaction_open_ends_with_it(
    engine: AsyncEngine, kept: KeptConnection
) -> None:
    async with kept as conn:
        await conn.execute(text("CREATE TABLE seen (n int)"))
    assert out(engine) == 0
    async with transaction(engine) as conn:
        assert (await conn.execute(text("SELECT count(*) FROM seen"))).scalar_one() == 0


@pytest.mark.parametrize(
    ("error", "raised"),
    [(ValueError("wrong"), ValueError), (psycopg.OperationalError("gone"), DatabaseUnavailableError)],
)
async def test_a_block_that_fails_changes_nothing_and_gives_its_connection_back(
    engine: AsyncEngine, kept: KeptConnection, error: Exception, raised: type[Exception]
) -> None:
    async def failing() -> None:
        async with kept as conn:
            await conn.execute(text("CREATE TABLE seen (n int)"))
            raise error

    await one_step(kept)
    with pytest.raises(raised):
        await failing()
    assert out(engine) == 0
    async with transaction(engine) as conn:
        assert (await conn.execute(text("SELECT to_regclass('seen')"))).scalar_one() is None
    await one_step(kept)


async def test_a_connection_that_breaks_between_two_blocks_fails_one_of_them(
    engine: AsyncEngine, kept: KeptConnection
) -> None:
    await _kill(engine, await one_step(kept))
    with pytest.raises(DatabaseUnavailableError):
        await one_step(kept)
    await one_step(kept)


async def test_a_broken_connection_is_given_back_without_a_word(
    engine: AsyncEngine, kept: KeptConnection
) -> None:
    async with kept as conn:
        await pid_of(conn)
        driver = driver_of(conn)
    driver.pgconn.finish()
    await kept.give_back()
    assert out(engine) == 0
    await one_step(kept)


async def test_where_the_pool_is_used_up_nothing_is_kept(engine: AsyncEngine) -> None:
    assert isinstance(engine.pool, QueuePool)
    size = engine.pool.size()
    several = [KeptConnection(engine) for _ in range(size + 2)]
    async with asyncio.timeout(10):  # whoever kept the last one would make the others wait for ever
        for _ in range(3):
            for kept in several:
                await one_step(kept)
    assert out(engine) == size - 1
    for kept in several:
        await kept.give_back()


async def test_a_runner_with_nothing_to_do_has_no_connection(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec()).create()
    runner = StudyRunner(engine, site.study_id, lambda *_: None)
    task = asyncio.create_task(runner.run())
    for _ in range(3):
        await asyncio.gather(*(runner.submit(Submission(arrival=Kick())) for _ in range(3)))
    await runner.idle.wait()
    async with asyncio.timeout(10):
        while out(engine):
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_runner_that_is_stopped_in_mid_step_leaves_no_lock(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more in its queue, and a connection that it has kept."""
    site = await StudySite(engine, make_spec()).create()
    locked = asyncio.Event()
    run_step = runner_module.run_step

    async def stuck(conn: AsyncConnection, *arguments: Any) -> StepResult:
        if not steps:
            async with pipeline(conn) as sent:
                step_reads.ask_study(sent, site.study_id, None)
            locked.set()
            await asyncio.Event().wait()
        steps.pop()
        return await run_step(conn, *arguments)

    steps = [1]
    monkeypatch.setattr(runner_module, "run_step", stuck)
    runner = StudyRunner(engine, site.study_id, lambda *_: None)
    task = asyncio.create_task(runner.run())
    waiting = [asyncio.create_task(runner.submit(Submission(arrival=Kick())))]
    await asyncio.sleep(0)
    while steps:  # the first step is at work: the others go into the next one
        await asyncio.sleep(0)
    waiting += [asyncio.create_task(runner.submit(Submission(arrival=Kick()))) for _ in range(2)]
    await locked.wait()
    waiting.append(asyncio.create_task(runner.submit(Submission(arrival=Kick()))))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, *waiting, return_exceptions=True)
    assert out(engine) == 0
    async with asyncio.timeout(5), transaction(engine) as conn:
        assert await step_reads.lock_study(conn, site.study_id, None) is not None


async def _kill(engine: AsyncEngine, pid: int) -> None:
    async with transaction(engine) as conn:
        killed = await conn.execute(select(func.pg_terminate_backend(pid, 5000)))
        assert killed.scalar_one()
