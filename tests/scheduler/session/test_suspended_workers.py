"""A worker that does not reach its programs is suspended for a while, shows why, and comes back."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from session_site import DEADLINE_S, Replica, ScriptedWorker, study, worker
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite

from headrace.v1 import worker_pb2
from headrace_services.scheduler.rpc.waiting import waits_for
from headrace_services.scheduler.store import cluster, overview, rows, studies
from headrace_services.scheduler.store.database import transaction

WHY = "it could not reach its worker (exit status 75)"


class Cluster:
    """One study on one worker, whose attempts end before they reach their programs."""

    def __init__(self, engine: AsyncEngine, replica: Replica, w: ScriptedWorker, site: StudySite) -> None:
        self.engine, self.replica, self.worker, self.site = engine, replica, w, site
        self.sequence = 0
        self.beats = 0
        self.attempt = 0

    async def assigned(self) -> worker_pb2.Assign:
        """The next attempt of the trial."""
        self.attempt += 1
        assign: worker_pb2.Assign = await self.worker.hears(
            "assign", lambda assign: assign.lease.attempt == self.attempt
        )
        return assign

    async def misses(self, times: int, why: str = WHY) -> None:
        """Let `times` attempts in a row end that way."""
        for _ in range(times):
            lease = (await self.assigned()).lease
            self.sequence += 1
            exited = worker_pb2.Exited(
                sequence=self.sequence, lease=lease, outcome=worker_pb2.EXIT_OUTCOME_UNREACHED, error=why
            )
            await self.worker.say(exited=exited)
            await self.worker.hears("ack", lambda ack, n=self.sequence: n in ack.sequences)

    async def row(self) -> Any:
        async with self.engine.connect() as conn:
            return (await conn.execute(text("SELECT * FROM worker WHERE name = 'w'"))).one()

    async def pause_is_over(self) -> None:
        """Let the pause expire; the worker's next heartbeat notices it."""
        async with self.engine.begin() as conn:
            await conn.execute(text("UPDATE worker SET suspended_until = clock_timestamp() WHERE name = 'w'"))
        self.beats += 1
        await self.worker.say(heartbeat=worker_pb2.Heartbeat(sequence=self.beats))


@pytest_asyncio.fixture
async def found(engine: AsyncEngine, replica: Replica) -> AsyncIterator[Cluster]:
    async with worker(replica) as w:
        site = await study(engine, max_retries=0)
        await w.hello()
        await w.hears("welcome")
        replica.hub.kick(site.study_id)
        yield Cluster(engine, replica, w, site)


async def test_after_three_in_a_row_nothing_starts_there_and_everybody_says_why(found: Cluster) -> None:
    await found.misses(2)
    assert (await found.row()).suspended_until is None
    await found.misses(1)
    row = await found.row()
    assert row.unreached == 3
    assert row.suspended_until is not None
    trial = await found.site.trial(0)
    assert (trial.state, trial.failures, trial.losses_in_row) == ("PENDING", 0, 0)
    async with transaction(found.engine) as conn:
        (view,) = await cluster.workers(conn, [cluster.Key(name="w", slots=1)])
        counts = await overview.overview(conn)
        waiting = await studies.get(conn, found.site.study_id)
        assert waiting is not None
        said = await waits_for(conn, waiting, [rows.trial(trial)])
    assert view.suspended == f"3 attempts in a row did not reach their programs, the last one: {WHY}"
    assert view.next_try == row.suspended_until
    assert (counts.slots["suspended"], counts.slots["free"]) == (1, 0)
    assert f"w is suspended until {row.suspended_until:%H:%M:%S} UTC" in said[0]
    assert WHY in said[0]


async def test_it_is_tried_again_after_pauses_that_grow(found: Cluster) -> None:
    await found.misses(3)
    pauses = []
    for _ in range(8):
        row = await found.row()
        pauses.append(round((row.suspended_until - row.unreached_time).total_seconds()))
        await found.pause_is_over()
        await found.misses(1)
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]
    assert (await found.site.trial(0)).state == "PENDING"


async def test_an_attempt_that_reaches_its_program_ends_it(found: Cluster) -> None:
    await found.misses(3)
    await found.pause_is_over()
    lease = (await found.assigned()).lease
    async with transaction(found.engine) as conn:
        (view,) = await cluster.workers(conn, [cluster.Key(name="w", slots=1)])
    assert view.suspended
    assert view.next_try is None
    await found.worker.report(lease, 10, 9, 0.5)
    async with asyncio.timeout(DEADLINE_S):
        while (row := await found.row()).unreached:
            await asyncio.sleep(0.01)
    assert (row.unreached, row.unreached_why, row.suspended_until) == (0, "", None)


async def test_an_attempt_that_ran_before_is_no_sign_that_new_ones_get_through(
    engine: AsyncEngine, replica: Replica
) -> None:
    async with worker(replica) as w:
        site = await study(engine, max_retries=0, max_trials=2)
        await w.hello(slots=2)
        await w.hears("welcome")
        replica.hub.kick(site.study_id)
        old = (await w.hears("assign", lambda assign: assign.lease.trial.endswith("/0"))).lease
        for attempt in (1, 2, 3):
            new = await w.hears(
                "assign",
                lambda assign, n=attempt: assign.lease.trial.endswith("/1") and assign.lease.attempt == n,
            )
            exited = worker_pb2.Exited(
                sequence=2 * attempt, lease=new.lease, outcome=worker_pb2.EXIT_OUTCOME_UNREACHED, error=WHY
            )
            await w.say(exited=exited)
            await w.hears("ack", lambda ack, n=2 * attempt: n in ack.sequences)
            # the second one arrives after what the first one shows
            for step in (2 * attempt - 1, 2 * attempt):
                await w.report(old, 100 + step, step, 0.5)
                await w.hears("decision", lambda d, n=100 + step: d.report_sequence == n)
        async with engine.connect() as conn:
            row = (await conn.execute(text("SELECT * FROM worker"))).one()
        assert row.unreached == 3
        assert row.suspended_until is not None


@pytest.mark.parametrize("incarnation", ["1", "2"])
async def test_a_new_start_of_the_daemon_comes_back_at_once_and_a_new_session_does_not(
    found: Cluster, incarnation: str
) -> None:
    await found.misses(3)
    async with worker(found.replica) as again:
        await again.hello(incarnation=incarnation)
        await again.hears("welcome")
        row = await found.row()
        assert row.unreached == (3 if incarnation == "1" else 0)
        assert (row.suspended_until is None) == (incarnation == "2")
        if incarnation == "2":
            await again.hears("assign")


async def test_a_repeated_end_counts_once(found: Cluster) -> None:
    lease = (await found.assigned()).lease
    for sequence in (1, 1, 2):
        exited = worker_pb2.Exited(
            sequence=sequence, lease=lease, outcome=worker_pb2.EXIT_OUTCOME_UNREACHED, error=WHY
        )
        await found.worker.say(exited=exited)
        await found.worker.hears("assign", lambda assign: assign.lease.attempt == 2)
    await found.worker.hears("ack", lambda ack: 2 in ack.sequences)
    assert (await found.row()).unreached == 1
