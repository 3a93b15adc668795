"""Messages of workers out of bounds: each is refused with its reason, and the session continues."""

import asyncio
import time
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from session_site import Replica, study, worker
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.error_status import from_rpc_error
from headrace.errors import InvalidFieldError
from headrace.v1 import event_pb2, worker_pb2
from headrace_services.scheduler.store import removal
from headrace_services.scheduler.store.database import transaction

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "a step of 2^63-1": ({"step": 2**63 - 1}, "step: is more than 1099511627776"),
    "a negative step": ({"step": -1}, "step: is less than 0"),
    "a training time of 10^17 s": (
        {"train_time": Duration(seconds=10**17)},
        "train_time: is out of bounds",
    ),
    "60,000 metrics": (
        {"metrics": {f"m{number}": 1.0 for number in range(60_000)}},
        "is larger than 131072 bytes",
    ),
    "1,001 metrics": (
        {"metrics": {f"m{number}": 1.0 for number in range(1001)}},
        "metrics: has more than 1000 entries",
    ),
    "a metric's name with a NUL": (
        {"metrics": {"loss": 0.5, "a\0b": 1.0}},
        "metrics['a\\x00b']: holds a NUL character",
    ),
    "a checkpoint of 2^63-1 bytes": (
        {"checkpoint": {"uri": "file:///c", "size_bytes": 2**63 - 1}},
        "checkpoint.size_bytes: is more than",
    ),
    "a checkpoint whose name has a NUL": (
        {"checkpoint": {"uri": "file:///a\0b", "step": 1}},
        "checkpoint.uri: holds a NUL character",
    ),
}


@pytest.mark.cases(3)
@pytest.mark.parametrize(("fields", "says"), CASES.values(), ids=CASES)
async def test_a_report_out_of_bounds_ends_its_trial_with_the_reason_and_not_the_session(
    engine: AsyncEngine, replica: Replica, fields: dict[str, Any], says: str
) -> None:
    site = await study(engine, max_retries=0, max_trials=2)
    async with worker(replica) as w:
        await w.hello(slots=2)
        replica.hub.kick(site.study_id)
        bad = (await w.hears("assign")).lease
        good = (await w.hears("assign", count=2)).lease
        await w.say(report=worker_pb2.Report(sequence=1, lease=bad, **{"step": 1, **fields}))
        refused = await w.hears("refused")
        assert refused.sequence == 1
        assert says in refused.reason
        await w.hears("ack", lambda ack: list(ack.sequences) == [1])
        assert (await w.hears("cancel")).lease == bad
        await w.report(good, 2, 9, 0.5)
        decision = await w.hears("decision", lambda decision: decision.lease == good)
        assert decision.decision.action == event_pb2.DECISION_ACTION_STOP
        assert not w.ended.is_set()
    ended = await site.trial(int(bad.trial.rpartition("/")[2]))
    assert (ended.state, ended.reason) == ("TERMINATED", "FAILED")
    assert says in ended.detail, "the trial's end says which field of its report was at fault"


