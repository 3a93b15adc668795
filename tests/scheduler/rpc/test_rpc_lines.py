"""Lines: reports and ends of trials on a stream, as by their calls."""

import asyncio
from typing import Any

import grpc
import pytest
from rpc_site import RpcSite

from headrace.errors import DrainingError, LeaseStaleError
from headrace.v1 import event_pb2, trial_pb2
from headrace.v1 import study_pb2 as pb

RUN_ALL = {"kind": "run_all"}


def report(
    lease: event_pb2.LeaseRef, step: int, *, request_id: str = "", value: float = 0.5
) -> pb.ReportTrialRequest:
    return pb.ReportTrialRequest(request_id=request_id, lease=lease, step=step, metrics={"loss": value})


async def tell(line: Any, **request: Any) -> pb.TellTrialsResponse:
    """One request and its answer."""
    await line.write(pb.TellTrialsRequest(**request))
    answer = await asyncio.wait_for(line.read(), 20)
    assert isinstance(answer, pb.TellTrialsResponse), "the line has ended"
    return answer


async def test_a_line_answers_as_the_calls_do(site: RpcSite) -> None:
    await site.create(policy=RUN_ALL)
    asked = await site.suggest()
    line = site.replicas[0].stub.TellTrials()
    first = await tell(line, report=report(asked.lease, 1, request_id="r-1"))
    assert first.report.decision.action == event_pb2.DECISION_ACTION_CONTINUE
    assert await site.call("ReportTrial", report(asked.lease, 1, request_id="r-1")) == first.report
    following = pb.SuggestTrialRequest(request_id="ask-1", study="studies/s", client_id="loop")
    end = pb.CompleteTrialRequest(request_id="end-1", lease=asked.lease, next=following)
    second = await tell(line, complete=end)
    assert second.complete.trial.state == trial_pb2.TRIAL_STATE_TERMINATED
    assert second.complete.next.trial.number == 1
    assert await site.call("CompleteTrial", end) == second.complete
    reports = await site.call("ListReports", pb.ListReportsRequest(parent=asked.trial.name))
    assert len(reports.reports) == 1
    line.cancel()


async def test_what_is_refused_has_no_answer_and_the_line_goes_on(site: RpcSite) -> None:
    await site.create(policy=RUN_ALL)
    asked = await site.suggest()
    stale = event_pb2.LeaseRef(lease_id="another", trial=asked.lease.trial, epoch=1)
    line = site.replicas[0].stub.TellTrials()
    for request in (
        {"report": report(stale, 1)},
        {"report": report(event_pb2.LeaseRef(), 1)},
        {"complete": pb.CompleteTrialRequest(lease=stale)},
        {},
    ):
        assert (await tell(line, **request)).WhichOneof("response") is None
    with pytest.raises(LeaseStaleError):  # the call says why
        await site.call("ReportTrial", report(stale, 1))
    assert (await tell(line, report=report(asked.lease, 1))).report.decision.action
    line.cancel()


async def test_a_line_ends_when_the_scheduler_has_drained(site: RpcSite) -> None:
    await site.create(policy=RUN_ALL)
    other = await site.add_replica()
    asked = await site.suggest()
    line, idle = other.stub.TellTrials(), other.stub.TellTrials()
    await tell(line, report=report(asked.lease, 1))
    await tell(idle)
    await other.hub.drain()
    for ended in (line, idle):
        assert await asyncio.wait_for(ended.read(), 5) is grpc.aio.EOF
        assert await ended.code() is grpc.StatusCode.OK
    late = other.stub.TellTrials()
    assert await late.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(DrainingError):
        await other.call("ReportTrial", report(asked.lease, 2))
    await site.report(asked.lease, 2, 0.5)


async def test_a_caller_that_goes_away_ends_its_line(site: RpcSite) -> None:
    await site.create(policy=RUN_ALL)
    asked = await site.suggest()
    line = site.replicas[0].stub.TellTrials()
    await tell(line, report=report(asked.lease, 1))
    streams = site.replicas[0].hub._streams  # what is open here, nobody else says
    assert len(streams) == 1
    line.cancel()
    async with asyncio.timeout(5):
        while streams:
            await asyncio.sleep(0.01)
