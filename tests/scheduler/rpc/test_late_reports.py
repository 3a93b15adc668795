"""Ask and tell: what a client reports after its lease has expired counts until somebody else has the trial."""

from typing import Any

import pytest
from rpc_site import RpcSite, duration, expire
from sqlalchemy import func, select, text

from headrace.errors import LeaseStaleError, StudyNotFoundError
from headrace.v1 import event_pb2, trial_pb2
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.store import tables

CONTINUE = event_pb2.DECISION_ACTION_CONTINUE
PAUSE = event_pb2.DECISION_ACTION_PAUSE
STOP = event_pb2.DECISION_ACTION_STOP
RUN_ALL = {"kind": "run_all"}
REOPENED = "it had ended, alone or with its study, and a user has resumed it since"
T0 = "studies/s/trials/0"


async def trial(site: RpcSite, number: int = 0) -> trial_pb2.Trial:
    return (await site.call("GetTrial", pb.GetTrialRequest(name=f"studies/s/trials/{number}"))).trial


async def refused(site: RpcSite, method: str, request: Any) -> LeaseStaleError:
    error = await site.refusal(method, request)
    assert isinstance(error, LeaseStaleError), error
    return error


async def late_report(site: RpcSite, lease: event_pb2.LeaseRef, step: int = 1) -> LeaseStaleError:
    request = pb.ReportTrialRequest(lease=lease, step=step, metrics={"loss": 0.5})
    return await refused(site, "ReportTrial", request)


async def actions(site: RpcSite, number: int = 0) -> list[str]:
    """The trial's transitions, from the log."""
    explained = await site.call("ExplainTrial", pb.ExplainTrialRequest(name=f"studies/s/trials/{number}"))
    return [e.trial_moved.action for e in explained.events if e.HasField("trial_moved")]


@pytest.mark.parametrize("reported", [0, 2], ids=["before its first report", "with a checkpoint"])
async def test_a_late_report_counts_while_nobody_else_had_the_trial(site: RpcSite, reported: int) -> None:
    await site.create(policy=RUN_ALL)
    late, in_time = [(await site.suggest(client=f"c{n}")).lease for n in range(2)]
    for lease in (late, in_time):
        for step in range(1, reported + 1):
            await site.report(lease, step, 0.5)
    await expire(site, 0)
    assert (await trial(site)).state in (trial_pb2.TRIAL_STATE_PENDING, trial_pb2.TRIAL_STATE_PAUSED)
    for lease in (late, in_time):
        assert (await site.report(lease, reported + 1, 0.25)).action == CONTINUE
    after, other = await trial(site), await trial(site, 1)
    assert (after.state, after.attempt) == (trial_pb2.TRIAL_STATE_RUNNING, 1)
    assert "client 'c0' reconnected" in after.detail
    for one in (after, other):
        for field in ("name", "number", "parameters", "detail", "create_time", "start_time", "checkpoint"):
            one.ClearField(field)
    assert after == other, "it is the same as one that was in time"
    assert (await actions(site))[-2:] == ["interrupt", "reclaim"]


async def test_all_that_a_late_client_may_say_counts(site: RpcSite) -> None:
    await site.create(policy=RUN_ALL, max_retries=1)
    leases = [(await site.suggest(client=f"c{n}")).lease for n in range(4)]
    for number, lease in enumerate(leases):
        if number != 3:
            await site.report(lease, 1, 0.5)
        await expire(site, number)
    completed = await site.call("CompleteTrial", pb.CompleteTrialRequest(lease=leases[0]))
    assert completed.trial.termination_reason == trial_pb2.TERMINATION_REASON_COMPLETED
    failed = await site.call("CompleteTrial", pb.CompleteTrialRequest(lease=leases[1], error="ValueError"))
    assert (failed.trial.failures, failed.trial.state) == (1, trial_pb2.TRIAL_STATE_PAUSED)
    back = await site.call("ReleaseTrial", pb.ReleaseTrialRequest(lease=leases[2]))
    assert (back.trial.interruptions, back.trial.state) == (1, trial_pb2.TRIAL_STATE_PAUSED)
    await site.call("RenewTrial", pb.RenewTrialRequest(lease=leases[3]))
    assert (await trial(site, 3)).state == trial_pb2.TRIAL_STATE_RUNNING
    for lease in leases[1:3]:  # each has ended its attempt
        await late_report(site, lease, 2)


async def test_a_late_report_is_judged_as_one_in_time(site: RpcSite) -> None:
    await site.create(max_trials=3)
    leases = [(await site.suggest(client=f"c{n}")).lease for n in range(3)]
    for lease, value in zip(leases[:2], (0.1, 0.2), strict=True):
        assert (await site.report(lease, 1, value)).action == PAUSE
    await expire(site, 2)
    assert (await site.report(leases[2], 1, 0.3)).action == PAUSE
    again = await site.suggest()
    assert again.trial.number == 0, "its result lets the best one go on"
    error = await late_report(site, leases[2], 2)
    assert "it was paused by the answer to its last report: " in error.message


