"""Proposals meant only for an idle slot: placed in the same cycle, or dropped. On a real database."""

from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, make_spec

from headrace_services.scheduler.core.inputs import Proposed
from headrace_services.scheduler.core.placement import Request
from headrace_services.scheduler.core.records import Proposal

RUN_ALL = {"kind": "run_all"}
FROM_FIRST = {"kind": "best_of", "study": "first", "eager": 1.0}


async def targets(engine: AsyncEngine, **changes: Any) -> StudySite:
    """A study that takes configurations from another study, before that has any."""
    spec = make_spec(**{"policy": RUN_ALL, "sampler": FROM_FIRST, "max_trials": 4, **changes})
    return await StudySite(engine, spec).create()


async def states(site: StudySite, index: int, **changes: Any) -> list[str]:
    """The states of all trials after the proposal with this index for an idle slot."""
    proposal = Proposal(sampler="best_of", source=index, early="a slot was idle")
    fields = {"params": {"x": 0.5}, "proposal": proposal, "if_idle": True, **changes}
    await site.step(Proposed(index=index, **fields))
    return [trial.state for trial in await site.trials()]


async def test_it_takes_an_idle_slot_in_the_same_step_and_is_dropped_where_none_is(
    engine: AsyncEngine,
) -> None:
    site = await targets(engine)
    assert await states(site, 0) == [], "no worker is there"
    await site.connect(slots=2)
    assert await states(site, 0) == ["RUNNING"]
    assert await states(site, 0) == ["RUNNING"], "it came twice"
    assert await states(site, 1) == ["RUNNING", "RUNNING"]
    assert await states(site, 2) == ["RUNNING", "RUNNING"]
    assert (await site.study()).sampled == 2
    assert await states(site, 2, if_idle=False) == ["RUNNING", "RUNNING", "PENDING"], "any other one waits"
    await site.connect("later", slots=1)
    assert (await states(site, 3))[2:] == ["PENDING"], "a trial of the study waits for the slot"


async def test_a_slot_that_another_study_waits_for_is_not_idle(engine: AsyncEngine) -> None:
    other = await StudySite(engine, make_spec(policy=RUN_ALL, max_trials=9)).create()
    await other.connect(slots=1)
    assert len(await other.kick()) == 1
    site = await targets(engine)
    await site.connect(slots=1)
    assert await states(site, 0) == []
    assert len(await other.kick()) == 1


@pytest.mark.parametrize(("gpu", "idle"), [(True, True), (False, False)])
async def test_nor_is_one_that_suits_what_is_to_be_proposed(
    engine: AsyncEngine, gpu: bool, idle: bool
) -> None:
    site = await targets(engine)
    await site.connect(slots=1)
    found = await states(site, 0, beside=Request(gpu=gpu))
    assert found == (["RUNNING"] if idle else [])


async def test_no_more_begin_than_may_run_in_parallel(engine: AsyncEngine) -> None:
    site = await targets(engine, max_parallel=1)
    await site.connect(slots=2)
    assert await states(site, 0) == ["RUNNING"]
    assert await states(site, 1) == ["RUNNING"]


async def test_a_gang_needs_as_many_idle_slots_on_one_worker(engine: AsyncEngine) -> None:
    site = await targets(engine, resources={"cpus": 2})
    await site.connect("one", slots=1)
    await site.connect("another", slots=1)
    assert await states(site, 0) == []
    await site.connect("both", slots=2)
    assert await states(site, 0) == ["RUNNING"]
