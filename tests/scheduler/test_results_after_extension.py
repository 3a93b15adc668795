"""After `headrace extend --steps`, importance and warm starts compare values at one step, none of an earlier
budget."""

from reopened_site import spec_now, train
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, make_spec

from headrace_services.scheduler.core.inputs import ExtendStudy
from headrace_services.scheduler.store import proposals
from headrace_services.scheduler.store.database import transaction

STOPPING = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "variant": "stopping"}


def better_and_better(number: int, step: int) -> float:
    """Each trial is better than those before it, so none is stopped when it arrives; at the end most are behind."""
    return (20 - number) / (1 + step)


async def extended(engine: AsyncEngine) -> StudySite:
    """Nine trials with the full budget of 9 steps, some of which continued to 27."""
    site = await StudySite(engine, make_spec(policy=STOPPING, max_trials=9)).create()
    await site.connect(slots=1)
    await train(site, better_and_better)
    await site.step(ExtendStudy(trials=0, steps=27))
    await train(site, better_and_better)
    steps = [row.step for row in await site.trials() if row.reason == "COMPLETED"]
    assert set(steps) == {9, 27}, "some completed with either budget"
    return site


async def test_only_results_at_the_new_budget_are_results_there(engine: AsyncEngine) -> None:
    site = await extended(engine)
    rows = await site.trials()
    spec = await spec_now(site)
    async with transaction(engine) as conn:
        found = await proposals.results_since(conn, site.study_id, 27, 0, 10**6, budgets=spec.budgets)
        every = await proposals.results_since(conn, site.study_id, 27, 0, 10**6, budgets=(27,))
    assert len(found) == sum(row.step == 27 for row in rows)
    assert len(every) > len(found), "otherwise nothing of before could be mixed in"


async def test_a_warm_start_takes_none_of_the_budget_before(engine: AsyncEngine) -> None:
    site = await extended(engine)
    rows = await site.trials()
    async with transaction(engine) as conn:
        at_27 = await proposals.earlier(conn, "default", site.name, 27, 100, top=27)
        at_9 = await proposals.earlier(conn, "default", site.name, 9, 100, top=27)
    assert len(at_27) == sum(row.step == 27 for row in rows)
    assert len(at_9) == sum(row.rungs >= 3 for row in rows)


async def test_a_warm_start_keeps_what_a_study_had_before_an_extension_that_brought_nothing(
    engine: AsyncEngine,
) -> None:
    site = await StudySite(
        engine, make_spec(policy={"kind": "run_all"}, max_trials=3, max_retries=0)
    ).create()
    await site.connect(slots=1)
    await train(site, better_and_better)

    async def known(level: int) -> dict[int, float]:
        async with transaction(engine) as conn:
            found = await proposals.earlier(conn, "default", site.name, level, 100, top=level)
        return {one.level: one.metrics["loss"] for one in found[:1]} if len(found) == 3 else {}

    before = {level: await known(level) for level in (9, 27, 81)}
    assert before == {level: {level: better_and_better(2, 9)} for level in before}
    await site.step(ExtendStudy(trials=0, steps=27))
    await train(site, better_and_better, fails={0, 1, 2})
    assert {level: await known(level) for level in (9, 27, 81)} == before