async def test_a_trial_of_several_objectives_is_taken_up_too(site: RpcSite) -> None:
    cost = {"metric": "ms", "goal": "minimize"}
    await site.create(policy=RUN_ALL, further_objectives=[cost], max_trials=1, max_steps=1)
    lease = (await site.suggest()).lease
    await expire(site, 0)
    request = pb.ReportTrialRequest(lease=lease, step=1, metrics={"loss": 0.5})
    await site.refusal("ReportTrial", request)
    assert (await trial(site)).state == trial_pb2.TRIAL_STATE_PENDING, "what is refused changes nothing"
    request.metrics["ms"] = 3.0
    assert (await site.call("ReportTrial", request)).decision.action == STOP
    assert (await site.study()).state == pb.STUDY_STATE_COMPLETED


async def test_the_current_holder_of_the_trial_is_named(site: RpcSite) -> None:
    await site.create()
    lease = (await site.suggest(client="slow", lease_time=duration(4))).lease
    await expire(site, 0)
    other = await site.suggest(client="quick")
    assert other.trial.number == 0
    for method, request in (
        ("ReportTrial", pb.ReportTrialRequest(lease=lease, step=1, metrics={"loss": 0.5})),
        ("CompleteTrial", pb.CompleteTrialRequest(lease=lease)),
        ("CompleteTrial", pb.CompleteTrialRequest(lease=lease, error="ValueError")),
        ("ReleaseTrial", pb.ReleaseTrialRequest(lease=lease)),
        ("RenewTrial", pb.RenewTrialRequest(lease=lease)),
    ):
        error = await refused(site, method, request)
        assert error.message == (
            "You no longer hold trial 0: its lease ran out, 4 s after your last message, and it was given to "
            "client 'quick'"
        )
        assert "ask for another one" in error.remedy
        assert "longer lease_s" in error.remedy
    assert (await site.report(other.lease, 1, 0.5)).action == PAUSE
    stored = await site.call("ListReports", pb.ListReportsRequest(parent=T0))
    assert [report.attempt for report in stored.reports] == [2]


async def test_a_trial_that_was_asked_for_again_and_given_back_is_not_the_first_client_s(
    site: RpcSite,
) -> None:
    await site.create()
    lease = (await site.suggest(client="slow")).lease
    await expire(site, 0)
    other = (await site.suggest(client="quick")).lease
    await site.call("ReleaseTrial", pb.ReleaseTrialRequest(lease=other))
    assert (await late_report(site, lease)).message.endswith("and it was given to another client")
    assert (await late_report(site, other)).message.endswith("it was released by its client")
    again = await site.suggest(client="third")
    await expire(site, 0)
    assert (await site.report(again.lease, 1, 0.5)).action == PAUSE


async def test_a_late_report_that_arrives_twice_counts_once(site: RpcSite) -> None:
    await site.create(policy=RUN_ALL)
    lease = (await site.suggest()).lease
    await expire(site, 0)
    request = pb.ReportTrialRequest(lease=lease, step=1, metrics={"loss": 0.5}, request_id="r")
    assert await site.call("ReportTrial", request) == await site.call("ReportTrial", request)
    assert (await site.report(lease, 1, 0.5)).action == CONTINUE  # under another request id: no progress
    assert (await trial(site)).steps_spent == 1
    assert (await actions(site)).count("reclaim") == 1


async def test_a_decision_about_the_trial_stands(site: RpcSite) -> None:
    await site.create()
    lease = (await site.suggest()).lease
    await expire(site, 0)
    await site.call("StopTrial", pb.StopTrialRequest(name=T0, reason="not this one"))
    error = await late_report(site, lease)
    assert error.message == "You no longer hold trial 0: it was cancelled: not this one"
    ended = await site.call("CompleteTrial", pb.CompleteTrialRequest(lease=lease))
    assert ended.trial.termination_reason == trial_pb2.TERMINATION_REASON_CANCELLED


async def test_a_trial_that_was_reopened_is_not_taken_up(site: RpcSite) -> None:
    await site.create(policy=RUN_ALL)
    lease = (await site.suggest()).lease
    await expire(site, 0)
    await site.call("StopTrial", pb.StopTrialRequest(name=T0))
    await site.call("RetryTrials", pb.RetryTrialsRequest(study="studies/s", trial_numbers=[0]))
    assert (await trial(site)).state == trial_pb2.TRIAL_STATE_PENDING
    assert REOPENED in (await late_report(site, lease)).message


async def test_a_trial_whose_study_was_stopped_and_extended_names_that(site: RpcSite) -> None:
    await site.create(policy=RUN_ALL)
    lease = (await site.suggest()).lease
    await site.report(lease, 1, 0.5)
    await site.call("StopStudy", pb.StopStudyRequest(name="studies/s"))
    await site.call("ExtendStudy", pb.ExtendStudyRequest(name="studies/s", trials=1))
    assert (await late_report(site, lease)).message.endswith(REOPENED)


