"""Ask and tell: decisions, pauses and resumes, leases that pass to other clients, and the ways in which a trial
ends."""

import pytest
from rpc_site import RpcSite, duration, expire

from headrace.errors import LeaseStaleError
from headrace.v1 import event_pb2, trial_pb2
from headrace.v1 import study_pb2 as pb

CONTINUE = event_pb2.DECISION_ACTION_CONTINUE
PAUSE = event_pb2.DECISION_ACTION_PAUSE
STOP = event_pb2.DECISION_ACTION_STOP


async def complete(site: RpcSite, lease: event_pb2.LeaseRef, error: str = "") -> trial_pb2.Trial:
    return (await site.call("CompleteTrial", pb.CompleteTrialRequest(lease=lease, error=error))).trial


async def test_a_suggestion_holds_all_that_a_caller_needs(site: RpcSite) -> None:
    await site.create(baseline={"x": 0.5})
    asked = await site.suggest(lease_time=duration(30))
    assert asked.trial.name == "studies/s/trials/0"
    assert asked.trial.baseline
    assert asked.trial.state == trial_pb2.TRIAL_STATE_RUNNING
    assert asked.trial.parameters.values["x"].float_value == 0.5
    assert asked.trial.worker == ""
    assert not asked.trial.slots
    assert asked.trial.HasField("start_time")
    assert (asked.lease.trial, asked.lease.attempt) == (asked.trial.name, 1)
    assert asked.next_milestone == 1
    assert not asked.done


@pytest.mark.parametrize(
    ("reported", "detail"),
    [
        (True, "its client completed it at step 1 of 9"),
        (False, "its client completed it without reporting 'loss'; report before you complete"),
    ],
)
async def test_a_client_that_completes_early_is_told_so(site: RpcSite, reported: bool, detail: str) -> None:
    await site.create(policy={"kind": "run_all"})
    lease = (await site.suggest()).lease
    if reported:
        await site.report(lease, 1, 0.5)
    assert (await complete(site, lease)).detail == detail


async def test_a_trial_pauses_and_another_caller_continues_it_from_its_checkpoint(site: RpcSite) -> None:
    await site.create(max_trials=3)
    asked = [await site.suggest(client=f"c{n}") for n in range(3)]
    assert (await site.report(asked[0].lease, 1, 0.1)).action == PAUSE
    assert (await site.report(asked[1].lease, 1, 0.2)).action == PAUSE
    decision = await site.report(asked[2].lease, 1, 0.3)
    assert decision.action == PAUSE
    assert decision.reason
    again = await site.suggest(client="other")
    assert again.trial.number == 0
    assert again.lease.attempt == 2
    assert again.trial.state == trial_pb2.TRIAL_STATE_RESUMED
    assert (again.trial.checkpoint.uri, again.trial.checkpoint.step) == (
        f"mem:/{asked[0].lease.lease_id}/1",
        1,
    )
    assert again.next_milestone == 3
    assert [result.promoted for result in again.trial.rung_results] == [True]
    assert (await site.report(again.lease, 2, 0.1)).action == CONTINUE
    running = (await site.call("GetTrial", pb.GetTrialRequest(name=again.trial.name))).trial
    assert running.state == trial_pb2.TRIAL_STATE_RUNNING
    gone = r"You no longer hold trial 0: it was paused .*, and then given to client 'other'\. Leave this trial and ask"
    with pytest.raises(LeaseStaleError, match=gone):
        await site.report(asked[0].lease, 2, 0.1)
    with pytest.raises(LeaseStaleError):
        await complete(site, asked[0].lease)


async def test_the_full_budget_ends_a_trial_and_completing_it_returns_it(site: RpcSite) -> None:
    await site.create(policy={"kind": "run_all"}, max_trials=1, max_steps=2)
    asked = await site.suggest()
    assert (await site.report(asked.lease, 1, 0.5)).action == CONTINUE
    assert (await site.report(asked.lease, 2, 0.4)).action == STOP
    trial = await complete(site, asked.lease)
    assert trial.termination_reason == trial_pb2.TERMINATION_REASON_COMPLETED
    assert trial.best_value == 0.4
    assert (await site.suggest()).done
    with pytest.raises(LeaseStaleError):
        await site.report(asked.lease, 3, 0.1)


