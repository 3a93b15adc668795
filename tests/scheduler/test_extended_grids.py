"""`headrace extend --trials` of a grid: configurations that users enqueue or add use up points of the grid, or
none."""

from typing import Any

import pytest
from reopened_site import spec_now, train
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace.errors import InvalidFieldError
from headrace_services.scheduler.core.inputs import AddTrials, ExtendStudy, Reopened
from headrace_services.scheduler.replay.replaying import replay

GRID: dict[str, Any] = {
    "space": {"x": {"type": "float", "low": 1.0, "high": 4.0}},
    "sampler": {"kind": "grid", "points": {"x": 4}},
    "policy": {"kind": "run_all"},
}
BESIDE, ON = {"x": 1.5}, {"x": 4.0}


async def refused(site: StudySite, trials: int) -> str:
    (outcome,) = await site.step(ExtendStudy(trials=trials, steps=None))
    assert isinstance(outcome, InvalidFieldError), outcome
    return str(outcome)


async def extended(site: StudySite, trials: int) -> None:
    (outcome,) = await site.step(ExtendStudy(trials=trials, steps=None))
    assert isinstance(outcome, Reopened), outcome


async def points(site: StudySite) -> list[float]:
    return [row.params["x"] for row in await site.trials()]


@pytest.mark.parametrize(
    ("enqueued", "trials", "left"),
    [
        ((), 1, 3),
        ((BESIDE,), 1, 4),
        ((BESIDE,), 2, 3),
        ((BESIDE, ON), 2, 3),
        ((ON,), 1, 3),
        ((ON, ON), 2, 3),
        ((BESIDE,), 9, 0),
    ],
)
@pytest.mark.parametrize("begun", [False, True])
async def test_an_enqueued_point_beside_the_grid_uses_up_none_of_it(
    engine: AsyncEngine, enqueued: tuple[dict[str, float], ...], trials: int, left: int, begun: bool
) -> None:
    site = await StudySite(engine, make_spec(**GRID, enqueued=enqueued, max_trials=trials)).create()
    await site.connect(slots=1)
    if begun:
        await train(site)
    says = await refused(site, left + 1)
    assert (f"has {left} further configurations" if left else "has no further configuration") in says
    if left:
        await extended(site, left)
    await train(site)
    found = await points(site)
    assert set(found) >= {1.0, 2.0, 3.0, 4.0}, "every point of the grid has its turn"
    assert len(found) == len(enqueued) + 4 - len({ON["x"]} & {one["x"] for one in enqueued})
    assert replay(await spec_now(site), await site.log()).identical


async def test_added_and_infeasible_points_are_tried_ones(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(**GRID, enqueued=(BESIDE,), max_trials=2)).create()
    await site.connect(slots=1)
    await site.step(AddTrials(params=(ON, {"x": 3.5})))
    assert "has 2 further configurations" in await refused(site, 3)
    for row in await site.trials():
        if row.lease_id:
            await site.step(gone(site.leases[row.lease_id], "INFEASIBLE", error="no"))
    await train(site)
    assert "has 2 further configurations" in await refused(site, 3)
    await extended(site, 2)
    await train(site)
    assert sorted(await points(site)) == [1.0, 1.5, 2.0, 3.0, 3.5, 4.0]
    assert "has no further configuration" in await refused(site, 1)


@pytest.mark.parametrize("sampler", [{"kind": "grid"}, {"kind": "random"}])
async def test_replicas_and_cold_folds_try_the_same_points(
    engine: AsyncEngine, sampler: dict[str, Any]
) -> None:
    """One scheduler has it in its cache, another one reads it from the rows: neither repeats a point."""
    space = {"x": {"type": "int", "low": 1, "high": 8}}
    spec = make_spec(space=space, sampler=sampler, policy={"kind": "run_all"}, max_trials=5, max_parallel=1)
    tried = []
    for how in ("warm", "cold", "two replicas"):
        site = await StudySite(engine, spec).create()
        assert (await site.study()).planned == 5
        await site.connect(slots=1)
        folds = [None, None]
        for turn in range(16):
            if turn == 8:
                await extended(site, 3)
            if how == "cold":
                site.fold = None
            if how == "two replicas":
                folds[turn % 2], site.fold = site.fold, folds[1 - turn % 2]
            await site.kick()
            for row in await site.trials():
                if row.lease_id and row.lease_id in site.leases:
                    await site.step(site.report(site.leases[row.lease_id], row.milestone, 0.5))
        tried.append(await points(site))
    assert tried[0] == tried[1] == tried[2]
    assert len(tried[0]) == len(set(tried[0])) == 8