async def test_a_trial_that_a_user_pauses_pauses_at_its_rung(site: RpcSite) -> None:
    """Late or not, a running trial continues to its next rung."""
    await site.create(policy={"kind": "asha", "eta": 3, "rungs": [2, 6]}, max_steps=6)
    lease = (await site.suggest()).lease
    await expire(site, 0)
    await site.call("PauseTrial", pb.PauseTrialRequest(name=T0))
    assert (await site.suggest(client="other")).trial.name != T0
    assert (await site.report(lease, 1, 0.5)).action == CONTINUE
    decision = await site.report(lease, 2, 0.4)
    assert decision.action == PAUSE
    assert (await trial(site)).waits_for == "a user to resume it"


@pytest.mark.parametrize(
    ("stops", "says"), [(True, "study 's' was stopped: enough"), (False, "has completed")]
)
async def test_the_end_of_the_study_is_named(site: RpcSite, stops: bool, says: str) -> None:
    until = None if stops else {"value": 0.1}
    await site.create(policy=RUN_ALL, until=until)
    late, other = [(await site.suggest(client=f"c{n}")).lease for n in range(2)]
    await expire(site, 0)
    if stops:
        await site.call("StopStudy", pb.StopStudyRequest(name="studies/s", reason="enough"))
    else:
        await site.report(other, 1, 0.05)
    error = await late_report(site, late)
    assert says in error.message
    if stops:
        await site.call("DeleteStudy", pb.DeleteStudyRequest(name="studies/s"))
        request = pb.ReportTrialRequest(lease=late, step=1, metrics={"loss": 0.5})
        assert isinstance(await site.refusal("ReportTrial", request), StudyNotFoundError)


@pytest.mark.full
async def test_another_scheduler_takes_the_late_report(site: RpcSite) -> None:
    await site.create(policy=RUN_ALL)
    lease = (await site.suggest()).lease
    await expire(site, 0)
    restarted = await site.add_replica()
    request = pb.ReportTrialRequest(lease=lease, step=1, metrics={"loss": 0.5})
    assert (await restarted.call("ReportTrial", request)).decision.action == CONTINUE
    assert (await site.report(lease, 2, 0.4)).action == CONTINUE


async def test_a_renewal_begins_the_time_again_and_records_nothing(site: RpcSite) -> None:
    await site.create(policy=RUN_ALL)
    lease = (await site.suggest(lease_time=duration(60))).lease
    async with site.engine.begin() as conn:
        await conn.execute(text("UPDATE lease SET expires_at = clock_timestamp() + interval '1 second'"))
        before = (await conn.execute(select(func.count()).select_from(tables.event))).scalar_one()
    await site.call("RenewTrial", pb.RenewTrialRequest(lease=lease))
    async with site.engine.connect() as conn:
        left = await conn.execute(
            text("SELECT extract(epoch FROM expires_at - clock_timestamp()) FROM lease")
        )
        assert left.scalar_one() > 30
        assert (await conn.execute(select(func.count()).select_from(tables.event))).scalar_one() == before


async def test_a_client_that_names_no_lease_time_has_time_for_a_long_evaluation(site: RpcSite) -> None:
    await site.create()
    await site.suggest()
    async with site.engine.connect() as conn:
        assert (await conn.execute(select(tables.lease.c.ttl_s))).scalar_one() == 6 * 3600


@pytest.mark.full
async def test_ten_lapses_without_a_word_end_a_trial(site: RpcSite) -> None:
    """The limit is as before. A trial that reports late each time is never charged."""
    await site.create(policy=RUN_ALL, max_trials=1)
    lease = (await site.suggest()).lease
    for step in range(1, 9):
        await expire(site, 0)
        await site.report(lease, step, 0.5, checkpoint_uri="")
        await expire(site, 0)
        await site.call("RenewTrial", pb.RenewTrialRequest(lease=lease))
    assert (await trial(site)).interruptions == 0
    for _ in range(9):
        await expire(site, 0)
        lease = (await site.suggest()).lease
    await expire(site, 0)
    assert (await trial(site)).termination_reason == trial_pb2.TERMINATION_REASON_FAILED
    assert "10 times in a row" in (await late_report(site, lease)).message


async def test_a_late_report_counts_beyond_the_limit_of_trials_at_once_and_is_counted(site: RpcSite) -> None:
    await site.create(policy=RUN_ALL, max_parallel=1)
    late = (await site.suggest(client="late")).lease
    await site.call("PauseTrial", pb.PauseTrialRequest(name=T0))  # so that nobody else gets it
    await expire(site, 0)
    other = (await site.suggest(client="other")).lease
    assert other.trial != late.trial
    assert (await site.report(late, 1, 0.5)).action == CONTINUE
    for lease in (late, other):
        assert not (await site.suggest(client="third")).HasField("trial")
        await site.call("CompleteTrial", pb.CompleteTrialRequest(lease=lease, error="ValueError"))
    assert (await site.suggest(client="third")).HasField("trial")
