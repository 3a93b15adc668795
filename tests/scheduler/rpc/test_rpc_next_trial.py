"""The next trial with the end of the last one, trials that are given back, and what an answer shows of a trial."""

import pytest
from rpc_site import RpcSite, duration
from sqlalchemy import select

from headrace.errors import DeadlineError, InvalidFieldError, LeaseStaleError, RequestIdReusedError
from headrace.v1 import event_pb2, trial_pb2
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.step import showing
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.database import transaction

RUN_ALL = {"kind": "run_all"}
STOPPING = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "variant": "stopping"}


def ask(request_id: str = "ask-1", study: str = "s") -> pb.SuggestTrialRequest:
    return pb.SuggestTrialRequest(request_id=request_id, study=f"studies/{study}", client_id="loop")


def end(lease: event_pb2.LeaseRef, *, request_id: str = "end-1", **more: object) -> pb.CompleteTrialRequest:
    return pb.CompleteTrialRequest(request_id=request_id, lease=lease, **more)  # type: ignore[arg-type]  # fields by name


async def shown(site: RpcSite, name: str) -> trial_pb2.Trial:
    """The trial as its rows say it, but for what it waits for, which no command's answer says."""
    trial = (await site.call("GetTrial", pb.GetTrialRequest(name=name))).trial
    trial.ClearField("waits_for")
    assert isinstance(trial, trial_pb2.Trial)
    return trial


async def at_work(site: RpcSite) -> pb.SuggestTrialResponse:
    """A trial that has reported."""
    asked = await site.suggest()
    await site.report(asked.lease, 1, 0.5)
    return asked


async def at_once(site: RpcSite) -> int:
    """How many trials are somebody's now."""
    status = (await site.study()).status
    return int(status.running + status.resumed)


@pytest.mark.parametrize("policy", [STOPPING, {"kind": "asha", "eta": 3, "rungs": [1, 3, 9]}])
async def test_answers_show_trials_as_the_rows_say_them(site: RpcSite, policy: dict[str, object]) -> None:
    """From the first call, which reads rows, to those that are answered of what the step knows."""
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
            assert len(ended.trial.rung_results) == 1 or asked.trial.epoch > 1


