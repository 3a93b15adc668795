"""Steps that an ask/tell trial must not report: refused with field and value before anything is stored."""

import math
from typing import Any

import pytest
from rpc_site import RpcSite

from headrace.errors import InvalidFieldError, LeaseStaleError
from headrace.v1 import event_pb2
from headrace.v1 import study_pb2 as pb

CONTINUE = event_pb2.DECISION_ACTION_CONTINUE
RUNGS: dict[str, Any] = {"policy": {"kind": "rung_median", "rungs": [1, 3, 9]}}  # a trial alone continues
EVEN: dict[str, Any] = {"max_steps": 100, "policy": {"kind": "median", "interval": 10}}
PBT: dict[str, Any] = {"max_steps": 100, "policy": {"kind": "pbt", "interval": 10}}


def tell(lease: event_pb2.LeaseRef, step: int, **fields: Any) -> pb.ReportTrialRequest:
    return pb.ReportTrialRequest(lease=lease, step=step, metrics={"loss": 0.5}, **fields)


async def stored(site: RpcSite) -> list[int]:
    found = await site.call("ListReports", pb.ListReportsRequest(parent="studies/s"))
    return [report.step for report in found.reports]


@pytest.mark.parametrize(
    ("changes", "before", "step", "message"),
    [
        ({}, (), 0, "is before the first step"),
        ({}, (), 100, "is past the full budget of 9 steps"),
        ({}, (), 2, "jumps over the rung at 1"),
        (RUNGS, (1, 2), 4, "jumps over the rung at 3"),
        ({"policy": {"kind": "run_all"}}, (), 10, "is past the full budget of 9 steps"),
        (EVEN, (10,), 25, "jumps over the rung at 20"),
        (PBT, (5,), 25, "jumps over the rungs at 10, 20"),
    ],
)
async def test_a_step_past_the_budget_or_over_a_rung_is_refused(
    site: RpcSite, changes: dict[str, Any], before: tuple[int, ...], step: int, message: str
) -> None:
    await site.create(**changes)
    lease = (await site.suggest()).lease
    for taken in before:
        assert (await site.report(lease, taken, 0.5)).action == CONTINUE
    refused = await site.refusal("ReportTrial", tell(lease, step))
    assert isinstance(refused, InvalidFieldError)
    (violation,) = refused.violations
    assert (violation.field, violation.value, violation.message) == ("step", str(step), message)
    assert violation.remedy
    assert await stored(site) == list(before)
    after = before[-1] + 1 if before else 1
    await site.report(lease, after, 0.5)  # the client still has the trial
    assert await stored(site) == [*before, after]


@pytest.mark.parametrize(
    "policy",
    [
        {"kind": "run_all"},
        {"kind": "median"},  # nobody chose the steps at which it decides
        {"kind": "rung_median", "rungs": [40, 100]},
    ],
)
async def test_between_rungs_a_trial_reports_as_it_likes(site: RpcSite, policy: dict[str, Any]) -> None:
    await site.create(max_steps=100, policy=policy)
    lease = (await site.suggest()).lease
    for step in (25, 40, 65):
        assert (await site.report(lease, step, 0.5)).action == CONTINUE
    assert await stored(site) == [25, 40, 65]


async def test_a_repeat_at_a_rung_is_answered_as_the_first_one(site: RpcSite) -> None:
    await site.create(**RUNGS)
    lease = (await site.suggest()).lease
    request = tell(lease, 1, request_id="once", checkpoint_uri="mem:/1")
    first = await site.call("ReportTrial", request)
    assert (await site.report(lease, 2, 0.5)).action == CONTINUE
    assert await site.call("ReportTrial", request) == first
    assert await stored(site) == [1, 2]


@pytest.mark.parametrize(
    ("step", "value", "message"),
    [
        (2, 0.25, "was reported already"),
        (1, 0.5, "lies before step 2, which was reported already"),
    ],
)
async def test_a_value_that_could_not_count_is_refused(
    site: RpcSite, step: int, value: float, message: str
) -> None:
    await site.create(policy={"kind": "run_all"})
    lease = (await site.suggest()).lease
    await site.report(lease, 2, math.nan)
    assert (await site.report(lease, 2, math.nan)).action == CONTINUE, "the same, told again"
    told = pb.ReportTrialRequest(lease=lease, step=step, metrics={"loss": value})
    refused = await site.refusal("ReportTrial", told)
    assert isinstance(refused, InvalidFieldError)
    (violation,) = refused.violations
    assert (violation.field, violation.value, violation.message) == ("step", str(step), message)
    assert violation.remedy == "A step counts once, with its first report: continue with step 3."
    assert await stored(site) == [2]


async def test_a_report_that_arrives_twice_is_stored_once(site: RpcSite) -> None:
    """Under another request id, as when a program repeats a call of which it had no answer."""
    await site.create(**RUNGS)
    lease = (await site.suggest()).lease
    for request_id in ("first", "second"):
        found = await site.call("ReportTrial", tell(lease, 1, request_id=request_id, checkpoint_uri="mem:/1"))
        assert (found.decision.action, found.decision.next_milestone) == (CONTINUE, 3)
    assert (await site.report(lease, 1, 0.5, checkpoint_uri="")).action == CONTINUE, (
        "it names no checkpoint, so none changes"
    )
    assert await stored(site) == [1]
    why = await site.call("ExplainTrial", pb.ExplainTrialRequest(name="studies/s/trials/0"))
    assert [one.report_recorded.step for one in why.events if one.HasField("report_recorded")] == [1]
    assert why.trial.checkpoint.uri == "mem:/1"
    await site.report(lease, 1, 0.5, checkpoint_uri="mem:/other")
    assert await stored(site) == [1, 1], "another checkpoint is news"
    assert (await site.report(lease, 2, 0.4)).action == CONTINUE


