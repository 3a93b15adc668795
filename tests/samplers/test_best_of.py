"""The sampler `best_of`: a study that takes the best configurations of another one."""

import asyncio
from typing import Any

import pytest
from sampler_studies import spec_of
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from test_suggesting import Replica, X, engine, replica

from headrace.spec import StudySpec
from headrace_services.scheduler.core.inputs import (
    Accepted,
    AddTrials,
    ReportArrived,
    StopStudy,
    StopTrial,
    Suggested,
)
from headrace_services.scheduler.core.records import Checkpoint
from headrace_services.scheduler.engine.submissions import Submission
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.suggesting import suggester as module

__all__ = ["engine"]  # a fixture


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_EVERY_S", 0.05)


def first(trials: int = 6, **changes: Any) -> StudySpec:
    return spec_of("random", X, **{"max_trials": trials, **changes})


def follower(top: int = 3, **changes: Any) -> StudySpec:
    sampler = {"kind": "best_of", "study": "first", **changes}
    return spec_of("random", X, sampler=sampler, max_trials=top)


async def numbers_by_loss(one: Replica, study_id: int) -> list[int]:
    t = tables.trial
    found = await one.rows(
        select(t.c.number, t.c.score, t.c.reason).where(t.c.study_id == study_id).order_by(t.c.score)
    )
    return [row.number for row in found if row.reason != "FAILED"]


async def state(one: Replica, study_id: int) -> Any:
    s = tables.study
    return (await one.rows(select(s.c.state, s.c.detail, s.c.planned).where(s.c.id == study_id)))[0]


async def test_it_takes_the_best_once_the_other_study_has_completed(engine: AsyncEngine) -> None:
    async with replica(engine) as one:
        source_id = await one.create(first(), "first")
        study_id = await one.create(follower())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await one.suggest(study_id)
        made = await one.play(source_id, 9)
        params = {asked.trial.number: asked.trial.params for asked in made if asked.trial}
        taken = [asked.trial for asked in await one.play(study_id, 9) if asked.trial]
        assert [trial.source for trial in taken] == (await numbers_by_loss(one, source_id))[:3]
        assert [trial.params for trial in taken] == [
            params[trial.source] for trial in taken if trial.source is not None
        ]
        assert (await state(one, study_id)).state == "COMPLETED"
        created = await one.events(study_id, "trial_created")
        assert f"has the configuration of trial {taken[0].source}" in created[0].message
        assert created[0].detail["proposal"]["source"] == taken[0].source


async def test_a_failed_trial_is_not_taken_and_there_may_be_fewer_than_wanted(engine: AsyncEngine) -> None:
    async with replica(engine) as one:
        source_id = await one.create(first(3), "first")
        study_id = await one.create(follower(5))
        asked = await one.suggest(source_id)
        assert asked.trial is not None
        await one.play(source_id, 2)
        await one.hub.submit(source_id, Submission(input=StopTrial(number=asked.trial.number, reason="")))
        taken = await one.play(study_id, 9)
        assert len([one for one in taken if one.trial]) == 2  # the third reported nothing
        row = await state(one, study_id)
        assert (row.state, row.planned) == ("COMPLETED", 2)
        assert [event.detail["proposals"] for event in await one.events(study_id, "proposals_ended")] == [2]


@pytest.mark.parametrize("how", ["stopped", "deleted"])
async def test_without_results_the_study_fails_and_says_why(engine: AsyncEngine, how: str) -> None:
    async with replica(engine) as one:
        source_id = await one.create(first(), "first")
        study_id = await one.create(follower())
        await one.play(source_id, 2)
        if how == "stopped":
            await one.hub.submit(source_id, Submission(input=StopStudy(reason="enough")))
        else:  # at once: otherwise the follower would see that it was stopped
            async with one.hub.engine.begin() as conn:
                await conn.execute(tables.study.delete().where(tables.study.c.id == source_id))
        one.suggester.want(study_id, 1)
        async with asyncio.timeout(60):
            while (row := await state(one, study_id)).state == "ACTIVE":
                await asyncio.sleep(0.05)
        said = "was deleted" if how == "deleted" else "was stopped (enough)"
        assert (row.state, row.detail) == (
            "FAILED",
            f"study 'first', whose best configurations it takes, {said}",
        )


async def test_the_first_one_may_begin_early(engine: AsyncEngine) -> None:
    async with replica(engine) as one:
        source_id = await one.create(first(4), "first")
        study_id = await one.create(follower(2, eager=0.5))
        await one.play(source_id, 2)
        best = (await numbers_by_loss(one, source_id))[0]
        early = await one.suggest(study_id)
        assert early.trial is not None
        assert early.trial.source == best
        await one.play(source_id, 4)
        late = await one.suggest(study_id)
        assert late.trial is not None
        left = [number for number in await numbers_by_loss(one, source_id) if number != best]
        assert late.trial.source == left[0]


async def test_users_may_add_configurations_of_their_own(engine: AsyncEngine) -> None:
    async with replica(engine) as one:
        source_id = await one.create(first(2), "first")
        study_id = await one.create(follower(1))
        await one.hub.submit(study_id, Submission(input=AddTrials(params=({"x": 0.5},))))
        own = await one.suggest(study_id)
        assert own.trial is not None
        assert own.trial.source is None
        await one.play(source_id, 2)
        taken = await one.suggest(study_id)
        assert taken.trial is not None
        assert taken.trial.source == (await numbers_by_loss(one, source_id))[0]


async def test_a_trial_that_is_paused_at_a_rung_counts_for_the_share(engine: AsyncEngine) -> None:
    """Under promotion a paused trial may never be promoted, and ends only with the study."""
    async with replica(engine) as one:
        policy = {"kind": "asha", "eta": 2, "rungs": [1, 2]}
        source_id = await one.create(first(4, policy=policy, max_steps=2), "first")
        study_id = await one.create(follower(2, eager=0.5))
        paused = await one.suggest(source_id)
        assert await report(one, source_id, paused, 1, loss=0.5) == "PAUSE"
        assert not await is_early(one, study_id), "no trial has had its full budget"
        best = await one.suggest(source_id)
        assert await report(one, source_id, best, 1, loss=0.25) == "CONTINUE"
        assert await report(one, source_id, best, 2, loss=0.125) == "STOP"
        assert (await state(one, source_id)).state == "ACTIVE"
        taken = await one.suggest(study_id)
        assert taken.trial is not None
        assert best.trial is not None
        assert taken.trial.source == best.trial.number
        (created,) = await one.events(study_id, "trial_created")
        assert created.detail["proposal"]["early"] == "2 of 4 trials are decided"
        assert not await is_early(one, study_id), "the last place is kept for the end"


async def report(one: Replica, study_id: int, asked: Suggested, step: int, **metrics: float) -> str:
    """Report a trial's step, and return the resulting action."""
    assert asked.lease is not None
    arrived = ReportArrived(
        lease_id=asked.lease.id,
        number=asked.lease.number,
        attempt=asked.lease.attempt,
        sequence=None,
        step=step,
        metrics=metrics,
        checkpoint=Checkpoint(uri="file:///saved", step=step),
    )
    outcome = (await one.hub.submit(study_id, Submission(input=arrived))).outcome
    assert isinstance(outcome, Accepted)
    assert outcome.decision is not None
    return outcome.decision.action


async def is_early(one: Replica, study_id: int) -> bool:
    """Whether a further configuration is available within a few checks."""
    try:
        async with asyncio.timeout(0.5):
            await one.suggest(study_id)
    except TimeoutError:
        return False
    return True
