"""A message that the scheduler cannot take is refused by its sequence; the session and its other trials go on."""

import asyncio
import time

import pytest
from google.protobuf.duration_pb2 import Duration
from session_site import Replica, ScriptedWorker, study, worker
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite

from headrace.errors import InternalError
from headrace.v1 import event_pb2, worker_pb2
from headrace_services.scheduler.hub import Hub
from headrace_services.scheduler.store import cluster

BAD_REPORTS = {
    "train_time": {"train_time": Duration(seconds=10**17)},
    "step": {"step": 2**63 - 1},
    "metrics": {"metrics": {f"m{n}": 1.0 for n in range(1001)}},
    "checkpoint": {"checkpoint": {"uri": "file:///a\0b", "step": 1}},
}


async def _two_trials(
    engine: AsyncEngine, replica: Replica, w: ScriptedWorker
) -> tuple[event_pb2.LeaseRef, event_pb2.LeaseRef, StudySite]:
    site = await study(engine, max_trials=2, max_retries=0)
    await w.hello(slots=2)
    replica.hub.kick(site.study_id)
    first = (await w.hears("assign")).lease
    return first, (await w.hears("assign", count=2)).lease, site


@pytest.mark.parametrize("field", BAD_REPORTS)
async def test_a_report_out_of_bounds_ends_its_own_trial_alone(
    engine: AsyncEngine, replica: Replica, field: str
) -> None:
    async with worker(replica) as w:
        bad, good, site = await _two_trials(engine, replica, w)
        said = {"step": 1, "metrics": {"loss": 0.5}, **BAD_REPORTS[field]}
        await w.say(report=worker_pb2.Report(sequence=1, lease=bad, **said))
        refused = await w.hears("refused")
        assert refused.sequence == 1
        assert field in refused.reason
        await w.hears("ack", lambda ack: 1 in ack.sequences)
        assert (await w.hears("cancel")).lease == bad
        await w.report(good, 2, 9, 0.5)
        decision = await w.hears("decision", lambda d: d.lease == good)
        assert decision.decision.action == event_pb2.DECISION_ACTION_STOP
        assert not w.ended.is_set(), "one session took all of it"
    trial = await site.trial(int(bad.trial.rpartition("/")[2]))
    assert (trial.state, trial.reason) == ("TERMINATED", "FAILED")
    assert field in trial.detail, "the trial's end says which field of its report was at fault"


@pytest.mark.parametrize(
    "trial", ["studies/s/trials/" + "9" * 5000, "studies/a\0b/trials/0", f"studies/s/trials/{2**63}"]
)
async def test_a_lease_that_names_no_trial_ends_no_session(
    engine: AsyncEngine, replica: Replica, trial: str
) -> None:
    del engine
    async with worker(replica) as w:
        await w.hello(slots=0)
        await w.report(event_pb2.LeaseRef(lease_id="x\0", trial=trial, epoch=1), 1, 1, 0.5)
        await w.hears("ack", lambda ack: 1 in ack.sequences)
        await w.say(heartbeat=worker_pb2.Heartbeat(sequence=7))
        await w.hears("ack", lambda ack: ack.heartbeat == 7)


async def test_a_message_whose_lease_cannot_be_ended_either_is_refused_all_the_same(
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


async def test_a_defect_of_ours_is_told_as_ours(
    engine: AsyncEngine, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    async with worker(replica) as w:
        bad, good, site = await _two_trials(engine, replica, w)
        with monkeypatch.context() as patch:
            patch.setattr("headrace_services.scheduler.step.core.reports.report", broken)
            await w.report(bad, 1, 1, 0.5)
            refused = await w.hears("refused")
        assert "a defect of Headrace" in refused.reason
        await w.report(good, 2, 9, 0.5)
        await w.hears("decision", lambda d: d.lease == good)
    trial = await site.trial(int(bad.trial.rpartition("/")[2]))
    assert "a defect of Headrace" in trial.detail


async def test_what_a_worker_put_aside_is_shown(engine: AsyncEngine, replica: Replica) -> None:
    async with worker(replica) as w:
        await w.hello()
        await w.hears("welcome")
        await w.say(
            heartbeat=worker_pb2.Heartbeat(sequence=1, set_aside="1 message in /aside/reports\0: too long")
        )

        async def shown() -> str:
            async with engine.connect() as conn:
                names = await cluster.workers_after(conn, name="", limit=10)
                return (await cluster.workers(conn, names))[0].set_aside

        async with asyncio.timeout(20):
            while not (text := await shown()):
                await asyncio.sleep(0.02)
        assert text == "1 message in /aside/reports\ufffd: too long"


async def test_a_worker_of_1024_slots_holds_nobody_up(engine: AsyncEngine, replica: Replica) -> None:
    """Greeted and sent all its trials, while the event loop never waits long for it."""
    del engine
    gaps = [0.0]

    async def pulse() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            gaps.append(time.monotonic() - before - 0.005)

    beating = asyncio.create_task(pulse())
    began = time.monotonic()
    async with worker(replica) as w:
        await w.hello(slots=1024)
        await w.hears("welcome")
        took_s = time.monotonic() - began
    beating.cancel()
    print(f"welcome after {took_s:.2f} s, longest gap {max(gaps):.3f} s")
    assert took_s < 1.0
    assert max(gaps) < 0.3


async def test_a_worker_of_1024_slots_is_sent_all_its_trials_and_again(
    engine: AsyncEngine, replica: Replica
) -> None:
    """More orders at once than a queue of 1,024 holds is no sign of a worker that does not read."""
    site = await study(engine, max_trials=1024)
    async with worker(replica) as w:
        await w.hello(slots=1024)
        await w.hears("welcome")
        replica.hub.kick(site.study_id)
        await w.hears("assign", count=1024)
    async with worker(replica) as w:
        await w.hello(slots=1024)
        await w.hears("assign", count=1024)
        assert not w.ended.is_set()