async def infeasible(site: RpcSite, lease: event_pb2.LeaseRef, reason: str) -> trial_pb2.Trial:
    request = pb.CompleteTrialRequest(lease=lease, error=reason, infeasible=True)
    return (await site.call("CompleteTrial", request)).trial


@pytest.mark.parametrize("late", [False, True])
async def test_an_infeasible_trial_is_over_and_no_failure(site: RpcSite, late: bool) -> None:
    await site.create(policy={"kind": "run_all"}, max_trials=1)
    lease = (await site.suggest()).lease
    await site.report(lease, 1, 0.5)
    if late:
        await expire(site, 0)
    for reason in ("no such size", "told a second time"):
        trial = await infeasible(site, lease, reason)
        assert trial.termination_reason == trial_pb2.TERMINATION_REASON_INFEASIBLE
        assert (trial.detail, trial.failures) == ("no such size", 0)
    assert (await site.suggest()).done, "it is not tried again"


@pytest.mark.parametrize("names", [("loss",), ("loss", "size")])
async def test_an_infeasible_trial_is_never_the_best(site: RpcSite, names: tuple[str, ...]) -> None:
    further = [{"metric": name, "goal": "minimize"} for name in names[1:]]
    await site.create(policy={"kind": "run_all"}, max_trials=2, further_objectives=further)
    for value in (0.5, 0.7):
        lease = (await site.suggest()).lease
        request = pb.ReportTrialRequest(lease=lease, step=1, metrics=dict.fromkeys(names, value))
        await site.call("ReportTrial", request)
        assert (await site.study()).status.HasField("best")
        await infeasible(site, lease, "no such size")
        status = (await site.study()).status
        assert not status.HasField("best")
        assert not status.front


async def test_nothing_that_an_infeasible_trial_reported_counts(site: RpcSite) -> None:
    further = [{"metric": "size", "goal": "minimize"}]
    limits = [{"metric": "heat", "at_most": 9.0}]
    await site.create(
        policy={"kind": "run_all"}, max_trials=2, further_objectives=further, constraints=limits
    )
    for ends in (True, False):
        lease = (await site.suggest()).lease
        metrics = {"loss": 0.5, "size": 2.0, "heat": 3.0}
        await site.call("ReportTrial", pb.ReportTrialRequest(lease=lease, step=1, metrics=metrics))
        if ends:
            await infeasible(site, lease, "no such size")
    listed = (await site.call("ListTrials", pb.ListTrialsRequest(study="studies/s"))).trials
    assert [dict(one.objective_values) for one in listed] == [{}, {"loss": 0.5, "size": 2.0}]
    assert [one.HasField("feasible") for one in listed] == [False, True]
    assert [dict(one.metrics) for one in listed] == [metrics, metrics]
    for text in ("loss<9", "size<9", "metric.heat<9"):
        request = pb.ListTrialsRequest(study="studies/s", filter=text)
        assert [one.name for one in (await site.call("ListTrials", request)).trials] == [listed[1].name], text


async def test_without_a_reason_it_is_infeasible_too(site: RpcSite) -> None:
    await site.create()
    assert (await infeasible(site, (await site.suggest()).lease, "")).detail == "no reason given"


async def test_a_caller_may_end_a_trial_early_or_as_failed(site: RpcSite) -> None:
    await site.create(max_retries=1, policy={"kind": "run_all"})
    asked = [await site.suggest(client=f"c{n}") for n in range(2)]
    await site.report(asked[0].lease, 1, 0.5)
    ended = await complete(site, asked[0].lease)
    assert ended.termination_reason == trial_pb2.TERMINATION_REASON_COMPLETED
    retried = await complete(site, asked[1].lease, "ValueError: \0 bad")
    assert retried.state == trial_pb2.TRIAL_STATE_PENDING
    assert retried.failures == 1
    assert "ValueError: \N{REPLACEMENT CHARACTER} bad" in retried.detail
    again = await site.suggest()
    assert again.trial.number == 1
    failed = await complete(site, again.lease, "x" * 20_000)
    assert failed.termination_reason == trial_pb2.TERMINATION_REASON_FAILED
    assert len(failed.detail) < 9_000


