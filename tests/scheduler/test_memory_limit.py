"""A scheduler with 4 GiB of address space survives the calls that once took all of a machine's memory.

Each call gets an answer or a refusal within its deadline, never INTERNAL or UNKNOWN. During the call and after it,
another client lists the studies within a second. At the end every study can be stopped and deleted.
"""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import psutil
import pytest
from google.protobuf.duration_pb2 import Duration
from limited import limited

from headrace.spec import StudySpec, to_proto
from headrace.v1 import event_pb2, spec_pb2, worker_pb2
from headrace.v1 import study_pb2 as pb
from headrace.v1.study_pb2_grpc import StudyServiceStub
from headrace.v1.worker_pb2_grpc import WorkerServiceStub

pytestmark = pytest.mark.full

LIMIT_BYTES = 4 * 1024**3
GROWTH_MIB = 100
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
DEADLINE_S = 15.0
SERVING = b"headrace scheduler: serving on "


def spec(**changes: Any) -> spec_pb2.StudySpec:
    """A small ask/tell study."""
    fields: dict[str, Any] = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "policy": {"kind": "asha", "eta": 3, "rungs": [1, 3, 9]},
        "max_trials": 9,
        "max_steps": 9,
    }
    return to_proto(StudySpec.model_validate({**fields, **changes}))


def grid(points: int, dimensions: int = 1) -> spec_pb2.StudySpec:
    """A grid with that many points in each dimension."""
    space = {f"x{n}": {"type": "int", "low": 1, "high": 2**40, "log": True} for n in range(dimensions)}
    message = spec(space=space, sampler={"kind": "grid"})
    message.sampler.grid.points.update({f"x{n}": points for n in range(dimensions)})
    return message


def large_trials() -> spec_pb2.StudySpec:
    """The maximum of everything in a preview."""
    template = {"callable": "t:t", "working_dir": "/tmp"}
    return spec(max_trials=1_000_000, template=template, resources={"gpus": 1024})


def products() -> Iterator[tuple[str, spec_pb2.StudySpec]]:
    """Specs of a few kilobytes whose fields are within their bounds, but whose products once took minutes."""
    wide = spec(
        space={f"p{n}": {"type": "float", "low": 0, "high": 1} for n in range(1000)}, max_trials=10_000
    )
    yield "wide", wide
    for entries in (200, 1000):
        empty = spec_pb2.StudySpec()
        empty.CopyFrom(wide)
        empty.enqueued.extend([spec_pb2.ParameterAssignment()] * entries)
        yield f"empty-{entries}", empty
    strange = spec_pb2.StudySpec()
    strange.CopyFrom(wide)
    for entry in range(20):
        strange.enqueued.add()
        for name in range(50):
            strange.enqueued[entry].values[f"q{name}"].int_value = 1
    yield "strange", strange
    for parents, others in ((13, 250), (12, 200), (12, 40)):
        flag = {"type": "categorical", "values": [False, True]}
        space = {f"b{n}": flag for n in range(parents)}
        space |= {f"n{n}": {"type": "int", "low": 1, "high": 9} for n in range(others)}
        message = spec(space={**space, "z": {"type": "int", "low": 1, "high": 2}})
        for parent in range(parents):
            message.space[-1].conditions.add(parameter=f"b{parent}").values.add(bool_value=True)
        message.sampler.grid.SetInParent()
        yield f"grid-{parents}-{others}", message


def with_max_steps(steps: int) -> spec_pb2.StudySpec:
    message = spec(policy={"kind": "run_all"})
    message.max_steps = steps
    return message


def aimed(lease: event_pb2.LeaseRef) -> Iterator[tuple[str, Any]]:
    """The calls, by method."""
    many = {f"a-metric-of-a-long-name-{n}": float(n) for n in range(60_000)}
    digits = "9" * 5000
    yield "CreateStudy", pb.CreateStudyRequest(study_id="a", spec=grid(INT32_MAX))
    yield "CreateStudy", pb.CreateStudyRequest(study_id="b", spec=grid(10_000, 200))
    yield "CreateStudy", pb.CreateStudyRequest(study_id="c", spec=with_max_steps(2**62))
    yield "CreateStudy", pb.CreateStudyRequest(study_id="d", spec=large_trials())
    yield "CreateStudy", pb.CreateStudyRequest(study_id="nul\0", spec=spec())
    yield "PreviewStudy", pb.PreviewStudyRequest(spec=spec(), slots=INT32_MAX)
    yield "PreviewStudy", pb.PreviewStudyRequest(spec=large_trials(), slots=10_000)
    yield "PreviewStudy", pb.PreviewStudyRequest(spec=grid(10_000, 200), slots=10_000)
    for name, message in products():
        yield "CreateStudy", pb.CreateStudyRequest(study_id=name, spec=message)
        yield "PreviewStudy", pb.PreviewStudyRequest(spec=message, slots=2)
    empty, strange = spec_pb2.ParameterAssignment(), spec_pb2.ParameterAssignment()
    for name in range(1000):
        strange.values[f"q{name}"].int_value = 1
    yield "AddTrials", pb.AddTrialsRequest(study="studies/wide", parameters=[empty] * 200)
    yield "AddTrials", pb.AddTrialsRequest(study="studies/wide", parameters=[strange] * 100)
    for _ in range(2):
        yield "ReportTrial", pb.ReportTrialRequest(lease=lease, step=INT64_MAX, metrics={"loss": 0.5})
    yield "ReportTrial", pb.ReportTrialRequest(lease=lease, step=1, metrics=many)
    yield "ReportTrial", pb.ReportTrialRequest(lease=lease, step=1, metrics={"nul\0": 0.5})
    yield "ListStudies", pb.ListStudiesRequest(page_size=INT32_MAX, page_token="bm90IG91cnM")
    yield "ListTrials", pb.ListTrialsRequest(study="studies/s", page_size=INT32_MAX, page_token="[" * 20_000)
    yield "GetTrial", pb.GetTrialRequest(name=f"studies/s/trials/{digits}")
    yield "ExplainTrial", pb.ExplainTrialRequest(name="studies/s/trials/\0")
    yield "WatchStudy", pb.WatchStudyRequest(name="studies/s", after_cursor=INT64_MAX)


