"""A defect in one study affects only that study: lists still work and report it, and it can always be stopped and
deleted.

The defects are written into the rows by hand: values that no call accepts any more, or that no code ever wrote.
"""

from typing import Any

import pytest
from rpc_site import RpcSite
from sqlalchemy import text

from headrace.errors import InternalError
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.analysis import AnalysisPools
from headrace_services.scheduler.store.database import transaction

INT64_MAX = 2**63 - 1
# Specs are cached by the study's uid: with a new uid the row is read again.
DEFECTS = {
    "a spec that is none": "UPDATE study SET spec = '{\"no\": \"spec\"}', uid = 'new' WHERE name = 'bad'",
    "a standing that is none": "UPDATE study SET standing = '{\"usage\": 7}' WHERE name = 'bad'",
    "a time beyond the calendar": "UPDATE study SET create_time = '20000-01-01' WHERE name = 'bad'",
    "speeds that are none": "UPDATE trial SET speeds = '{\"a\": 1}', best_value = 0, score = 0, step = 1"
    " WHERE study_id = (SELECT id FROM study WHERE name = 'bad')",
    "metrics that are none": "UPDATE trial SET metrics = '[1]', best_value = 0, score = 0, step = 1"
    " WHERE study_id = (SELECT id FROM study WHERE name = 'bad')",
}


async def plant(site: RpcSite, statement: str, **values: Any) -> None:
    async with transaction(site.engine) as conn:
        await conn.execute(text(statement), values)


async def listed(site: RpcSite) -> tuple[list[str], list[Any]]:
    page = await site.call("ListStudies", pb.ListStudiesRequest())
    return [study.name for study in page.studies], list(page.unshown)


@pytest.mark.cases(2)
@pytest.mark.parametrize("defect", DEFECTS)
async def test_a_study_that_cannot_be_shown_is_left_out_of_the_list(site: RpcSite, defect: str) -> None:
    for name in ("one", "bad", "two"):
        await site.create(name)
    await plant(site, DEFECTS[defect])
    shown, unshown = await listed(site)
    assert shown == ["studies/two", "studies/one"]
    assert [item.name for item in unshown] == ["studies/bad"]
    assert unshown[0].reason


@pytest.mark.cases(2)
@pytest.mark.parametrize("defect", DEFECTS)
async def test_a_study_with_a_defect_can_be_stopped_and_deleted(site: RpcSite, defect: str) -> None:
    for name in ("one", "bad"):
        await site.create(name)
    await plant(site, DEFECTS[defect])
    stopped = await site.call("StopStudy", pb.StopStudyRequest(request_id="r", name="studies/bad"))
    assert stopped.study.name == "studies/bad"
    assert stopped.study.state in (pb.STUDY_STATE_STOPPED, pb.STUDY_STATE_FAILED)
    again = await site.call("StopStudy", pb.StopStudyRequest(request_id="r", name="studies/bad"))
    assert again == stopped
    await site.call("StopStudy", pb.StopStudyRequest(name="studies/bad"))
    await site.call("DeleteStudy", pb.DeleteStudyRequest(name="studies/bad"))
    assert await listed(site) == (["studies/one"], [])


async def test_steps_that_sum_up_to_more_than_a_message_holds_are_cut(site: RpcSite) -> None:
    await site.create("big", max_steps=2**40, max_trials=1_000_000, policy={"kind": "run_all"})
    await plant(
        site,
        "UPDATE trial SET steps_spent = :most, step = :most WHERE study_id = (SELECT id FROM study)",
        most=INT64_MAX,
    )
    # as if added by hand: they must run too
    await plant(site, "UPDATE study SET next_number = 100 * 1000 * 1000")
    assert (await listed(site))[0] == ["studies/big"]
    status = (await site.study("big")).status
    assert (status.steps_spent, status.steps_run_all) == (INT64_MAX, INT64_MAX)
    async for update in site.replicas[0].watch(pb.WatchStudyRequest(name="studies/big")):
        assert update.study.status.steps_spent == INT64_MAX
        break
    paused = await site.call("PauseStudy", pb.PauseStudyRequest(name="studies/big"))
    assert paused.study.state == pb.STUDY_STATE_PAUSED
    stopped = await site.call("StopStudy", pb.StopStudyRequest(name="studies/big"))
    assert stopped.study.state == pb.STUDY_STATE_STOPPED
    await site.call("DeleteStudy", pb.DeleteStudyRequest(name="studies/big"))


async def test_two_reports_of_the_greatest_step_harm_nobody(site: RpcSite) -> None:
    """The scheduler accepts these before a bound at the edge refuses them: this study, and all others, continue."""
    await site.create("other")
    await site.create("big", max_steps=2**40, policy={"kind": "run_all"})
    await plant(
        site,
        "UPDATE trial SET steps_spent = :most WHERE study_id = (SELECT id FROM study WHERE name = 'big')",
        most=INT64_MAX,
    )
    lease = (await site.suggest("big")).lease
    await site.report(lease, 1, 0.5)
    await site.report(lease, 2, 0.5)
    assert (await listed(site))[0] == ["studies/big", "studies/other"]
    stopped = await site.call("StopStudy", pb.StopStudyRequest(name="studies/big"))
    assert stopped.study.state in (pb.STUDY_STATE_STOPPED, pb.STUDY_STATE_FAILED)
    await site.call("DeleteStudy", pb.DeleteStudyRequest(name="studies/big"))


async def test_a_trial_that_cannot_be_shown_is_left_out_of_the_list(site: RpcSite) -> None:
    await site.create("s")
    await plant(site, "UPDATE trial SET speeds = '{\"a\": 1}' WHERE number = 1")
    page = await site.call("ListTrials", pb.ListTrialsRequest(study="studies/s", page_size=2))
    assert [trial.number for trial in page.trials] == [0]
    assert [item.name for item in page.unshown] == ["studies/s/trials/1"]
    rest = await site.call(
        "ListTrials", pb.ListTrialsRequest(study="studies/s", page_size=2, page_token=page.next_page_token)
    )
    assert next(trial.number for trial in rest.trials) == 2


async def test_a_study_that_stands_nowhere_hides_no_share(site: RpcSite) -> None:
    for name in ("one", "bad"):
        await site.create(name)
    await plant(site, DEFECTS["a standing that is none"])
    page = await site.call("ListWorkers", pb.ListWorkersRequest())
    assert [share.study for share in page.shares] == ["studies/one"]
    assert [item.name for item in page.unshown] == ["studies/bad"]


async def test_a_study_is_shown_though_the_process_that_finds_its_front_dies(
    site: RpcSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = {"metric": "cost", "goal": "minimize"}
    await site.create("s", policy={"kind": "run_all"}, further_objectives=[cost])
    found = await site.suggest("s")
    report = pb.ReportTrialRequest(lease=found.lease, step=9, metrics={"loss": 0.5, "cost": 1.0})
    await site.call("ReportTrial", report)
    assert len((await site.study("s")).status.front) == 1

    async def dies(*_: object) -> None:
        raise InternalError("the process of this call died")

    monkeypatch.setattr(AnalysisPools, "front", dies)
    study = await site.study("s")
    assert study.status.best.number == 0
    assert not study.status.front
    assert "the front is left out: the process of this call died" in study.unshown
