"""Studies that start after others: what decides, and that nothing is lost or done twice on the way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sampler_studies import spec_of
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from test_suggesting import Replica, X, engine, replica

from headrace.spec import StudySpec
from headrace_services.scheduler.core.inputs import AddTrials, AfterEnded, PauseStudy, ResumeStudy, StopStudy
from headrace_services.scheduler.engine import followers as module
from headrace_services.scheduler.engine.submissions import Submission
from headrace_services.scheduler.store import after, tables
from headrace_services.scheduler.store.database import transaction

__all__ = ["engine"]  # a fixture


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.05)


def first() -> StudySpec:
    return spec_of("random", X, max_trials=2)


def second(kind: str = "random", **changes: Any) -> StudySpec:
    return spec_of(kind, X, sampler={"kind": kind}, max_trials=2, after="first", **changes)


@asynccontextmanager
async def looking(one: Replica) -> AsyncIterator[module.Followers]:
    async with asyncio.TaskGroup() as tasks:
        followers = module.Followers(one.hub, tasks)
        running = tasks.create_task(followers.run())
        yield followers
        running.cancel()


async def row(one: Replica, study_id: int) -> Any:
    s = tables.study
    return (await one.rows(select(s.c.state, s.c.detail, s.c.after).where(s.c.id == study_id)))[0]


async def until(one: Replica, study_id: int, **wanted: Any) -> Any:
    async with asyncio.timeout(60):
        while True:
            found = await row(one, study_id)
            if all(getattr(found, name) == value for name, value in wanted.items()):
                return found
            await asyncio.sleep(0.02)


async def notes(one: Replica, study_id: int) -> list[str]:
    return [event.message for event in await one.events(study_id, "note")]


BEGINS = "study 'first' has completed, so this one begins"


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", ["random", "sobol"])
async def test_nothing_is_placed_before_the_other_study_has_completed(engine: AsyncEngine, kind: str) -> None:
    async with replica(engine) as one, looking(one):
        source_id = await one.create(first(), "first")
        study_id = await one.create(second(kind, baseline={"x": 0.5}))
        one.suggester.want(study_id, 1)
        await one.hub.submit(study_id, Submission(input=AddTrials(params=({"x": 0.25},))))
        await one.play(source_id, 1)
        early = await one.suggest(study_id)
        assert (early.trial, early.done) == (None, False)
        await one.play(source_id, 9)
        await until(one, study_id, after=None)
        assert len(await one.play(study_id, 9)) == 4  # the baseline and the user's own among them
        assert (await row(one, study_id)).state == "COMPLETED"
        assert (await notes(one, study_id)).count(BEGINS) == 1


@pytest.mark.parametrize("how", ["stopped", "failed", "deleted"])
async def test_it_fails_with_the_reason_of_the_other(engine: AsyncEngine, how: str) -> None:
    async with replica(engine) as one, looking(one):
        source_id = await one.create(first(), "first")
        study_id = await one.create(second())
        if how == "failed":
            async with transaction(one.hub.engine) as conn:
                values = {
                    "state": "FAILED",
                    "detail": "layer blocks.0 is steep",
                    "end_time": tables.study.c.create_time,
                }
                await conn.execute(tables.study.update().where(tables.study.c.id == source_id).values(values))
        elif how == "stopped":
            await one.hub.submit(source_id, Submission(input=StopStudy(reason="enough")))
        else:
            async with transaction(one.hub.engine) as conn:
                await conn.execute(tables.study.delete().where(tables.study.c.id == source_id))
        found = await until(one, study_id, state="FAILED")
        said = {
            "stopped": "was stopped: enough",
            "failed": "failed: layer blocks.0 is steep",
            "deleted": "was deleted",
        }
        assert found.detail == f"study 'first', after which this one begins, {said[how]}"


async def test_a_pause_and_the_wait_are_apart(engine: AsyncEngine) -> None:
    async with replica(engine) as one, looking(one):
        source_id = await one.create(first(), "first")
        study_id = await one.create(second())
        await one.hub.submit(study_id, Submission(input=PauseStudy()))
        await one.play(source_id, 9)
        assert (await until(one, study_id, after=None)).state == "PAUSED"
        assert (await one.suggest(study_id)).trial is None
        await one.hub.submit(study_id, Submission(input=ResumeStudy()))
        assert len(await one.play(study_id, 9)) == 2


async def test_a_resume_does_not_end_the_wait_and_a_stop_ends_the_study(engine: AsyncEngine) -> None:
    async with replica(engine) as one, looking(one):
        await one.create(first(), "first")
        study_id = await one.create(second())
        for command in (PauseStudy(), ResumeStudy()):
            await one.hub.submit(study_id, Submission(input=command))
        assert (await one.suggest(study_id)).trial is None
        await one.hub.submit(study_id, Submission(input=StopStudy(reason="")))
        assert (await one.suggest(study_id)).done
        async with transaction(one.hub.engine) as conn:
            assert await after.waits_over(conn) == []  # a study that has ended waits for nothing


async def test_what_comes_twice_late_or_for_another_changes_nothing(engine: AsyncEngine) -> None:
    async with replica(engine) as one:
        source_id = await one.create(first(), "first")
        study_id = await one.create(second())
        await one.hub.submit(study_id, Submission(input=AfterEnded(study="other", why_not="it failed")))
        assert (await row(one, study_id)).after == "first"
        await one.play(source_id, 9)
        for why_not in ("", "", "it failed"):
            await one.hub.submit(study_id, Submission(input=AfterEnded(study="first", why_not=why_not)))
        assert (await row(one, study_id)).state == "ACTIVE"
        assert (await notes(one, study_id)).count(BEGINS) == 1


async def test_two_replicas_and_a_chain(engine: AsyncEngine) -> None:
    async with replica(engine) as one, replica(engine) as other, looking(one), looking(other):
        source_id = await one.create(first(), "first")
        middle_id = await one.create(second(), "middle")
        last_id = await one.create(spec_of("random", X, max_trials=2, after="middle"))
        await one.play(source_id, 9)
        await until(one, middle_id, after=None)
        assert (await row(one, last_id)).after == "middle"
        await other.play(middle_id, 9)
        await until(one, last_id, after=None)
        assert len(await one.play(last_id, 9)) == 2
        assert [len(await notes(one, study_id)) for study_id in (middle_id, last_id)] == [
            2,
            2,
        ]  # created, starts