def hello(devices: int) -> worker_pb2.SessionRequest:
    described = [
        worker_pb2.Device(index=index, kind=worker_pb2.DEVICE_KIND_CPU, model="cpu")
        for index in range(devices)
    ]
    return worker_pb2.SessionRequest(
        hello=worker_pb2.Hello(protocol=1, worker="w", incarnation="1", devices=described)
    )


def poison(lease: event_pb2.LeaseRef) -> Iterator[worker_pb2.SessionRequest]:
    long = Duration(seconds=10**17)
    yield worker_pb2.SessionRequest(
        report=worker_pb2.Report(sequence=1, lease=lease, step=INT64_MAX, train_time=long)
    )
    yield worker_pb2.SessionRequest(
        exited=worker_pb2.Exited(sequence=INT64_MAX, lease=lease, error="\0" * 1_000_000)
    )


@asynccontextmanager
async def scheduler(database_url: str) -> AsyncIterator[tuple[psutil.Process, str]]:
    """A scheduler under the memory limit, and its address."""
    arguments = ["--database-url", database_url, "--listen", "127.0.0.1:0", "--sampler-processes", "1"]
    process = await asyncio.create_subprocess_exec(
        *limited(LIMIT_BYTES, sys.executable, "-m", "headrace.cli", "scheduler", *arguments),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            line = await process.stdout.readline()
        yield psutil.Process(process.pid), line.strip().removeprefix(SERVING).decode()
        assert process.returncode is None, "the scheduler died"
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def made(stub: Any, method: str, request: Any) -> grpc.StatusCode:
    """The status of a call; it may take its deadline and one more second."""
    began = time.monotonic()
    try:
        call = getattr(stub, method)(request, timeout=DEADLINE_S)
        if method == "WatchStudy":
            await call.read()
        else:
            await call
    except grpc.aio.AioRpcError as error:
        status = error.code()
    else:
        status = grpc.StatusCode.OK
    assert time.monotonic() - began < DEADLINE_S + 1
    return status


async def listed(stub: Any) -> None:
    began = time.monotonic()
    await stub.ListStudies(pb.ListStudiesRequest(), timeout=5)
    assert time.monotonic() - began < 1.0


async def attacked(stub: Any, method: str, request: Any) -> None:
    """Make a call, and list the studies during it and after it."""
    call = asyncio.create_task(made(stub, method, request))
    while not call.done():
        await listed(stub)
        await asyncio.wait([call], timeout=0.05)
    status = call.result()
    assert status not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), (method, str(request)[:200])
    await listed(stub)


async def poisoned(stub: Any, workers: Any, lease: event_pb2.LeaseRef, devices: int) -> None:
    session = workers.Session(timeout=DEADLINE_S)
    for message in (hello(devices), *poison(lease)):
        try:
            await session.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            break  # it was refused
        await listed(stub)
    session.cancel()
    await listed(stub)


async def test_a_scheduler_under_4_gib_lives_through_all_of_it(database_url: str) -> None:
    async with (
        scheduler(database_url) as (process, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        stub, workers = StudyServiceStub(channel), WorkerServiceStub(channel)
        await stub.CreateStudy(pb.CreateStudyRequest(study_id="s", spec=spec()), timeout=DEADLINE_S)
        ask = pb.SuggestTrialRequest(study="studies/s", client_id="c")
        async with asyncio.timeout(30):
            while not (asked := await stub.SuggestTrial(ask, timeout=DEADLINE_S)).HasField("trial"):
                await asyncio.sleep(0.05)
        await made(stub, "PreviewStudy", pb.PreviewStudyRequest(spec=spec(), slots=1))
        before = process.memory_info().rss
        for method, request in aimed(asked.lease):
            await attacked(stub, method, request)
        for devices in (1, 10_000):
            await poisoned(stub, workers, asked.lease, devices)
        assert process.memory_info().rss - before < GROWTH_MIB * 2**20
        page = await stub.ListStudies(pb.ListStudiesRequest(), timeout=DEADLINE_S)
        assert not page.unshown
        for study in page.studies:
            await stub.StopStudy(pb.StopStudyRequest(name=study.name), timeout=DEADLINE_S)
            await stub.DeleteStudy(pb.DeleteStudyRequest(name=study.name), timeout=DEADLINE_S)
        assert not (await stub.ListStudies(pb.ListStudiesRequest(), timeout=DEADLINE_S)).studies