async def test_a_silent_caller_loses_its_trial_to_the_next_optuna_3215_5860(site: RpcSite) -> None:
    await site.create()
    asked = await site.suggest(client="silent")
    await expire(site, 0)
    again = await site.suggest(client="next")
    assert again.trial.number == 0
    assert again.trial.interruptions == 1
    assert again.trial.failures == 0
    with pytest.raises(LeaseStaleError):
        await site.report(asked.lease, 1, 0.5)
    with pytest.raises(LeaseStaleError):
        await complete(site, asked.lease)
    assert (await site.report(again.lease, 1, 0.5)).action == PAUSE


async def test_a_lease_of_another_study_or_trial_is_stale(site: RpcSite) -> None:
    await site.create()
    await site.create("t")
    lease = (await site.suggest()).lease
    await site.suggest(client="d")
    await site.suggest("t")
    for wrong in (
        event_pb2.LeaseRef(lease_id=lease.lease_id, trial="studies/t/trials/0", attempt=1),
        event_pb2.LeaseRef(lease_id=lease.lease_id, trial="studies/s/trials/1", attempt=1),
        event_pb2.LeaseRef(lease_id=lease.lease_id, trial=lease.trial, attempt=2),
        event_pb2.LeaseRef(lease_id="other", trial=lease.trial, attempt=1),
    ):
        with pytest.raises(LeaseStaleError):
            await site.report(wrong, 1, 0.5)
        with pytest.raises(LeaseStaleError):
            await complete(site, wrong)
    assert (await site.report(lease, 1, 0.5)).action == PAUSE


async def test_a_paused_study_has_nothing_to_run_and_is_not_done(site: RpcSite) -> None:
    await site.create()
    await site.call("PauseStudy", pb.PauseStudyRequest(name="studies/s"))
    asked = await site.suggest()
    assert not asked.HasField("trial")
    assert not asked.done
    await site.call("ResumeStudy", pb.ResumeStudyRequest(name="studies/s"))
    assert (await site.suggest()).HasField("trial")


async def test_a_trial_stopped_by_a_user_is_over_for_its_caller(site: RpcSite) -> None:
    await site.create()
    asked = await site.suggest()
    await site.call("StopTrial", pb.StopTrialRequest(name=asked.trial.name, reason="not this one"))
    with pytest.raises(LeaseStaleError):
        await site.report(asked.lease, 1, 0.5)
    trial = await complete(site, asked.lease)
    assert trial.termination_reason == trial_pb2.TERMINATION_REASON_CANCELLED
    assert trial.detail == "not this one"


async def test_the_end_of_a_trial_says_what_constraints_read_and_its_last_report_lacks(site: RpcSite) -> None:
    await site.create(
        policy={"kind": "run_all"},
        max_steps=2,
        constraints=[{"metric": "size", "at_most": 1.0}, {"metric": "size", "at_least": 0.5}],
    )

    async def report(lease: event_pb2.LeaseRef, step: int, **metrics: float) -> list[str]:
        request = pb.ReportTrialRequest(lease=lease, step=step, metrics=metrics)
        return list((await site.call("ReportTrial", request)).missing_metrics)

    async def ended(lease: event_pb2.LeaseRef, error: str = "") -> list[str]:
        request = pb.CompleteTrialRequest(lease=lease, error=error)
        return list((await site.call("CompleteTrial", request)).missing_metrics)

    stopped, completed, failed, whole = [(await site.suggest(client=f"c{n}")).lease for n in range(4)]
    assert await report(stopped, 1, loss=0.5) == [], "it may follow"
    assert await report(stopped, 2, loss=0.5) == ["size"]
    assert await ended(stopped) == [], "that was said"
    assert await report(completed, 1, loss=0.5) == []
    assert await ended(completed) == ["size"]
    assert await report(failed, 1, loss=0.5) == []
    assert await ended(failed, error="ValueError") == []
    assert await report(whole, 1, loss=0.5, size=0.75) == []
    assert await ended(whole) == []