async def test_a_report_out_of_bounds_of_a_study_that_is_gone_is_no_defect(
    engine: AsyncEngine, replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    site = await study(engine)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        lease = (await w.hears("assign")).lease
        await w.report(lease, 1, 9, 0.5)
        await w.hears("decision")
        exited = worker_pb2.Exited(sequence=2, lease=lease, outcome=worker_pb2.EXIT_OUTCOME_RELEASED)
        await w.say(exited=exited)
        await w.hears("ack", lambda ack: 2 in ack.sequences)
        async with transaction(engine) as conn:
            await removal.mark_deleted(conn, site.study_id)
        await w.say(report=worker_pb2.Report(sequence=3, lease=lease, step=-1))
        await w.hears("ack", lambda ack: list(ack.sequences) == [3])
    assert [entry.getMessage() for entry in caplog.records if entry.exc_info] == []


@pytest.mark.parametrize("wrong", [{"lease_id": "l\0"}, {"attempt": 2**63 - 1}, {"lease_id": "l" * 300}])
async def test_a_lease_out_of_bounds_costs_the_study_that_it_names_nothing(
    engine: AsyncEngine, replica: Replica, caplog: pytest.LogCaptureFixture, wrong: dict[str, Any]
) -> None:
    site = await study(engine)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        lease = (await w.hears("assign")).lease
        forged = event_pb2.LeaseRef(
            **{"lease_id": "l", "trial": lease.trial, "attempt": lease.attempt, **wrong}
        )
        await w.say(report=worker_pb2.Report(sequence=1, lease=forged, step=1))
        await w.hears("ack", lambda ack: list(ack.sequences) == [1])
        await w.report(lease, 2, 9, 0.5)
        assert (await w.hears("decision")).decision.action == event_pb2.DECISION_ACTION_STOP
    assert [entry.getMessage() for entry in caplog.records if entry.exc_info] == []


NAMES = {
    "a number of 5,000 digits": "studies/s/trials/" + "9" * 5000,
    "a number beyond 64 bits": f"studies/s/trials/{2**64}",
    "digits that are none": "studies/s/trials/²",
    "a NUL": "studies/s\0/trials/0",
    "no trial": "",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
async def test_a_lease_that_names_no_trial_is_answered_and_the_session_continues(
    replica: Replica, name: str
) -> None:
    async with worker(replica) as w:
        await w.hello()
        await w.hears("welcome")
        lease = event_pb2.LeaseRef(lease_id="l\0", trial=name, attempt=1)
        await w.report(lease, 1, 1, 0.5)
        await w.hears("ack", lambda ack: list(ack.sequences) == [1])
        await w.say(heartbeat=worker_pb2.Heartbeat(sequence=7))
        await w.hears("ack", lambda ack: ack.heartbeat == 7)


async def test_a_heartbeat_out_of_bounds_still_says_that_the_worker_lives(replica: Replica) -> None:
    async with worker(replica) as w:
        await w.hello()
        await w.hears("welcome")
        telemetry = [worker_pb2.DeviceTelemetry(utilization=float("nan"), memory_used_bytes=-1)]
        held = [event_pb2.LeaseRef(lease_id="\0", attempt=-1)]
        await w.say(heartbeat=worker_pb2.Heartbeat(sequence=7, telemetry=telemetry, held=held))
        await w.hears("ack", lambda ack: ack.heartbeat == 7)
        await w.say(heartbeat=worker_pb2.Heartbeat(sequence=8))
        await w.hears("ack", lambda ack: ack.heartbeat == 8)


def hello(**fields: Any) -> worker_pb2.Hello:
    return worker_pb2.Hello(protocol=1, **{"worker": "w", "incarnation": "1", **fields})


def devices(count: int) -> list[worker_pb2.Device]:
    return [worker_pb2.Device(index=index, kind=worker_pb2.DEVICE_KIND_CPU) for index in range(count)]


HELLOS = {
    "10,000 devices": (hello(devices=devices(10_000)), "hello.devices"),
    "an incarnation with a NUL": (hello(incarnation="\0"), "hello.incarnation"),
    "a model with a NUL": (
        hello(devices=[{"kind": "DEVICE_KIND_CPU", "model": "\0"}]),
        "hello.devices[0].model",
    ),
    "a label with a NUL": (hello(labels={"zone": "\0"}), "hello.labels.zone"),
    "a folder with a NUL": (hello(log_dir="/l\0"), "hello.log_dir"),
    "a memory of -1 bytes": (
        hello(devices=[{"kind": "DEVICE_KIND_CPU", "memory_bytes": -1}]),
        "hello.devices[0].memory_bytes",
    ),
}


@pytest.mark.parametrize(("message", "field"), HELLOS.values(), ids=HELLOS)
async def test_a_hello_out_of_bounds_is_refused_by_its_field(
    replica: Replica, message: worker_pb2.Hello, field: str
) -> None:
    async with worker(replica) as w:
        await w.say(hello=message)
        async with asyncio.timeout(60):
            await w.ended.wait()
            assert await w.call.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError) as refused:
            await w.call.read()
        error = from_rpc_error(refused.value)
        assert isinstance(error, InvalidFieldError)
        assert [violation.field for violation in error.violations] == [field]


@pytest.mark.full
async def test_a_hello_of_1024_devices_holds_nobody_up(replica: Replica) -> None:
    """The slots are written with a few statements. What others wait for is the longest turn of the event loop."""
    async with worker(replica) as w:
        await w.say(hello=hello(devices=devices(1024)))
        longest, before = 0.0, time.monotonic()
        while not w.heard:
            await asyncio.sleep(0)
            longest, before = max(longest, time.monotonic() - before), time.monotonic()
        assert longest < 0.5


@pytest.mark.full
async def test_a_worker_of_1024_slots_is_sent_all_its_trials_and_again(
    engine: AsyncEngine, replica: Replica
) -> None:
    """More orders at once than a queue of 1,024 holds do not mean that the worker has stopped reading."""
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


async def test_a_trial_may_take_more_slots_than_a_step_looks_at(
    engine: AsyncEngine, replica: Replica
) -> None:
    site = await study(engine, resources={"cpus": 65})
    async with worker(replica) as w:
        await w.hello(slots=65)
        replica.hub.kick(site.study_id)
        assert len((await w.hears("assign")).grant.slots) == 65
