"""PlannerService over a real socket with real worker processes."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.error_status import from_rpc_error
from headrace.errors import InvalidFieldError
from headrace.v1 import planner_pb2 as pb
from headrace.v1 import planner_pb2_grpc
from headrace_services.planner.service.pool import Pool
from headrace_services.planner.service.server import Settings, check, make_server
from headrace_services.serving.health import Health

SMALL = pb.PlanQuestion(model_name="gpt3-2.7b", cluster_name="a100-16", batch=32)
LARGE = pb.PlanQuestion(model_name="megatron-1t", cluster_name="a100-3072", batch=6144)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site() -> AsyncIterator[tuple[grpc.aio.Channel, Pool]]:
    async with Pool(2) as pool:
        server = make_server(pool, Health())
        port = server.bind("--listen", "127.0.0.1:0", None)
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel, pool
        await server.stop(0)


Site = tuple[grpc.aio.Channel, Pool]


async def test_plan_streams_progress_and_then_the_plan(site: Site) -> None:
    stub = planner_pb2_grpc.PlannerServiceStub(site[0])
    got = [one async for one in stub.Plan(pb.PlanRequest(question=LARGE), timeout=120)]
    kinds = [one.WhichOneof("message") for one in got]
    assert kinds[-1] == "plan"
    assert set(kinds[:-1]) == {"progress"}
    plan = got[-1].plan
    degrees = plan.degrees
    assert degrees.data * degrees.tensor * degrees.pipeline == 3072
    assert sorted(layer for stage in plan.stages for layer in stage.layers) == list(range(130))
    assert json.loads(plan.json)["iteration_s"] == plan.iteration_s


@pytest.mark.full
async def test_a_cancelled_plan_ends_within_100_ms(site: Site) -> None:
    channel, pool = site
    stub = planner_pb2_grpc.PlannerServiceStub(channel)
    took_s = []
    while min(took_s, default=1.0) >= 0.1 and len(took_s) < 5:  # a busy machine may be late now and then
        call = stub.Plan(pb.PlanRequest(question=LARGE), timeout=120)
        assert (await call.read()).HasField("progress")
        busy = [worker for worker in pool._all if worker not in pool._free]
        assert len(busy) == 1
        began = time.monotonic()
        call.cancel()
        while busy[0] in pool._all:
            assert time.monotonic() - began < 5
            await asyncio.sleep(0.002)
        took_s.append(time.monotonic() - began)
        assert not busy[0].process.is_alive()
    assert min(took_s) < 0.1
    # The next call gets a worker.
    last = [one async for one in stub.Plan(pb.PlanRequest(question=SMALL), timeout=60)][-1]
    assert last.plan.iteration_s > 0


@pytest.mark.full
async def test_50_plans_at_once_do_not_block_health(site: Site) -> None:
    stub, health = planner_pb2_grpc.PlannerServiceStub(site[0]), health_pb2_grpc.HealthStub(site[0])

    async def one() -> float:
        answers = [answer async for answer in stub.Plan(pb.PlanRequest(question=SMALL), timeout=120)]
        return answers[-1].plan.iteration_s

    plans = [asyncio.create_task(one()) for _ in range(50)]
    slowest = 0.0
    while not all(plan.done() for plan in plans):
        began = time.monotonic()
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=5)
        slowest = max(slowest, time.monotonic() - began)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        await asyncio.sleep(0.01)
    assert slowest < 1.0
    assert len(set(await asyncio.gather(*plans))) == 1, "the same question has one answer"


@pytest.mark.parametrize(
    ("question", "field", "hint"),
    [
        (pb.PlanQuestion(model_name="gpt4", cluster_name="a100-8"), "model", "Did you mean"),
        (pb.PlanQuestion(model_name="/etc/x.json", cluster_name="a100-8"), "model_name", "text"),
        (pb.PlanQuestion(model_json="{", cluster_name="a100-8"), "model_json", "Correct"),
        (
            pb.PlanQuestion(model_name="gpt3-13b", cluster_json='{"devices": "x"}'),
            "cluster_json.devices",
            "how many",
        ),
        (pb.PlanQuestion(model_name="gpt3-13b", cluster_name="a100-8", batch=-1), "question.batch", "from 0"),
        (pb.PlanQuestion(model_name="gpt3-13b", cluster_name="a100-8", schedule="1f2b"), "schedule", "1f1b"),
        (pb.PlanQuestion(model_name="gpt3-175b", cluster_name="a100-8", batch=8), "cluster", "fits"),
    ],
)
async def test_bad_questions_name_the_field(
    site: Site, question: pb.PlanQuestion, field: str, hint: str
) -> None:
    stub = planner_pb2_grpc.PlannerServiceStub(site[0])
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        _ = [one async for one in stub.Plan(pb.PlanRequest(question=question), timeout=60)]
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    error = from_rpc_error(failed.value)
    assert isinstance(error, InvalidFieldError)
    (violation,) = error.violations
    assert violation.field == field
    assert hint in violation.remedy


async def test_simulate_and_explain(site: Site) -> None:
    stub = planner_pb2_grpc.PlannerServiceStub(site[0])
    degrees = pb.PlanDegrees(data=4, tensor=2, optimizer=4, pipeline=2, micro_batches=4)
    answer = await stub.Simulate(pb.SimulateRequest(question=SMALL, degrees=degrees, trace=True), timeout=60)
    assert answer.plan.degrees.pipeline == 2
    assert json.loads(answer.trace_json)["traceEvents"]
    wrong = pb.PlanDegrees(data=3, tensor=2, optimizer=1, pipeline=2, micro_batches=4)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stub.Simulate(pb.SimulateRequest(question=SMALL, degrees=wrong), timeout=60)
    assert "degrees.data" in str(from_rpc_error(failed.value))
    explained = await stub.Explain(pb.ExplainRequest(question=SMALL, count=3), timeout=60)
    assert len(explained.losers) == 3
    assert all(loser.reason for loser in explained.losers)


async def test_an_open_address_wants_tls() -> None:
    with pytest.raises(InvalidFieldError):
        check(Settings(listen="0.0.0.0:7441"))
    check(Settings(listen="0.0.0.0:7441", insecure=True))
