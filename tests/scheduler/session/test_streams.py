"""What a stream guarantees its worker, and what it does not tolerate."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import grpc
import psycopg
import pytest
from session_site import DEADLINE_S, ScriptedWorker, serving, worker
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from study_site import StudySite, make_spec

from headrace.v1 import worker_pb2
from headrace.v1.worker_pb2_grpc import WorkerServiceStub
from headrace_services.scheduler.session.worker_session import Timing
from headrace_services.scheduler.store import cluster, heartbeats, tables

PATIENT = Timing(heartbeat_s=60, lease_ttl_s=600)


async def until(holds: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    """Poll until something holds."""
    async with asyncio.timeout(DEADLINE_S):
        while not await holds():
            await asyncio.sleep(0.02)


async def row(engine: AsyncEngine) -> Any:
    """The worker's row."""
    async with engine.connect() as conn:
        return (await conn.execute(select(tables.worker).where(tables.worker.c.name == "w"))).one_or_none()


async def test_heartbeats_are_answered_and_their_trouble_is_kept(engine: AsyncEngine) -> None:
    async with serving(engine, PATIENT) as replica, worker(replica) as scripted:
        await scripted.hello()
        await scripted.hears("welcome")
        await scripted.say(heartbeat=worker_pb2.Heartbeat(sequence=41, trouble="the disk\x00 is full"))
        await scripted.hears("ack", lambda ack: ack.heartbeat == 41)

        async def says() -> bool:
            return (await row(engine)).trouble == "the disk� is full"

        await until(says)
        await scripted.say(heartbeat=worker_pb2.Heartbeat(sequence=42))

        async def is_over() -> bool:
            return not (await row(engine)).trouble

        await until(is_over)


async def test_what_a_worker_says_names_no_study_of_another_project(engine: AsyncEngine) -> None:
    said = f"studies/{(await StudySite(engine, make_spec()).create()).name}/trials/3: installs requirements.txt (2 s)"
    async with serving(engine, PATIENT) as replica, worker(replica) as scripted:
        await scripted.hello()
        await scripted.hears("welcome")
        await scripted.say(heartbeat=worker_pb2.Heartbeat(sequence=1, trouble=said))
        await until(lambda: _is_told(engine, said))
        async with engine.connect() as conn:
            keys = [cluster.Key(name="w", slots=1)]
            (ours,) = await cluster.workers(conn, keys)
            (theirs,) = await cluster.workers(conn, keys, project="another")
    assert ours.trouble == said
    assert theirs.trouble == "a trial of another project: installs requirements.txt (2 s)"


async def _is_told(engine: AsyncEngine, said: str) -> bool:
    return bool((await row(engine)).trouble == said)


async def test_a_worker_that_never_reads_is_cut_off(engine: AsyncEngine) -> None:
    small_window = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.http2.lookahead_bytes", 1024),
        ("grpc.http2.bdp_probe", 0),
    ]
    async with (
        serving(engine, PATIENT) as replica,
        grpc.aio.insecure_channel(replica.address, options=small_window) as channel,
    ):
        call: Any = WorkerServiceStub(channel).Session()
        hello = worker_pb2.Hello(protocol=1, worker="w", incarnation="1", log_dir="/l")
        await call.write(worker_pb2.SessionRequest(hello=hello))

        async def is_there() -> bool:
            found = await row(engine)
            return found is not None and found.connected

        await until(is_there)

        async def flood() -> None:
            while True:
                await call.write(worker_pb2.SessionRequest(heartbeat=worker_pb2.Heartbeat(sequence=1)))

        flooding = asyncio.create_task(flood())

        async def is_gone() -> bool:
            return not (await row(engine)).connected

        await until(is_gone)
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        call.cancel()


async def test_a_stream_that_grew_old_is_asked_to_go_and_answered_to_the_end(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec()).create()
    timing = Timing(heartbeat_s=60, lease_ttl_s=600, stream_age_s=0.3, drain_grace_s=7)
    async with serving(engine, timing) as replica, worker(replica) as scripted:
        await scripted.hello()
        replica.hub.kick(site.study_id)
        assign = await scripted.hears("assign")
        assert (await scripted.hears("drain")).grace.seconds == 7
        await scripted.report(assign.lease, 1, 1, 0.5)
        await scripted.call.done_writing()
        await scripted.hears("ack", lambda ack: list(ack.sequences) == [1])
        await scripted.hears("decision", lambda decision: decision.report_sequence == 1)
        async with asyncio.timeout(DEADLINE_S):
            await scripted.ended.wait()


async def test_a_worker_that_lost_its_memory_loses_its_trials_at_once(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec()).create()
    async with serving(engine, PATIENT) as replica:
        async with worker(replica) as before:
            await before.hello("1")
            replica.hub.kick(site.study_id)
            lost = await before.hears("assign")
        async with worker(replica) as after:
            await after.hello("2")
            again = await after.hears("assign", lambda assign: assign.lease.trial == lost.lease.trial)
            assert again.lease.attempt == lost.lease.attempt + 1


async def test_a_worker_that_remembers_may_report_its_loss_itself(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy={"kind": "run_all"}, max_trials=1)).create()
    async with serving(engine, PATIENT) as replica:
        async with worker(replica) as before:
            await before.hello("1")
            replica.hub.kick(site.study_id)
            lost = (await before.hears("assign")).lease
        async with worker(replica) as after:
            await after.hello("2", held=(lost,))
            await _say_two_things(after, lost)
            again = await after.hears("assign", lambda assign: assign.lease.trial == lost.trial)
            assert again.lease.attempt == lost.attempt + 1
            assert again.resume_step == 1, "what it still had to say was heard first"
    assert (await site.trial(0)).interruptions == 1


async def _say_two_things(scripted: ScriptedWorker, lost: Any) -> None:
    report = worker_pb2.Report(sequence=1, lease=lost, step=1, metrics={"other": 0.5, "loss": 0.5})
    report.checkpoint.uri, report.checkpoint.step = "file:///c/1", 1
    await scripted.say(report=report)
    outcome = worker_pb2.EXIT_OUTCOME_LOST
    await scripted.say(exited=worker_pb2.Exited(sequence=2, lease=lost, outcome=outcome, error="died"))


async def test_heartbeats_that_lose_against_another_transaction_are_written_again(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    conflicts: list[psycopg.Error] = [
        psycopg.errors.DeadlockDetected(),
        psycopg.errors.SerializationFailure(),
    ]
    note = heartbeats.note

    async def note_after_conflicts(
        conn: AsyncConnection, beats: Iterable[heartbeats.Beat], ttl_s: float
    ) -> dict[heartbeats.Beat, heartbeats.Noted]:
        noted = await note(conn, beats, ttl_s)
        if conflicts:
            raise conflicts.pop()
        return noted

    async with serving(engine, PATIENT) as replica, worker(replica) as scripted:
        await scripted.hello()
        await scripted.hears("welcome")
        monkeypatch.setattr(heartbeats, "note", note_after_conflicts)
        await scripted.say(heartbeat=worker_pb2.Heartbeat(sequence=1, trouble="the disk is full"))

        async def written() -> bool:
            return (await row(engine)).trouble == "the disk is full"

        await until(written)
        assert not conflicts
        assert not scripted.ended.is_set(), "no session ends for it"
