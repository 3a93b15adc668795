"""Retries and extensions of an ask/tell study, over two replicas that cache what they know."""

import asyncio

import pytest
from rpc_site import RpcSite
from sqlalchemy import text

from headrace.errors import InvalidFieldError
from headrace.v1 import event_pb2
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.engine.budgets import Budgets

RUN_ALL = {"kind": "run_all"}
STUDY = "studies/s"


async def test_a_trial_that_failed_and_one_that_completed_are_handed_out_again(site: RpcSite) -> None:
    await site.create(policy=RUN_ALL, max_trials=2, max_retries=0)
    first, second = (await site.suggest()).lease, (await site.suggest(client="d")).lease
    await site.report(first, 3, 0.5)
    await site.call("CompleteTrial", pb.CompleteTrialRequest(lease=first, error="ValueError: no"))
    await site.report(second, 9, 0.4)
    assert (await site.call("GetStudy", pb.GetStudyRequest(name=STUDY))).study.detail.startswith("all trials")
    retried = await site.call("RetryTrials", pb.RetryTrialsRequest(study=STUDY))
    assert (list(retried.trial_numbers), retried.others) == ([0], 0)
    again = await site.suggest()
    assert (again.trial.number, again.trial.checkpoint.step, again.next_milestone) == (0, 3, 9)
    other = await site.add_replica()
    extended = await other.call("ExtendStudy", pb.ExtendStudyRequest(name=STUDY, steps=12))
    assert (extended.study.spec.max_steps, list(extended.study.spec.extended.steps)) == (12, [9])
    further = await site.suggest(client="d")
    assert (further.trial.number, further.trial.checkpoint.step, further.next_milestone) == (1, 9, 12)
    decision = await site.report(again.lease, 9, 0.3)  # its client was told 9 steps
    assert "started with a full budget of 9 steps" in decision.reason
    last = await site.suggest()
    assert (last.trial.number, last.trial.checkpoint.step, last.next_milestone) == (0, 9, 12)
    for lease in (last.lease, further.lease):
        await site.report(lease, 12, 0.2)
    study = (await site.call("GetStudy", pb.GetStudyRequest(name=STUDY))).study
    assert (study.state, study.status.completed) == (pb.STUDY_STATE_COMPLETED, 2)
    assert [rung.milestone for rung in study.status.rungs] == [9, 12]
    with pytest.raises(InvalidFieldError, match="is not more than the full budget, which is 12"):
        raise await site.refusal("ExtendStudy", pb.ExtendStudyRequest(name=STUDY, steps=12))


async def test_until_is_shown_with_how_near_its_end_is(site: RpcSite) -> None:
    until = {"hours": 2, "no_improvement": 5, "value": 0.1}
    await site.create(policy=RUN_ALL, until=until)
    for client, value in (("c", 0.5), ("d", 0.6)):
        await site.report((await site.suggest(client=client)).lease, 9, value)
    study = (await site.call("GetStudy", pb.GetStudyRequest(name=STUDY))).study
    assert study.status.until.tried == 1
    assert not study.status.until.HasField("deadline"), "no trial runs"
    assert 7000 < study.status.until.time_left.seconds < 7200
    lease = (await site.suggest()).lease
    study = (await site.call("GetStudy", pb.GetStudyRequest(name=STUDY))).study
    assert 7000 < study.status.until.deadline.seconds - study.create_time.seconds < 8000
    await site.report(lease, 2, 0.05)
    study = (await site.call("GetStudy", pb.GetStudyRequest(name=STUDY))).study
    assert study.state == pb.STUDY_STATE_COMPLETED
    assert study.detail.startswith("trial 2 has loss 0.05 (until: loss ≤ 0.1 or 2 hours or 5 trials without")


async def test_a_replica_ends_a_study_whose_hours_are_over_by_itself(site: RpcSite) -> None:
    await site.create(policy=RUN_ALL, until={"hours": 2})
    lease = (await site.suggest()).lease
    await site.report(lease, 1, 0.5)
    budgets = Budgets(site.replicas[0].hub)
    await budgets.look()
    assert (await site.study()).state == pb.STUDY_STATE_ACTIVE
    async with site.engine.begin() as conn:
        earlier = "(standing #>> '{progress,since_s}')::float8 - 7200"
        await conn.execute(
            text(
                f"UPDATE study SET standing = jsonb_set(standing, '{{progress,since_s}}', to_jsonb({earlier}))"
            )
        )
    await budgets.look()
    async with asyncio.timeout(60):
        while not (await site.study()).status.until.ends_study:
            await asyncio.sleep(0.01)
    assert (await site.suggest()).done
    assert (await site.study()).state == pb.STUDY_STATE_ACTIVE, "a client still evaluates"
    assert (await site.report(lease, 2, 0.25)).action == event_pb2.DECISION_ACTION_STOP
    assert (await site.study()).state == pb.STUDY_STATE_COMPLETED
    assert (await site.study()).detail == "its trials have run for 2 hours (until: 2 hours)"
