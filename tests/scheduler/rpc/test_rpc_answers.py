"""What an answer shows of a trial, and trials that clients release."""

import pytest
from rpc_site import RpcSite, duration

from headrace.v1 import event_pb2, trial_pb2
from headrace.v1 import study_pb2 as pb

RUN_ALL = {"kind": "run_all"}
STOPPING = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "variant": "stopping"}


def end(lease: event_pb2.LeaseRef, *, request_id: str = "end-1") -> pb.CompleteTrialRequest:
    return pb.CompleteTrialRequest(request_id=request_id, lease=lease)


async def shown(site: RpcSite, name: str) -> trial_pb2.Trial:
    """The trial as its rows show it, except for what it waits for, which no command's answer includes."""
    trial = (await site.call("GetTrial", pb.GetTrialRequest(name=name))).trial
    trial.ClearField("waits_for")
    assert isinstance(trial, trial_pb2.Trial)
    return trial


async def at_work(site: RpcSite) -> pb.SuggestTrialResponse:
    """A trial that has reported."""
    asked = await site.suggest()
    await site.report(asked.lease, 1, 0.5)
    return asked


@pytest.mark.parametrize("policy", [STOPPING, {"kind": "asha", "eta": 3, "rungs": [1, 3, 9]}])
async def test_answers_show_trials_as_the_rows_say_them(site: RpcSite, policy: dict[str, object]) -> None:
    """From the first call, which reads rows, to those that are answered from what the cycle already knows."""
    await site.create(policy=policy, max_trials=4, max_retries=1)
    for number in range(6):
        asked = await site.suggest(client=f"c{number}", lease_time=duration(30))
        if not asked.HasField("trial"):
            break
        assert asked.trial == await shown(site, asked.trial.name)
        await site.report(asked.lease, asked.trial.step + 1, 0.5 - number / 10)
        now = await shown(site, asked.trial.name)
        if now.state in (trial_pb2.TRIAL_STATE_RUNNING, trial_pb2.TRIAL_STATE_RESUMED):
            error = "it broke" if number == 1 else ""
            ended = await site.call("CompleteTrial", pb.CompleteTrialRequest(lease=asked.lease, error=error))
            assert ended.trial == await shown(site, asked.trial.name)
            reports = (await site.call("ListReports", pb.ListReportsRequest(parent=asked.trial.name))).reports
            times = [report.time.ToNanoseconds() for report in reports]
            assert asked.trial.start_time.ToNanoseconds() <= times[-1]
            assert error or times[-1] <= ended.trial.end_time.ToNanoseconds()
            assert len(ended.trial.rung_results) == 1 or asked.trial.attempt > 1


async def test_rungs_of_before_are_shown_as_the_rows_say_them(site: RpcSite) -> None:
    """A trial that has reached two rungs, passed one and ends, on this replica and on another one."""
    await site.create(policy=STOPPING, max_trials=3)
    first, second = await site.suggest(client="a"), await site.suggest(client="b")
    for step, value in ((1, 0.5), (3, 0.25)):
        await site.report(first.lease, step, value)
        await site.report(second.lease, step, value / 2)
    ended = await site.call("CompleteTrial", end(second.lease))
    assert ended.trial == await shown(site, second.trial.name)
    assert [rung.promoted for rung in ended.trial.rung_results] == [True, True]
    other = await site.add_replica()
    elsewhere = await other.call("CompleteTrial", end(first.lease, request_id="end-2"))
    assert elsewhere.trial == await shown(site, first.trial.name)
    assert len(elsewhere.trial.rung_results) == 2


async def test_a_trial_that_is_given_back_continues_elsewhere_and_nothing_is_charged(site: RpcSite) -> None:
    """However often it is released: nothing suggests that the trial's program is at fault."""
    await site.create(policy=RUN_ALL, max_retries=0)
    asked = await at_work(site)
    for _ in range(12):
        back = await site.call("ReleaseTrial", pb.ReleaseTrialRequest(lease=asked.lease))
        assert back.trial == await shown(site, asked.trial.name)
        assert back.trial.state == trial_pb2.TRIAL_STATE_PAUSED
        assert back.trial.detail == "released by its client"
        asked = await site.suggest(client="other")
        assert asked.trial.number == 0
    assert (asked.trial.failures, asked.trial.interruptions) == (0, 12)
    assert asked.trial.checkpoint.step == 1
