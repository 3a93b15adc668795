"""A message that the scheduler cannot process is refused by its sequence; the session and its other trials
continue.

`test_session_bounds` covers messages out of bounds. Here the scheduler itself fails on a valid message.
"""

import asyncio

import pytest
from session_site import Replica, ScriptedWorker, study, worker
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite

from headrace.errors import InternalError
from headrace.v1 import event_pb2, worker_pb2
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.store import cluster


async def _two_trials(
    engine: AsyncEngine, replica: Replica, w: ScriptedWorker
) -> tuple[event_pb2.LeaseRef, event_pb2.LeaseRef, StudySite]:
    site = await study(engine, max_trials=2, max_retries=0)
    await w.hello(slots=2)
    replica.hub.kick(site.study_id)
    first = (await w.hears("assign")).lease
    return first, (await w.hears("assign", count=2)).lease, site


async def test_a_message_whose_lease_cannot_be_ended_either_is_refused_anyway(
    engine: AsyncEngine, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise InternalError("the fold failed")

    async with worker(replica) as w:
        bad, good, site = await _two_trials(engine, replica, w)
        del site
        with monkeypatch.context() as patch:
            patch.setattr(Hub, "submit", broken)
            await w.report(bad, 1, 1, 0.5)
            assert (await w.hears("refused")).sequence == 1
            await w.hears("ack", lambda ack: 1 in ack.sequences)
        await w.report(good, 2, 9, 0.5)
        await w.hears("decision", lambda d: d.lease == good)


async def test_a_defect_of_ours_is_reported_as_ours(
    engine: AsyncEngine, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    async with worker(replica) as w:
        bad, good, site = await _two_trials(engine, replica, w)
        with monkeypatch.context() as patch:
            patch.setattr("headrace_services.scheduler.core.dispatch.reports.receive", broken)
            await w.report(bad, 1, 1, 0.5)
            refused = await w.hears("refused")
        assert "a defect of Headrace" in refused.reason
        await w.report(good, 2, 9, 0.5)
        await w.hears("decision", lambda d: d.lease == good)
    trial = await site.trial(int(bad.trial.rpartition("/")[2]))
    assert (trial.failures, trial.interruptions) == (0, 1)
    assert "a defect of Headrace" in str(await site.events())


async def test_the_rejected_messages_of_a_worker_are_shown(engine: AsyncEngine, replica: Replica) -> None:
    async with worker(replica) as w:
        await w.hello()
        await w.hears("welcome")
        await w.say(
            heartbeat=worker_pb2.Heartbeat(sequence=1, rejected="1 message in /rejected/reports\0: too long")
        )

        async def shown() -> str:
            async with engine.connect() as conn:
                names = await cluster.workers_after(conn, name="", limit=10)
                return (await cluster.workers(conn, names))[0].rejected

        async with asyncio.timeout(60):
            while not (text := await shown()):
                await asyncio.sleep(0.02)
        assert text == "1 message in /rejected/reports\ufffd: too long"
