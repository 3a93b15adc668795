"""Drain and cordon calls: what they answer and what they refuse. A repeat changes nothing."""

from datetime import timedelta

import pytest
from rpc_site import RpcSite, duration
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.errors import (
    HeadraceError,
    InvalidFieldError,
    WorkerLeavesError,
    WorkerNotFoundError,
)
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.store import machines, workers
from headrace_services.scheduler.store.database import transaction

CALLS = {
    "DrainWorker": pb.DrainWorkerRequest,
    "UndrainWorker": pb.UndrainWorkerRequest,
    "CordonDevices": pb.CordonDevicesRequest,
    "UncordonDevices": pb.UncordonDevicesRequest,
}


async def connect(engine: AsyncEngine, ttl_s: float = 3600) -> tuple[int, int]:
    devices = tuple(
        workers.Device(index=index, kind="GPU", model="H200", memory_bytes=8, uuid=f"GPU-{index}")
        for index in range(2)
    )
    greeting = workers.Greeting(
        name="node-1", incarnation="1", devices=devices, labels={}, version="", log_dir="/l"
    )
    async with transaction(engine) as conn:
        return await workers.greet(conn, greeting, ttl_s)


async def status(site: RpcSite) -> pb.WorkerStatus:
    [worker] = (await site.call("ListWorkers", pb.ListWorkersRequest())).workers
    return worker


async def test_a_drain_shows_until_it_is_taken_back(site: RpcSite) -> None:
    await connect(site.engine)
    request = pb.DrainWorkerRequest(
        request_id="r", worker="workers/node-1", reason="reboot", grace=duration(60)
    )
    drained = (await site.call("DrainWorker", request)).worker
    assert (drained.draining, drained.connected) == ("reboot", True)
    assert await status(site) == drained
    undo = pb.UndrainWorkerRequest(request_id="u", worker="workers/node-1")
    assert (await site.call("UndrainWorker", undo)).worker.draining == ""
    assert (await site.call("DrainWorker", request)).worker == drained, "a repeat gets the first answer"
    assert (await status(site)).draining == "", "and changes nothing"
    assert (await site.call("UndrainWorker", pb.UndrainWorkerRequest(worker="workers/node-1"))).worker


async def test_the_log_says_who_wanted_what_of_a_machine_and_why(
    site: RpcSite, caplog: pytest.LogCaptureFixture
) -> None:
    await connect(site.engine)
    caplog.set_level("INFO", logger="headrace_services.scheduler.rpc.machine_calls")
    drain = pb.DrainWorkerRequest(request_id="r", worker="workers/node-1", reason="reboot")
    cordon = pb.CordonDevicesRequest(worker="workers/node-1", devices=[1], reason="fan is loud")
    for method, request in (("DrainWorker", drain), ("DrainWorker", drain), ("CordonDevices", cordon)):
        await site.call(method, request)
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(" by ")[0] for line in said] == [
        "worker 'node-1': DrainWorker",
        "worker 'node-1': CordonDevices 1",
    ], "a repeat is told once"
    assert [line.rpartition(": ")[2] for line in said] == ["reboot", "fan is loud"]
    assert "ipv4:127.0.0.1" in said[0].replace("%3A", ":")


async def test_a_worker_that_is_away_is_drained_when_it_comes_back(site: RpcSite) -> None:
    await connect(site.engine, ttl_s=-1)
    drained = (await site.call("DrainWorker", pb.DrainWorkerRequest(worker="workers/node-1"))).worker
    assert not drained.connected
    assert drained.draining == "a user drained it"
    await connect(site.engine)
    assert (await status(site)).draining == "a user drained it"


async def test_a_daemon_that_leaves_by_itself_cannot_be_held_back(site: RpcSite) -> None:
    worker_id, session = await connect(site.engine)
    async with transaction(site.engine) as conn:
        await machines.leaves(conn, worker_id, session, "SIGTERM")
    refused = await site.refusal("UndrainWorker", pb.UndrainWorkerRequest(worker="workers/node-1"))
    assert isinstance(refused, WorkerLeavesError)
    assert refused.message == "worker 'node-1' is draining on its own: SIGTERM"


async def test_cordons_are_put_and_taken_back(site: RpcSite) -> None:
    await connect(site.engine)
    name = "workers/node-1"
    one = pb.CordonDevicesRequest(worker=name, devices=[1], reason="fan")
    [cordon] = (await site.call("CordonDevices", one)).worker.cordons
    assert (cordon.device, cordon.uuid, cordon.reason, cordon.quarantined) == (1, "GPU-1", "fan", False)
    whole = (await site.call("CordonDevices", pb.CordonDevicesRequest(worker=name))).worker
    assert whole.cordoned == "a user cordoned it"
    freed = (await site.call("UncordonDevices", pb.UncordonDevicesRequest(worker=name))).worker
    assert (freed.cordoned, list(freed.cordons)) == ("", [])


async def test_a_cordon_does_not_end_a_drain(site: RpcSite) -> None:
    await connect(site.engine)
    name = "workers/node-1"
    await site.call("DrainWorker", pb.DrainWorkerRequest(worker=name, reason="reboot"))
    await site.call("CordonDevices", pb.CordonDevicesRequest(worker=name))
    await site.call("UncordonDevices", pb.UncordonDevicesRequest(worker=name))
    shown = await status(site)
    assert (shown.draining, shown.cordoned) == ("reboot", "")
    assert shown.drain_time.ToDatetime() - shown.last_seen.ToDatetime() < timedelta(seconds=20)


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize(
    ("worker", "error", "said"),
    [
        ("workers/nobody", WorkerNotFoundError, "there is no worker 'nobody'"),
        ("nobody", InvalidFieldError, "Write it as workers/WORKER."),
        ("", InvalidFieldError, "worker: is required"),
        ("workers/no body", InvalidFieldError, "invalid worker name"),
    ],
)
async def test_who_is_no_worker_is_named(
    site: RpcSite, method: str, worker: str, error: type[HeadraceError], said: str
) -> None:
    refused = await site.refusal(method, CALLS[method](worker=worker))
    assert isinstance(refused, error)
    assert said in str(refused)


@pytest.mark.parametrize("method", ["CordonDevices", "UncordonDevices"])
async def test_what_is_no_device_is_named(site: RpcSite, method: str) -> None:
    await connect(site.engine)
    refused = await site.refusal(method, CALLS[method](worker="workers/node-1", devices=[1, 7]))
    assert isinstance(refused, InvalidFieldError)
    [violation] = refused.violations
    assert str(violation) == "devices[1]: is no device of workers/node-1 (got 7). It has 0, 1."
