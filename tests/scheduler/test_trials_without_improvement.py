"""`until: {no_improvement}` counts by the scores of the study's scope, when trials reach rungs or complete."""

from collections.abc import Callable
from typing import Any

import pytest
from reopened_site import spec_now, train
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone
from test_ends_of_studies import begun

from headrace_services.scheduler.core.inputs import ExtendStudy, StopTrial
from headrace_services.scheduler.replay.replaying import replay

RUN_ALL = {"kind": "run_all"}
ASHA = {"kind": "asha", "rungs": [1, 9], "eta": 2, "variant": "stopping"}
BY_END = ["last", "full_budget", "mean_last_k"]


def scoped(scope: str) -> dict[str, Any]:
    k = {"k": 1} if scope == "mean_last_k" else {}
    return {"metric": "loss", "goal": "minimize", "scope": scope} | k


async def tell_twice(site: StudySite, passing: Callable[[int], float], end: Callable[[int], float]) -> None:
    """Let one trial after the other report in passing at step 4, and at its end."""
    for number in range(9):
        rows = await site.trials()
        if (await site.study()).state != "ACTIVE" or len(rows) <= number:
            return
        lease = site.leases[rows[number].lease_id]
        await site.tell(lease, 4, passing(number))
        await site.tell(lease, 9, end(number))


async def tried(site: StudySite) -> tuple[int, float | None]:
    """How many trials in a row improved nothing, and the score that they did not improve."""
    standing = (await site.study()).standing
    leader = standing["leader"]
    return standing["progress"]["tried"], leader and leader["score"]


@pytest.mark.parametrize("scope", BY_END)
async def test_a_value_in_passing_is_not_what_others_have_to_improve_on(
    engine: AsyncEngine, scope: str
) -> None:
    until = {"no_improvement": 3}
    site = await begun(engine, until, policy=RUN_ALL, max_trials=7, slots=1, objective=scoped(scope))
    await tell_twice(site, lambda number: 10.0 if number else 1.0, lambda number: 10.0 - number)
    study = await site.study()
    assert (study.state, study.detail) == ("COMPLETED", "all trials have finished")
    assert len(await site.trials()) == 7


@pytest.mark.parametrize("scope", BY_END)
async def test_values_in_passing_keep_no_study_going(engine: AsyncEngine, scope: str) -> None:
    until = {"no_improvement": 3}
    site = await begun(engine, until, policy=RUN_ALL, max_trials=9, slots=1, objective=scoped(scope))
    await tell_twice(site, lambda number: 9.0 - number, lambda _: 10.0)
    study = await site.study()
    assert study.state == "COMPLETED"
    assert study.detail.startswith("3 trials in a row did not improve on loss 10 of trial 0")
    assert len([row for row in await site.trials() if row.rungs]) == 4
    assert replay(await spec_now(site), await site.log()).identical


async def test_by_the_best_value_each_report_may_improve(engine: AsyncEngine) -> None:
    until = {"no_improvement": 3}
    site = await begun(engine, until, policy=RUN_ALL, max_trials=7, slots=1, objective=scoped("best"))
    await tell_twice(site, lambda number: 9.0 - number, lambda _: 10.0)
    assert (await site.study()).detail == "all trials have finished"


async def test_a_best_trial_that_gets_worse_leaves_the_lead_to_the_next_one(engine: AsyncEngine) -> None:
    site = await begun(engine, {"no_improvement": 9}, policy=ASHA, max_trials=9, slots=3)
    first, second, third = site.leases.values()
    await site.tell(first, 1, 1.0)
    await site.tell(second, 1, 5.0)
    assert await tried(site) == (1, 1.0)
    await site.tell(first, 5, 20.0)  # already on its way
    await site.tell(third, 1, 6.0)
    assert await tried(site) == (2, 1.0), "it leads with what it had at its rung"
    await site.tell(first, 9, 10.0)
    assert (await site.trial(0)).reason == "COMPLETED"
    assert await tried(site) == (2, 5.0), "another trial leads, and nothing got better"
    fourth = next(lease for lease in site.leases.values() if lease.number == 3)
    await site.tell(fourth, 1, 4.0)
    assert await tried(site) == (0, 4.0)


async def test_one_that_completed_leads_whatever_others_pass_at_rungs(engine: AsyncEngine) -> None:
    objective = scoped("full_budget")
    site = await begun(engine, {"no_improvement": 9}, policy=ASHA, max_trials=9, slots=2, objective=objective)
    first, second = site.leases.values()
    await site.tell(first, 1, 3.0)
    await site.tell(first, 9, 4.0)
    assert await tried(site) == (0, 4.0)
    await site.tell(second, 1, 1.0)
    assert await tried(site) == (1, 4.0)


async def test_a_best_trial_that_a_user_stops_on_its_way_is_compared_as_it_ended(engine: AsyncEngine) -> None:
    site = await begun(engine, {"no_improvement": 9}, policy=ASHA, max_trials=9, slots=2)
    first, second = site.leases.values()
    await site.tell(first, 1, 1.0)
    await site.tell(first, 5, 20.0)
    await site.step(StopTrial(number=0, reason="enough"))
    await site.tell(second, 1, 5.0)
    assert await tried(site) == (0, 5.0)


async def test_a_best_trial_that_fails_leads_no_more(engine: AsyncEngine) -> None:
    site = await begun(engine, {"no_improvement": 9}, policy=ASHA, max_trials=9, slots=2, max_retries=0)
    first, second = site.leases.values()
    await site.tell(first, 1, 1.0)
    await site.step(gone(first, "FAILED", error="ValueError: no"))
    await site.tell(second, 1, 5.0)
    assert await tried(site) == (0, 5.0)


async def test_a_study_of_an_earlier_version_counts_on(engine: AsyncEngine) -> None:
    """Its row says how many were tried, but not which trial leads: the trials' rows do."""
    site = await begun(engine, {"no_improvement": 3}, policy=RUN_ALL, max_trials=9, slots=1)
    for number, value in ((0, 0.5), (1, 0.6)):
        await site.tell(site.leases[(await site.trial(number)).lease_id], 9, value)
    assert await tried(site) == (1, 0.5)
    async with engine.begin() as conn:
        await conn.execute(text("UPDATE study SET standing = standing - 'leader'"))
    await site.tell(site.leases[(await site.trial(2)).lease_id], 9, 0.7)
    assert await tried(site) == (2, 0.5)


async def test_an_extension_counts_from_nothing_and_keeps_the_best(engine: AsyncEngine) -> None:
    site = await begun(engine, {"no_improvement": 2}, policy=RUN_ALL, max_trials=9, slots=1)
    await train(site, lambda number, _: 1.0 if number else 0.5)
    assert (await site.study()).state == "COMPLETED"
    await site.step(ExtendStudy(trials=0, steps=18))
    assert await tried(site) == (0, 0.5)
    await train(site, lambda _, __: 2.0)
    assert (await tried(site))[1] == 0.5
