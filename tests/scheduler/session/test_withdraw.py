"""What a session passes on of drains and cordons, and what it records of a daemon that leaves."""

from typing import Any

from session_site import RUN_ALL, Replica, ScriptedWorker, study, worker
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.v1 import event_pb2, worker_pb2
from headrace_services.scheduler.store import machines, workers
from headrace_services.scheduler.store.database import transaction

ECC = "uncorrectable ECC error encountered"


async def change(engine: AsyncEngine, work: Any, *arguments: Any, **named: Any) -> None:
    """Apply a user's call, as any replica does."""
    async with transaction(engine) as conn:
        found = await machines.find(conn, "w")
        assert found is not None
        await work(conn, found.id, *arguments, **named)
        await workers.notify(conn, [found.id])


async def with_a_trial(engine: AsyncEngine, replica: Replica, w: ScriptedWorker) -> Any:
    site = await study(engine, resources={"gpus": 1}, policy=RUN_ALL)
    replica.hub.kick(site.study_id)
    return site, (await w.hears("assign")).lease


async def gpus(w: ScriptedWorker, count: int = 1, **fields: Any) -> None:
    devices = [
        worker_pb2.Device(
            index=index, kind=worker_pb2.DEVICE_KIND_GPU, model="H200", uuid=f"GPU-{index}", memory_bytes=8
        )
        for index in range(count)
    ]
    hello = worker_pb2.Hello(protocol=1, worker="w", incarnation="1", devices=devices, log_dir="/l", **fields)
    await w.say(hello=hello)
    await w.hears("welcome")


async def beat(w: ScriptedWorker, sequence: int, *held: event_pb2.LeaseRef, **fields: Any) -> None:
    await w.say(heartbeat=worker_pb2.Heartbeat(sequence=sequence, held=held, **fields))


async def test_a_drain_and_its_end_are_reported_at_once_and_after_a_reconnect(
    engine: AsyncEngine, replica: Replica
) -> None:
    async with worker(replica) as w:
        await gpus(w)
        _, lease = await with_a_trial(engine, replica, w)
        await change(engine, machines.hold, machines.DRAIN, reason="reboot", grace_s=60.0)
        withdraw = await w.hears("withdraw")
        assert (withdraw.reason, withdraw.grace.seconds, withdraw.leave) == ("reboot", 60, True)
        vacate = await w.hears("vacate")
        assert (vacate.lease.lease_id, vacate.reason) == (lease.lease_id, "worker 'w' is draining: reboot")
    await change(engine, machines.release)
    async with worker(replica) as w:
        await gpus(w, held=[lease], withdrawn=True)
        await beat(w, 1, lease)
        assert (await w.hears("withdraw")).reason == "", "it was taken back meanwhile"


async def test_a_daemon_that_says_that_it_leaves_gets_nothing_more(
    engine: AsyncEngine, replica: Replica
) -> None:
    async with worker(replica) as w:
        await gpus(w, 2)
        site, lease = await with_a_trial(engine, replica, w)
        await beat(w, 1, lease, leaving="SIGTERM")
        assert (await w.hears("vacate")).reason == "worker 'w' is draining: SIGTERM"
        other = await study(engine, resources={"gpus": 1})
        replica.hub.kick(other.study_id)
        report = worker_pb2.Report(sequence=1, lease=lease, step=3, metrics={"loss": 0.5})
        report.checkpoint.uri, report.checkpoint.step = "file:///0/3", 3
        await w.say(report=report)
        decision = (await w.hears("decision")).decision
        assert decision.action == event_pb2.DECISION_ACTION_PAUSE
        assert (await site.trial(0)).failures == 0
        assert [one.state for one in await other.trials()] in ([], ["PENDING"])


async def test_a_device_that_is_taken_back_is_forgiven_whatever_the_daemon_still_says(
    engine: AsyncEngine, replica: Replica
) -> None:
    async with worker(replica) as w:
        await gpus(w)
        defect = worker_pb2.DeviceDefect(index=0, reason=ECC)
        await beat(w, 1, defects=[defect])
        await w.hears("ack", lambda ack: ack.heartbeat == 1)
        await beat(w, 2)
        await w.hears("ack", lambda ack: ack.heartbeat == 2)
        assert await _cordons(engine) == [("GPU-0", ECC)]
        await change(engine, machines.uncordon, [])
        assert list((await w.hears("uncordon")).devices) == [0]
        await beat(w, 3, defects=[defect])  # it was already on its way
        await beat(w, 4)
        await w.hears("ack", lambda ack: ack.heartbeat == 4)
        assert await _cordons(engine) == []
        await beat(w, 5, defects=[defect])  # a new defect
        await beat(w, 6)
        await w.hears("ack", lambda ack: ack.heartbeat == 6)
        assert await _cordons(engine) == [("GPU-0", ECC)]


async def test_a_third_failure_in_a_row_takes_its_device_out_before_its_trial_is_placed(
    engine: AsyncEngine, replica: Replica
) -> None:
    words = "CUDA error: an illegal memory access was encountered"
    async with worker(replica) as w:
        await gpus(w, 2)
        site = await study(engine, resources={"gpus": 1}, max_trials=2)
        replica.hub.kick(site.study_id)
        first, second = await w.hears("assign"), await w.hears("assign", count=2)
        await w.report(second.lease, 1, 2, 0.5)
        await w.hears("decision")
        await w.say(
            exited=worker_pb2.Exited(
                sequence=2,
                lease=first.lease,
                outcome=worker_pb2.EXIT_OUTCOME_FAILED,
                error=words,
                device_words=words,
                device_failures=3,
            )
        )
        await w.hears("ack", lambda ack: 2 in ack.sequences)
        assert await _cordons(engine) == [
            (f"GPU-{first.grant.slots[0]}", f"3 trials in a row failed there: {words}")
        ]
        assert (await site.trial(0)).failures == 0
        assert (await site.trial(0)).state == "PENDING", "its slot is closed, and the other one is taken"


async def _cordons(engine: AsyncEngine) -> list[tuple[str, str]]:
    async with engine.connect() as conn:
        found = await conn.execute(text("SELECT device, reason FROM cordon ORDER BY device"))
        return [(row.device, row.reason) for row in found]
