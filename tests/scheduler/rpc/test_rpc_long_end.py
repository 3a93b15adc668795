"""A study with many unfinished trials ends in pages: running trials at once, the rest later."""

import asyncio

import pytest
from rpc_site import RpcSite
from sqlalchemy import func, select

from headrace.errors import StudyNotEndedError
from headrace.spec.values import params_to_proto
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.core import decide
from headrace_services.scheduler.engine import runner
from headrace_services.scheduler.store import studies, tables

PAGE = 20
STUDY = "studies/s"


async def _left(site: RpcSite) -> int:
    t = tables.trial
    async with site.engine.connect() as conn:
        query = select(func.count()).where(t.c.state != "TERMINATED")
        return int((await conn.execute(query)).scalar_one())


async def _with_many(site: RpcSite) -> int:
    """A study with waiting trials, the last of which runs."""
    await site.create(max_trials=2)
    x = params_to_proto({"x": 0.5})
    await site.call("AddTrials", pb.AddTrialsRequest(study=STUDY, parameters=[x] * (3 * PAGE)))
    await site.suggest()
    return await _left(site)


async def test_the_rest_is_terminated_page_by_page_and_a_watch_sees_all_of_it(
    site: RpcSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "ENDED_AT_ONCE", PAGE)
    trials = await _with_many(site)
    sizes = []
    commit = runner.run_cycle

    async def counted(*args: object) -> object:
        before = await _left(site)
        result = await commit(*args)  # type: ignore[arg-type]  # passed on
        sizes.append((before, result.effects.again))
        return result

    monkeypatch.setattr(runner, "run_cycle", counted)

    async def follow() -> list[str]:
        request = pb.WatchStudyRequest(name=STUDY)
        return [event.message async for one in site.replicas[0].watch(request) for event in one.events]

    watch = asyncio.create_task(follow())
    await site.call("StopStudy", pb.StopStudyRequest(name=STUDY))
    told = await watch
    assert sum("cancelled" in message for message in told) == trials, "the watch ends after the last page"
    assert await _left(site) == 0
    left = [before for before, _ in sizes]
    assert max(a - b for a, b in zip(left, [*left[1:], 0], strict=True)) <= PAGE + 1
    assert [again for _, again in sizes if again] == [True] * (trials // PAGE)
    await site.call("DeleteStudy", pb.DeleteStudyRequest(name=STUDY))


async def test_another_replica_continues_where_one_died(
    site: RpcSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "ENDED_AT_ONCE", PAGE)
    await _with_many(site)
    with monkeypatch.context() as patch:
        patch.setattr(runner.StudyRunner, "kick", lambda *_: None)  # it dies after the first page
        await site.call("StopStudy", pb.StopStudyRequest(name=STUDY))
        assert await _left(site) > PAGE
        refused = await site.refusal("DeleteStudy", pb.DeleteStudyRequest(name=STUDY))
        assert isinstance(refused, StudyNotEndedError)
        assert "trials of study 's' are still being ended" in str(refused)
        async with site.engine.connect() as conn:
            assert len(await studies.ending(conn)) == 1
    other = await site.add_replica()
    waking = asyncio.create_task(other.hub.run_waking())
    other.hub.wake_waiting_studies()  # as each sweep does
    async with asyncio.timeout(60):
        while await _left(site):
            await asyncio.sleep(0.02)
    waking.cancel()
    async with site.engine.connect() as conn:
        assert await studies.ending(conn) == []
