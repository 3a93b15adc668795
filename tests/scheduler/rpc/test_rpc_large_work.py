"""Work that a caller can make large keeps nobody waiting: it is answered, or refused with what was too large."""

import asyncio
import multiprocessing
import time
from typing import Any

import psutil
import pytest
from rpc_site import RpcSite, make_spec

from headrace.errors import HeadraceError, InvalidFieldError, TooLargeError
from headrace.spec import to_proto
from headrace.v1 import study_pb2 as pb

INT32_MAX = 2**31 - 1
"""What once took all of the machine's memory. Run old code under `ulimit -v`."""
LARGE: dict[str, dict[str, Any]] = {
    "a float": {"space": {"x": {"type": "float", "low": 0.0, "high": 1.0}}},
    "an int": {"space": {"x": {"type": "int", "low": 0, "high": 2**40}}},
    "a logarithmic int": {"space": {"x": {"type": "int", "low": 1, "high": 2**40, "log": True}}},
    "a condition": {
        "space": {
            "x": {"type": "int", "low": 0, "high": 2**40},
            "y": {"type": "int", "low": 1, "high": 3, "conditions": [{"parameter": "x", "values": [7]}]},
        }
    },
}


async def beside(site: RpcSite, method: str, request: Any, timeout_s: float = 15.0) -> Any:
    """A call's answer or error; nobody who lists the studies meanwhile waits for a second."""
    large = asyncio.create_task(site.replicas[0].call(method, request, timeout_s))
    while not large.done():
        began = time.monotonic()
        await site.call("ListStudies", pb.ListStudiesRequest())
        assert time.monotonic() - began < 1.0
        await asyncio.wait([large], timeout=0.02)
    try:
        return large.result()
    except HeadraceError as error:
        return error


@pytest.mark.parametrize("kind", LARGE)
async def test_a_grid_of_very_many_points(site: RpcSite, kind: str) -> None:
    spec = make_spec(sampler={"kind": "grid", "points": {"x": INT32_MAX}}, **LARGE[kind])
    answer = await beside(site, "CreateStudy", pb.CreateStudyRequest(study_id="s", spec=to_proto(spec)))
    if kind == "a logarithmic int":
        assert isinstance(answer, InvalidFieldError), answer
        assert answer.violations[0].field == "sampler.points.x"
        assert answer.violations[0].remedy
    else:
        assert answer.study.name == "studies/s"
        assert (await site.suggest()).trial.parameters.values


async def test_a_preview_on_very_many_slots(site: RpcSite) -> None:
    request = pb.PreviewStudyRequest(spec=to_proto(make_spec()), slots=INT32_MAX)
    answer = await beside(site, "PreviewStudy", request)
    few = await beside(site, "PreviewStudy", pb.PreviewStudyRequest(spec=to_proto(make_spec()), slots=1000))
    assert answer.slots == INT32_MAX
    answer.slots = few.slots
    assert answer == few


async def test_what_a_preview_cannot_hold_is_refused_and_harms_nobody(site: RpcSite) -> None:
    """Each simulated machine gets as many devices as a trial asks for."""
    spec = make_spec(
        max_trials=600, template={"callable": "t:t", "working_dir": "/tmp"}, resources={"slots": 1_000_000}
    )
    answer = await beside(site, "PreviewStudy", pb.PreviewStudyRequest(spec=to_proto(spec), slots=600), 60)
    assert isinstance(answer, TooLargeError), answer
    assert answer.remedy
    spec = make_spec(max_trials=3)
    answer = await site.call("PreviewStudy", pb.PreviewStudyRequest(spec=to_proto(spec), slots=600))
    assert answer.trials == 3


async def test_a_preview_stops_when_its_caller_has_gone(site: RpcSite) -> None:
    spec = make_spec(
        max_trials=600, template={"callable": "t:t", "working_dir": "/tmp"}, resources={"slots": 2000}
    )
    request = pb.PreviewStudyRequest(spec=to_proto(spec), slots=600)
    before = set(multiprocessing.active_children())
    call = asyncio.create_task(site.replicas[0].call("PreviewStudy", request, 60))
    async with asyncio.timeout(30):
        while not (mine := set(multiprocessing.active_children()) - before):
            await asyncio.sleep(0.01)
        process = psutil.Process(mine.pop().pid)
        while process.cpu_times().user < 5 and not call.done():
            await asyncio.sleep(0.02)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        began = time.monotonic()
        while process.is_running():
            await asyncio.sleep(0.01)
    assert time.monotonic() - began < 1.0
