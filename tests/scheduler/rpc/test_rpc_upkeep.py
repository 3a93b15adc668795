"""What the scheduler reports of its upkeep, and a deleted study: gone at once, and its rows soon after."""

import asyncio
from datetime import timedelta

import pytest
from past_studies import count, past_study
from rpc_site import RpcSite
from study_site import make_spec

from headrace.ages import KINDS, Ages
from headrace.errors import InvalidFieldError, StudyNotEndedError, StudyNotFoundError
from headrace.v1 import study_pb2 as pb
from headrace_services.identity.roles import Role
from headrace_services.scheduler.analysis import AnalysisPools
from headrace_services.scheduler.engine.janitor import Done, Janitor
from headrace_services.scheduler.rpc.caller import Caller, let_call
from headrace_services.scheduler.rpc.study_service import StudyServicer
from headrace_services.scheduler.store import leftovers, quotas, removal
from headrace_services.scheduler.store.database import transaction

DAY_S = 86_400.0


async def test_ages_sizes_and_what_is_due(site: RpcSite) -> None:
    async with transaction(site.engine) as conn:
        for name, days in (("a", 91), ("b", 366), ("c", 1)):
            await past_study(conn, name, make_spec(), ago_s=days * DAY_S)
    found = await site.call("GetUpkeep", pb.GetUpkeepRequest())
    assert tuple(one.kind for one in found.kinds) == KINDS
    assert {one.kind: (one.age, one.due) for one in found.kinds if one.due} == {
        "events": ("90d", 2),
        "reports": ("365d", 1),
        "leases": ("90d", 2),
        "checkpoints": ("90d", 2),
    }
    assert {one.kind: one.age for one in found.kinds}["studies"] == "forever"
    assert all(one.what for one in found.kinds)
    sizes = [one.size_bytes for one in found.tables]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] > 0
    assert {"event", "report", "trial"} <= {one.table for one in found.tables}
    assert found.deleted_studies == found.restores == 0


async def test_a_member_sees_what_is_due_of_the_own_project(site: RpcSite) -> None:
    async with transaction(site.engine) as conn:
        await quotas.make(conn, "vision")
        for name in ("a", "b", "c"):
            study = await past_study(conn, name, make_spec(), ago_s=91 * DAY_S)
            if name == "a":
                await conn.exec_driver_sql("UPDATE study SET project = 'vision' WHERE id = %s", (study,))
            if name == "c":
                await removal.mark_deleted(conn, study)
    servicer = StudyServicer(site.replicas[0].hub, AnalysisPools(), Janitor(site.engine))

    async def seen(role: Role, project: str) -> pb.GetUpkeepResponse:
        let_call(Caller(peer="p", role=role, project=project, token="t"))
        return await servicer.GetUpkeep(pb.GetUpkeepRequest(), None)  # type: ignore[arg-type]  # it looks at no context

    for role in (Role.VIEWER, Role.ADMIN):
        theirs = await seen(role, "vision")
        assert {one.kind: one.due for one in theirs.kinds if one.due} == {
            "events": 1,
            "leases": 1,
            "checkpoints": 1,
        }
        assert {one.kind for one in theirs.kinds} == set(KINDS) - {
            "requests",
            "workers",
            "tombstones",
            "code",
        }
        assert (len(theirs.tables), theirs.deleted_studies, theirs.restores) == (0, 0, 0)
    assert (await seen(Role.VIEWER, "default")).deleted_studies == 1
    assert not (await seen(Role.VIEWER, "default")).tables
    whole = await seen(Role.ADMIN, "default")
    assert {one.kind: one.due for one in whole.kinds}["events"] == 2
    assert whole.tables


async def test_a_deleted_study_is_gone_and_its_name_is_free(site: RpcSite) -> None:
    await site.create()
    await site.call("StopStudy", pb.StopStudyRequest(name="studies/s"))
    first = await site.study()
    await site.call("DeleteStudy", pb.DeleteStudyRequest(name="studies/s", request_id="d"))
    await site.call("DeleteStudy", pb.DeleteStudyRequest(name="studies/s", request_id="d"))
    assert isinstance(
        await site.refusal("GetStudy", pb.GetStudyRequest(name="studies/s")), StudyNotFoundError
    )
    assert not (await site.call("ListStudies", pb.ListStudiesRequest())).studies
    assert (await site.call("GetUpkeep", pb.GetUpkeepRequest())).deleted_studies == 1
    again = await site.create()
    assert again.uid != first.uid
    await Janitor(site.engine, rest=0).clean()
    assert (await site.call("GetUpkeep", pb.GetUpkeepRequest())).deleted_studies == 0
    assert (await site.study()).uid == again.uid