async def test_rungs_that_were_kept_are_shown_as_the_rows_say_them(
    site: RpcSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has reached two rungs here, gone past one and ends; nobody asks the rows."""
    await site.create(policy=STOPPING, max_trials=3)
    first, second = await site.suggest(client="a"), await site.suggest(client="b")
    for step, value in ((1, 0.5), (3, 0.25)):
        await site.report(first.lease, step, value)
        await site.report(second.lease, step, value / 2)
    asked: list[object] = []
    ask_histories = showing.trials.ask_histories
    monkeypatch.setattr(showing.trials, "ask_histories", lambda *of: asked.append(of) or ask_histories(*of))
    ended = await site.call("CompleteTrial", end(second.lease))
    assert not asked
    assert ended.trial == await shown(site, second.trial.name)
    assert [rung.promoted for rung in ended.trial.rung_results] == [True, True]
    other = await site.add_replica()
    elsewhere = await other.call("CompleteTrial", end(first.lease, request_id="end-2"))
    assert elsewhere.trial == await shown(site, first.trial.name)
    assert len(elsewhere.trial.rung_results) == 2


async def test_the_end_brings_the_next_trial_in_the_same_step(site: RpcSite) -> None:
    """With one trial at a time there is room for the next one only when the end of this one has counted."""
    await site.create(policy=RUN_ALL, max_parallel=1)
    asked = await at_work(site)
    ended = await site.call("CompleteTrial", end(asked.lease, next=ask()))
    assert ended.trial.state == trial_pb2.TRIAL_STATE_TERMINATED
    assert ended.next.trial.number == 1
    assert ended.next.trial == await shown(site, ended.next.trial.name)
    assert ended.next.next_milestone
    await site.report(ended.next.lease, 1, 0.5)


async def test_a_repeat_brings_the_same_trial_by_either_call(site: RpcSite) -> None:
    await site.create(policy=RUN_ALL)
    asked = await at_work(site)
    first = await site.call("CompleteTrial", end(asked.lease, next=ask()))
    again = await site.call("CompleteTrial", end(asked.lease, next=ask()))
    alone = await site.call("SuggestTrial", ask())
    assert first == again
    assert alone == first.next
    assert await at_once(site) == 1
    with pytest.raises(RequestIdReusedError):
        await site.call("CompleteTrial", end(asked.lease, next=ask("ask-2")))


async def test_the_end_of_a_stale_lease_is_refused_and_the_next_trial_is_there_by_its_id(
    site: RpcSite,
) -> None:
    await site.create(policy=RUN_ALL)
    asked = await at_work(site)
    await site.call("ReleaseTrial", pb.ReleaseTrialRequest(lease=asked.lease))
    with pytest.raises(LeaseStaleError):
        await site.call("CompleteTrial", end(asked.lease, next=ask()))
    found = await site.call("SuggestTrial", ask())
    assert found.trial.number == 0
    assert await at_once(site) == 1


async def test_a_call_that_is_cut_off_between_its_two_halves_is_repeated(site: RpcSite) -> None:
    """The step waits for the study's row, so nothing has come of either half when the caller goes away."""
    await site.create(policy=RUN_ALL)
    asked = await at_work(site)
    async with transaction(site.engine) as conn:
        await conn.execute(select(tables.study.c.id).with_for_update())
        with pytest.raises(DeadlineError):
            await site.replicas[0].call("CompleteTrial", end(asked.lease, next=ask()), timeout_s=0.3)
    ended = await site.call("CompleteTrial", end(asked.lease, next=ask()))
    assert ended.trial.state == trial_pb2.TRIAL_STATE_TERMINATED
    assert (await site.call("SuggestTrial", ask())).trial.number == ended.next.trial.number == 1
    assert await at_once(site) == 1


async def test_the_repeat_may_reach_another_replica(site: RpcSite) -> None:
    """Which has never seen the study: the end counts before the next trial is looked for."""
    await site.create(policy=RUN_ALL, max_parallel=1)
    asked = await at_work(site)
    other = await site.add_replica()
    ended = await other.call("CompleteTrial", end(asked.lease, next=ask()))
    assert ended.next.trial.number == 1
    assert ended == await site.call("CompleteTrial", end(asked.lease, next=ask()))


async def test_the_end_does_not_wait_for_a_model(site: RpcSite) -> None:
    """Nobody computes proposals here; to ask would wait for one."""
    await site.create(policy=RUN_ALL, sampler={"kind": "tpe", "startup_trials": 1}, max_trials=3)
    asked = await at_work(site)
    ended = await site.replicas[0].call("CompleteTrial", end(asked.lease, next=ask()), timeout_s=5)
    assert ended.trial.state == trial_pb2.TRIAL_STATE_TERMINATED
    assert ended.next == pb.SuggestTrialResponse()


async def test_the_last_end_says_that_the_study_is_over(site: RpcSite) -> None:
    await site.create(policy=RUN_ALL, max_trials=1)
    asked = await at_work(site)
    ended = await site.call("CompleteTrial", end(asked.lease, next=ask()))
    assert ended.next.done
    assert not ended.next.HasField("trial")


async def test_a_trial_that_is_given_back_goes_on_elsewhere_and_nothing_is_charged(site: RpcSite) -> None:
    """However often: nothing about it points to the trial's program."""
    await site.create(policy=RUN_ALL, max_retries=0)
    asked = await at_work(site)
    for _ in range(12):
        back = await site.call("ReleaseTrial", pb.ReleaseTrialRequest(lease=asked.lease))
        assert back.trial == await shown(site, asked.trial.name)
        assert back.trial.state == trial_pb2.TRIAL_STATE_PAUSED
        assert back.trial.detail == "given back by its client"
        asked = await site.suggest(client="other")
        assert asked.trial.number == 0
    assert (asked.trial.failures, asked.trial.interruptions) == (0, 12)
    assert asked.trial.checkpoint.step == 1


async def test_bad_requests_change_nothing(site: RpcSite) -> None:
    await site.create(policy=RUN_ALL)
    await site.create("t", policy=RUN_ALL)
    asked = await at_work(site)
    before = (await site.study()).status
    for field, wrong in {
        "next.study": end(asked.lease, next=ask(study="t")),
        "next.request_id": end(asked.lease, next=ask("")),
        "next.client_id": end(asked.lease, next=pb.SuggestTrialRequest(request_id="a", study="studies/s")),
        "next.lease_time": end(
            asked.lease,
            next=pb.SuggestTrialRequest(
                request_id="a", study="studies/s", client_id="c", lease_time=duration(1e6)
            ),
        ),
    }.items():
        refused = await site.replicas[0].refusal("CompleteTrial", wrong)
        assert isinstance(refused, InvalidFieldError)
        assert [violation.field for violation in refused.violations] == [field]
    own = await site.replicas[0].refusal("CompleteTrial", end(asked.lease, next=ask("end-1")))
    assert "own id" in str(own)
    assert (await site.study()).status == before
