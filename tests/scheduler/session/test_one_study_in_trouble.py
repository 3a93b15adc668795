"""A study whose cycles exceed the statement timeout is retried a few times, and blocks nobody else."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from session_site import DEADLINE_S, Replica, ScriptedWorker, study, worker
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, lock_study

from headrace.errors import DatabaseUnavailableError
from headrace.v1 import event_pb2
from headrace_services.scheduler.core.inputs import PauseStudy
from headrace_services.scheduler.engine.submissions import Submission
from headrace_services.scheduler.store import database


@pytest_asyncio.fixture
async def engine(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncEngine]:
    """An engine with a statement timeout of 0.8 s."""
    monkeypatch.setattr(database, "STATEMENT_TIMEOUT_MS", 800)
    opened = database.open_engine(database_url, pool_size=6)
    yield opened
    await opened.dispose()


@asynccontextmanager
async def locked(engine: AsyncEngine, site: StudySite) -> AsyncIterator[None]:
    """Hold the lock of a study, so that the statement timeout cancels each of its cycles."""
    async with engine.begin() as conn:
        await conn.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        await lock_study(conn, site.study_id)
        yield


async def two_leases(
    engine: AsyncEngine, replica: Replica, w: ScriptedWorker
) -> tuple[StudySite, event_pb2.LeaseRef, StudySite, event_pb2.LeaseRef]:
    """Two studies, each with a trial on the worker."""
    await w.hello(slots=2)
    found: list[Any] = []
    for count in (1, 2):
        site = await study(engine)
        replica.hub.kick(site.study_id)
        found += [site, (await w.hears("assign", count=count)).lease]
    return found[0], found[1], found[2], found[3]


async def test_the_attempts_are_bounded_and_logged(
    engine: AsyncEngine, replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    site = await study(engine)
    async with locked(engine, site), asyncio.timeout(DEADLINE_S):
        with pytest.raises(DatabaseUnavailableError, match="QueryCanceled"):
            await replica.hub.submit(site.study_id, Submission(input=PauseStudy()))
    assert f"study {site.study_id}" in caplog.text
    assert "QueryCanceled" in caplog.text
    assert (await site.study()).state == "ACTIVE"
    await replica.hub.submit(site.study_id, Submission(input=PauseStudy()))
    assert (await site.study()).state == "PAUSED"


async def test_its_messages_wait_and_those_of_other_studies_are_answered(
    engine: AsyncEngine, replica: Replica
) -> None:
    async with worker(replica) as w:
        bad, stuck, _, sound = await two_leases(engine, replica, w)
        async with locked(engine, bad):
            await w.report(stuck, 1, 1, 0.5)
            await w.hears("drain")
            await w.report(stuck, 2, 2, 0.5)
            await w.report(sound, 3, 1, 0.5)
            await w.hears("ack", lambda ack: 3 in ack.sequences)
        assert not w.ended.is_set()
        assert not [one for one in w.heard if one.WhichOneof("message") in ("refused", "cancel")]
    async with worker(replica) as w:
        await w.hello(slots=2, held=(stuck, sound))
        await w.report(stuck, 1, 1, 0.5)
        await w.report(stuck, 2, 2, 0.5)
        await w.hears("ack", acknowledges(2))
    assert (await bad.trial(0)).step == 2


async def test_a_worker_that_lost_its_memory_of_its_trial_serves_other_studies(
    engine: AsyncEngine, replica: Replica
) -> None:
    async with worker(replica) as w:
        bad, _, _, sound = await two_leases(engine, replica, w)
    async with locked(engine, bad), worker(replica) as w:
        await w.hello(incarnation="2", slots=2, held=(sound,))
        await w.report(sound, 1, 1, 0.5)
        await w.hears("ack", acknowledges(1))
        assert not w.ended.is_set()


def acknowledges(sequence: int) -> Callable[[Any], bool]:
    return lambda ack: sequence in ack.sequences