@pytest.mark.parametrize("rows_too", [False, True])
async def test_workers_may_clear_what_was_deleted_whether_its_rows_are_gone_or_not(
    site: RpcSite, rows_too: bool
) -> None:
    async with transaction(site.engine) as conn:
        study = await past_study(conn, "old", make_spec(), ago_s=1)
        uid = (await conn.exec_driver_sql("SELECT uid FROM study WHERE id = %s", (study,))).scalar_one()
        await removal.mark_deleted(conn, study)
    if rows_too:
        await Janitor(site.engine, rest=0).clean()
    async with transaction(site.engine) as conn:
        assert await count(conn, "study", study) == (not rows_too)
        asked = [f"old-{uid}", f"other-{uid}", "old-", "never-heard-of-1a2b"]
        found = await leftovers.judge(conn, asked, Ages())
    assert found == [leftovers.Verdict(folder=f"old-{uid}", deleted=True)]


async def test_of_an_ended_study_goes_what_has_lasted_for_its_age(site: RpcSite) -> None:
    day = timedelta(days=1)
    async with transaction(site.engine) as conn:
        study = await past_study(conn, "old", make_spec(), ago_s=2 * DAY_S)
        uid = (await conn.exec_driver_sql("SELECT uid FROM study WHERE id = %s", (study,))).scalar_one()
    folder = f"old-{uid}"

    async def judged(ages: Ages) -> list[leftovers.Verdict]:
        async with transaction(site.engine) as conn:
            return await leftovers.judge(conn, [folder], ages)

    assert await judged(Ages()) == []
    assert await judged(Ages(logs=day)) == [leftovers.Verdict(folder=folder, logs=True)]
    await Janitor(site.engine, Ages(checkpoints=day), rest=0).clean()
    (found,) = await judged(Ages())
    assert (found.checkpoints, found.logs) == (True, False)
    assert found.kept == (f"file:///s/studies/{folder}/trials/0/c",)


async def test_a_call_has_the_janitor_begin_now(site: RpcSite) -> None:
    janitor = Janitor(site.engine, rest=0)
    first = janitor.clean

    async def clean() -> Done | None:
        rounds.append(1)
        return await first()

    rounds: list[int] = []
    janitor.clean = clean  # type: ignore[method-assign]  # counted
    janitor.wake()
    running = asyncio.create_task(janitor.run())
    async with asyncio.timeout(60):
        while not rounds:
            await asyncio.sleep(0.01)
    async with transaction(site.engine) as conn:
        study = await past_study(conn, "old", make_spec(), ago_s=1)
        await removal.mark_deleted(conn, study)
    servicer = StudyServicer(site.replicas[0].hub, AnalysisPools(), janitor)
    let_call(Caller(peer="p"))
    await servicer.CleanUp(pb.CleanUpRequest(), None)  # type: ignore[arg-type]  # it looks at no context
    async with asyncio.timeout(60):
        while True:
            async with transaction(site.engine) as conn:
                if not await count(conn, "study", study):
                    break
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_checkpoints_whose_files_were_deleted_are_forgotten(site: RpcSite) -> None:
    """All references in trials that have ended: the last one, the best one, and those of earlier ends."""
    await site.create(
        objective={"metric": "loss", "goal": "minimize", "keep": "best"},
        policy={"kind": "run_all"},
        max_trials=2,
    )
    for number in (0, 1):
        lease = (await site.suggest()).lease
        for step, value in ((1, 0.1), (9, 0.5)):
            await site.report(lease, step, value, checkpoint_uri=f"mem:/{number}/{step}")
    forget = pb.ForgetCheckpointsRequest(study="studies/s", uris=["mem:/0/1", "mem:/0/9", "mem:/elsewhere"])
    forget.cursor = (await site.study()).status.cursor
    assert (await site.call("ForgetCheckpoints", forget)).trials == 1
    assert (await site.call("ForgetCheckpoints", forget)).trials == 0, "it was done before"
    first, second = (await site.call("ListTrials", pb.ListTrialsRequest(study="studies/s"))).trials
    assert not first.HasField("checkpoint")
    assert not first.HasField("best_checkpoint")
    assert (second.checkpoint.uri, second.best_checkpoint.uri) == ("mem:/1/9", "mem:/1/1")
    assert (first.best_value, first.best_step) == (0.1, 1), "the result stays"
    await site.call("ExtendStudy", pb.ExtendStudyRequest(name="studies/s", steps=27))
    assert isinstance(await site.refusal("ForgetCheckpoints", forget), StudyNotEndedError)
    await site.call("StopStudy", pb.StopStudyRequest(name="studies/s"))
    forget = pb.ForgetCheckpointsRequest(study="studies/s", uris=["mem:/1/1"], cursor=forget.cursor)
    late = await site.refusal("ForgetCheckpoints", forget)
    assert isinstance(late, InvalidFieldError), "it was sent before the study continued"
    assert late.violations[0].field == "cursor"
    forget.cursor = (await site.study()).status.cursor
    assert (await site.call("ForgetCheckpoints", forget)).trials == 1
    _, second = (await site.call("ListTrials", pb.ListTrialsRequest(study="studies/s"))).trials
    assert second.checkpoint.uri == "mem:/1/9"
    assert [end.HasField("checkpoint") for end in second.earlier_ends] == [False]
    assert not second.HasField("best_checkpoint")
