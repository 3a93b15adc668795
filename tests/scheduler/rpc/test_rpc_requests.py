"""Repeated requests: the same answer byte for byte, different content is refused, and one change however many
arrive."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import psycopg
import pytest
from rpc_site import RpcSite, make_spec
from sqlalchemy import func, select

from headrace.errors import (
    HeadraceError,
    LeaseStaleError,
    RequestIdReusedError,
    StudyExistsError,
)
from headrace.spec import to_proto
from headrace.v1 import spec_pb2
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.engine import runner
from headrace_services.scheduler.engine.cycle import CycleResult, run_cycle
from headrace_services.scheduler.store import tables

Make = Callable[[RpcSite], Awaitable[tuple[Any, Any]]]


def assignment(x: float) -> spec_pb2.ParameterAssignment:
    return spec_pb2.ParameterAssignment(values={"x": spec_pb2.ParameterValue(float_value=x)})


async def _create(site: RpcSite) -> tuple[Any, Any]:
    spec = to_proto(make_spec())
    return (
        pb.CreateStudyRequest(study_id="new", spec=spec),
        pb.CreateStudyRequest(study_id="other", spec=spec),
    )


async def _add(site: RpcSite) -> tuple[Any, Any]:
    return (
        pb.AddTrialsRequest(study="studies/s", parameters=[assignment(0.1)]),
        pb.AddTrialsRequest(study="studies/s", parameters=[assignment(0.2)]),
    )


async def _retry(site: RpcSite) -> tuple[Any, Any]:
    """Retries of trial 0 and trial 1, which have been cancelled."""
    for client, number in (("a", 0), ("b", 1)):
        await site.suggest(client=client)
        await site.call("StopTrial", pb.StopTrialRequest(name=f"studies/s/trials/{number}"))
    return (
        pb.RetryTrialsRequest(study="studies/s", trial_numbers=[0]),
        pb.RetryTrialsRequest(study="studies/s", trial_numbers=[1]),
    )


async def _extend(site: RpcSite) -> tuple[Any, Any]:
    return (
        pb.ExtendStudyRequest(name="studies/s", trials=2),
        pb.ExtendStudyRequest(name="studies/s", trials=3),
    )


async def _delete(site: RpcSite) -> tuple[Any, Any]:
    for name in ("gone", "kept"):
        await site.create(name)
        await site.call("StopStudy", pb.StopStudyRequest(name=f"studies/{name}"))
    return pb.DeleteStudyRequest(name="studies/gone"), pb.DeleteStudyRequest(name="studies/kept")


async def _suggest(site: RpcSite) -> tuple[Any, Any]:
    return (
        pb.SuggestTrialRequest(study="studies/s", client_id="a"),
        pb.SuggestTrialRequest(study="studies/s", client_id="b"),
    )


async def _report(site: RpcSite) -> tuple[Any, Any]:
    asked = (await site.suggest()).lease
    return (
        pb.ReportTrialRequest(lease=asked, step=1, metrics={"loss": 0.5}, checkpoint_uri="mem:/1"),
        pb.ReportTrialRequest(lease=asked, step=1, metrics={"loss": 0.6}, checkpoint_uri="mem:/1"),
    )


async def _complete(site: RpcSite) -> tuple[Any, Any]:
    asked = (await site.suggest()).lease
    return pb.CompleteTrialRequest(lease=asked, error="x"), pb.CompleteTrialRequest(lease=asked, error="y")


async def _release(site: RpcSite) -> tuple[Any, Any]:
    first, second = [(await site.suggest(client=client)).lease for client in "cd"]
    return pb.ReleaseTrialRequest(lease=first), pb.ReleaseTrialRequest(lease=second)


def _of_study(kind: Any) -> Make:
    async def make(site: RpcSite) -> tuple[Any, Any]:
        await site.create("second")
        return kind(name="studies/s"), kind(name="studies/second")

    return make


def _of_trial(kind: Any) -> Make:
    async def make(site: RpcSite) -> tuple[Any, Any]:
        await site.suggest()
        await site.suggest(client="d")
        return kind(name="studies/s/trials/0"), kind(name="studies/s/trials/1")

    return make


MUTATIONS: dict[str, Make] = {
    "CreateStudy": _create,
    "PauseStudy": _of_study(pb.PauseStudyRequest),
    "ResumeStudy": _of_study(pb.ResumeStudyRequest),
    "StopStudy": _of_study(pb.StopStudyRequest),
    "DeleteStudy": _delete,
    "AddTrials": _add,
    "RetryTrials": _retry,
    "ExtendStudy": _extend,
    "PauseTrial": _of_trial(pb.PauseTrialRequest),
    "ResumeTrial": _of_trial(pb.ResumeTrialRequest),
    "StopTrial": _of_trial(pb.StopTrialRequest),
    "Annotate": _of_trial(partial(pb.AnnotateRequest, note="a note")),
    "SuggestTrial": _suggest,
    "ReportTrial": _report,
    "CompleteTrial": _complete,
    "ReleaseTrial": _release,
}


def with_id(message: Any, request_id: str) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    copy.request_id = request_id
    return copy


def test_every_mutating_call_is_here() -> None:
    methods = pb.DESCRIPTOR.services_by_name["StudyService"].methods
    of_machines = {"DrainWorker", "UndrainWorker", "CordonDevices", "UncordonDevices"}
    asked = {m.name for m in methods if "request_id" in m.input_type.fields_by_name}
    assert asked == set(MUTATIONS) | of_machines


async def changes(site: RpcSite) -> tuple[int, ...]:
    async with site.engine.connect() as conn:
        counts = [
            (await conn.execute(select(func.count()).select_from(table))).scalar_one()
            for table in (
                tables.study,
                tables.event,
                tables.trial,
                tables.report,
                tables.lease,
                tables.request,
            )
        ]
    return tuple(counts)


@pytest.mark.parametrize("method", MUTATIONS)
async def test_a_repeat_gets_the_first_answer_and_changes_nothing(site: RpcSite, method: str) -> None:
    await site.create()
    message, other = await MUTATIONS[method](site)
    first = await site.call(method, with_id(message, "r"))
    if method == "CreateStudy":
        await site.ready("new")
    before = await changes(site)
    second = await site.call(method, with_id(message, "r"))
    assert second.SerializeToString() == first.SerializeToString()
    refused = await site.refusal(method, with_id(other, "r"))
    assert isinstance(refused, RequestIdReusedError), refused
    assert await changes(site) == before


@pytest.mark.cases(6)
@pytest.mark.parametrize("method", MUTATIONS)
async def test_duplicates_at_the_same_time_at_two_replicas_are_one_change(site: RpcSite, method: str) -> None:
    await site.create()
    other_replica = await site.add_replica()
    message, _ = await MUTATIONS[method](site)
    repeated = with_id(message, "r")
    replicas = [site.replicas[0], other_replica]
    answers = await asyncio.gather(*(replicas[n % 2].call(method, repeated) for n in range(8)))
    assert len({answer.SerializeToString() for answer in answers}) == 1
    async with site.engine.connect() as conn:
        query = select(func.count()).where(tables.request.c.request_id == "r")
        stored = (await conn.execute(query)).scalar_one()
    assert stored == 1


@pytest.mark.cases(4)
@pytest.mark.parametrize("method", MUTATIONS)
async def test_one_id_with_two_contents_at_the_same_time_does_one_of_them(site: RpcSite, method: str) -> None:
    await site.create()
    message, other = await MUTATIONS[method](site)
    calls = [site.call(method, with_id(content, "r")) for content in (message, other) for _ in range(3)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    assert len(refused) == 3
    assert {type(error) for error in refused} == {RequestIdReusedError}


async def test_without_an_id_every_call_counts(site: RpcSite) -> None:
    await site.create()
    message, _ = await _add(site)
    first = await site.call("AddTrials", message)
    second = await site.call("AddTrials", message)
    assert first.trials[0].number != second.trials[0].number


@pytest.mark.parametrize("request_id", ["", "r"])
async def test_a_commit_without_an_answer_is_not_repeated(
    site: RpcSite, monkeypatch: pytest.MonkeyPatch, request_id: str
) -> None:
    await site.create()
    before = (await site.study()).status.pending
    lost = 0

    async def deaf(*arguments: Any) -> CycleResult:
        nonlocal lost
        result = await run_cycle(*arguments)
        if lost < 2:
            lost += 1
            raise psycopg.OperationalError("the connection broke after the commit")
        return result

    monkeypatch.setattr(runner, "run_cycle", deaf)
    message, _ = await _add(site)
    added = await site.call("AddTrials", with_id(message, request_id))
    assert lost == 2
    assert len(added.trials) == 1
    assert (await site.study()).status.pending == before + 1


async def test_two_replicas_create_a_study_of_one_name_once(site: RpcSite) -> None:
    other = await site.add_replica()
    request = pb.CreateStudyRequest(study_id="new", spec=to_proto(make_spec()))
    calls = [replica.call("CreateStudy", request) for replica in (site.replicas[0], other) for _ in range(4)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(not isinstance(answer, BaseException) for answer in answers) == 1
    assert {type(answer) for answer in answers if isinstance(answer, HeadraceError)} == {StudyExistsError}


async def test_a_stale_report_stays_stale_when_it_is_repeated(site: RpcSite) -> None:
    await site.create()
    message, _ = await _report(site)
    await site.call("StopTrial", pb.StopTrialRequest(name="studies/s/trials/0"))
    for _ in range(2):
        assert isinstance(await site.refusal("ReportTrial", with_id(message, "r")), LeaseStaleError)


async def test_a_repeat_is_answered_after_the_study_was_deleted(site: RpcSite) -> None:
    await site.create()
    stop = pb.StopStudyRequest(name="studies/s", request_id="stop")
    first = await site.call("StopStudy", stop)
    await site.call("DeleteStudy", pb.DeleteStudyRequest(name="studies/s"))
    again = await site.call("StopStudy", stop)
    assert (again.study.name, again.study.state, again.study.detail) == (
        first.study.name,
        first.study.state,
        first.study.detail,
    )
    assert "deleted" in again.study.unshown
    reused = pb.StopStudyRequest(name="studies/s", request_id="stop", reason="other")
    assert isinstance(await site.refusal("StopStudy", reused), RequestIdReusedError)