async def test_a_report_that_arrives_twice_with_changed_code_is_stored_once(site: RpcSite) -> None:
    """Each client call that had no answer sends the code again. The second trial runs other code than the first."""
    await site.create(policy={"kind": "run_all"})
    for number in (0, 1):
        lease = (await site.suggest()).lease
        file = event_pb2.SourceFile(path="train.py", digest=f"{number:x}" * 16)
        code = event_pb2.AttemptCode(files=[file], digest=f"{number:x}" * 16)
        for _ in range(2):
            found = await site.call("ReportTrial", tell(lease, 1, code=code))
            assert found.decision.action == CONTINUE
    assert await stored(site) == [1, 1], "one of each trial"


async def test_a_trial_that_starts_again_need_not_meet_the_rungs_behind_it(site: RpcSite) -> None:
    await site.create(**RUNGS)
    first = await site.suggest()
    for step in (1, 2, 3):
        await site.report(first.lease, step, 0.5, checkpoint_uri="")
    await site.call("ReleaseTrial", pb.ReleaseTrialRequest(lease=first.lease))
    again = await site.suggest()
    assert again.trial.name == first.trial.name
    assert (await site.report(again.lease, 5, 0.5)).action == CONTINUE
    refused = await site.refusal("ReportTrial", tell(again.lease, 10))
    assert isinstance(refused, InvalidFieldError)


async def test_the_first_report_says_what_it_lacks(site: RpcSite) -> None:
    await site.create(
        policy={"kind": "run_all"},
        further_objectives=[{"metric": "latency", "goal": "minimize"}],
        constraints=[{"metric": "size", "at_most": 1.0}],
    )
    lease = (await site.suggest()).lease
    for step in (1, 2):
        request = pb.ReportTrialRequest(lease=lease, step=step, metrics={"loss": 0.5, "latency": 2.0})
        await site.call("ReportTrial", request)
    story = await site.call("ExplainTrial", pb.ExplainTrialRequest(name=lease.trial))
    (event,) = [event for event in story.events if event.WhichOneof("detail") == "metrics_missing"]
    assert (
        event.message == "trial 0's first report has no 'size', which the study reads; it has latency, loss"
    )
    assert list(event.metrics_missing.missing) == ["size"]
    assert list(event.metrics_missing.reported) == ["latency", "loss"]


@pytest.mark.parametrize("policy", [{"kind": "rung_median", "rungs": [1, 3, 9]}, {"kind": "run_all"}])
@pytest.mark.parametrize("metrics", [{"accuracy": 0.5, "losss": 0.5}, {}])
async def test_a_report_without_the_metric_is_refused_and_the_study_continues(
    site: RpcSite, policy: dict[str, Any], metrics: dict[str, float]
) -> None:
    await site.create(policy=policy)
    lease = (await site.suggest()).lease
    refused = await site.refusal("ReportTrial", pb.ReportTrialRequest(lease=lease, step=1, metrics=metrics))
    assert isinstance(refused, InvalidFieldError)
    (violation,) = refused.violations
    assert (violation.field, violation.message) == ("metrics", "lack the objective's metric 'loss'")
    assert violation.value == ", ".join(repr(name) for name in metrics)
    assert violation.remedy
    assert await stored(site) == []
    assert (await site.study()).state == pb.STUDY_STATE_ACTIVE
    assert (await site.report(lease, 1, 0.5)).action == CONTINUE, "the trial is still the client's"
    assert await stored(site) == [1]


async def test_a_report_without_a_further_objective_is_refused_at_any_time(site: RpcSite) -> None:
    cost = {"metric": "ms", "goal": "minimize"}
    await site.create(policy={"kind": "run_all"}, further_objectives=[cost], max_trials=2)
    for _ in range(2):
        lease = (await site.suggest()).lease
        request = pb.ReportTrialRequest(lease=lease, step=1, metrics={"loss": 0.5})
        refused = await site.refusal("ReportTrial", request)
        assert isinstance(refused, InvalidFieldError)
        assert refused.violations[0].message == "lack the objective's metric 'ms'"
        request.metrics["ms"] = 3.0
        request.step = 9
        await site.call("ReportTrial", request)
    assert (await site.study()).state != pb.STUDY_STATE_FAILED


async def test_a_stale_lease_of_a_failed_study_says_why_it_failed(site: RpcSite) -> None:
    await site.create(max_retries=0)
    leases = [(await site.suggest(client=f"c{n}")).lease for n in range(4)]
    for lease in leases[:3]:
        await site.call("CompleteTrial", pb.CompleteTrialRequest(lease=lease, error="ValueError: boom"))
    why = r"You no longer hold trial 3: study 's' has failed: the first 3 trials failed .* ValueError: boom"
    with pytest.raises(LeaseStaleError, match=why):
        await site.report(leases[3], 1, 0.5)
