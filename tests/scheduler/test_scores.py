"""The value of a trial that counts, by scope: which trial is the best, what a transfer takes, when a study fails."""

from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec
from test_outcomes import figures

from headrace.client.convert import study as client_study
from headrace.client.convert import trial as client_trial
from headrace.client.outcome import Outcome
from headrace_services.scheduler.core.inputs import StopTrial
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.rpc import convert as rpc_convert
from headrace_services.scheduler.store import proposals, studies, trials
from headrace_services.scheduler.store.database import transaction

CURVES = {
    "lucky": [0.5, 0.1, 0.6],
    "steady": [0.4, 0.3, 0.4],
    "late": [0.9, 0.2, 0.5],
    "early": [0.35],
}
"""The values of each trial's reports, at steps 1, 2 and 3. The last trial was stopped after its first report."""
ORDER = {
    "best": ["lucky", "late", "steady", "early"],
    "last": ["early", "steady", "late", "lucky"],
    "full_budget": ["steady", "late", "lucky", "early"],
}


def objective(scope: str, goal: str = "minimize", **more: Any) -> dict[str, Any]:
    k = {"k": 2} if scope == "mean_last_k" else {}
    return {"metric": "loss", "goal": goal, "scope": scope, **k, **more}


async def trained(engine: AsyncEngine, scope: str, goal: str = "minimize") -> StudySite:
    spec = make_spec(
        objective=objective(scope, goal), policy={"kind": "run_all"}, max_trials=len(CURVES), max_steps=3
    )
    site = await StudySite(engine, spec).create()
    await site.connect(slots=len(CURVES))
    sign = 1 if goal == "minimize" else -1
    for lease, values in zip(await site.kick(), CURVES.values(), strict=True):
        for step, value in enumerate(values, start=1):
            await site.tell(lease, step, sign * value)
        if len(values) < 3:
            await site.step(StopTrial(number=lease.number, reason="enough"))
    return site


async def ranked(site: StudySite) -> list[int]:
    """The trials as the SDK lists them, best first."""
    async with transaction(site.engine) as conn:
        views = [await trials.one(conn, site.study_id, number) for number in range(len(CURVES))]
        record = await studies.get(conn, site.study_id)
    assert record is not None
    study = client_study(rpc_convert.study(record, await figures(site)))
    shown = [
        client_trial(rpc_convert.trial(site.name, view, site.spec)) for view in views if view is not None
    ]
    return [one.number for one in Outcome(study).best_first(shown)]


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
@pytest.mark.parametrize("scope", ["best", "last", "full_budget"])
async def test_the_scope_says_which_trial_is_the_best(engine: AsyncEngine, scope: str, goal: str) -> None:
    site = await trained(engine, scope, goal)
    wanted = [list(CURVES).index(name) for name in ORDER[scope]]
    best = (await figures(site)).best
    assert best is not None
    assert best.trial.number == wanted[0]
    assert await ranked(site) == wanted
    taken = []
    other = await StudySite(engine, make_spec(max_trials=1)).create()
    async with transaction(engine) as conn:
        while (
            found := await proposals.best_left(
                conn, site.study_id, other.study_id, maximize=goal == "maximize"
            )
        ) is not None:
            taken.append(found.number)
            await conn.execute(
                text(
                    "INSERT INTO trial (study_id, number, state, params, source, milestone)"
                    f" VALUES ({other.study_id}, {len(taken)}, 'PENDING', '{{}}', {found.number}, 1)"
                )
            )
    assert taken == wanted, "a transfer takes them in the same order"


async def test_a_mean_is_of_the_last_k_reports_or_of_all_that_there_are(engine: AsyncEngine) -> None:
    site = await trained(engine, "mean_last_k")
    assert [row.score for row in await site.trials()] == pytest.approx([0.35, 0.35, 0.35, 0.35])
    assert (await site.trials())[0].recent == [0.1, 0.6]


@pytest.mark.parametrize("scope", ["last", "full_budget", "mean_last_k"])
async def test_only_a_finite_value_that_meets_the_constraints_counts(engine: AsyncEngine, scope: str) -> None:
    spec = make_spec(
        objective=objective(scope),
        policy={"kind": "run_all"},
        max_trials=1,
        max_steps=9,
        constraints=[{"metric": "size", "at_most": 1.0}],
    )
    site = await StudySite(engine, spec).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()

    async def after(step: int, **metrics: float) -> float | None:
        return await score_after(site, lease, step, metrics)

    assert await after(1, loss=0.5, size=1.0) == 0.5
    assert await after(2, loss=0.4, size=2.0) is None, "infeasible"
    assert await after(3, loss=float("nan"), size=1.0) is None
    site.fold = None  # another replica
    assert (await after(4, loss=0.3, size=1.0)) == (None if scope == "mean_last_k" else 0.3)
    assert await after(5, loss=0.1, size=1.0) == pytest.approx(0.2 if scope == "mean_last_k" else 0.1)
    kept = (await site.trial(0)).score
    assert await after(6, size=1.0) == kept, "a report without the metric says nothing"


async def score_after(site: StudySite, lease: Lease, step: int, metrics: dict[str, float]) -> float | None:
    await site.step(replace(site.report(lease, step, None), metrics=metrics))
    score: float | None = (await site.trial(0)).score
    return score


async def test_a_study_whose_trials_all_end_without_a_value_that_counts_fails(engine: AsyncEngine) -> None:
    spec = make_spec(objective=objective("last"), policy={"kind": "run_all"}, max_trials=1, max_steps=2)
    site = await StudySite(engine, spec).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.tell(lease, 1, 0.5)
    await site.tell(lease, 2, float("nan"))
    study = await site.study()
    assert study.state == "FAILED"
    assert study.detail.startswith("no trial ended with a finite 'loss' (trial 0 ended with NaN)")


async def test_a_trial_that_failed_is_the_best_by_no_scope(engine: AsyncEngine) -> None:
    spec = make_spec(
        objective=objective("full_budget"),
        policy={"kind": "run_all"},
        max_trials=2,
        max_steps=2,
        max_retries=0,
    )
    site = await StudySite(engine, spec).create()
    await site.connect(slots=2)
    first, second = await site.kick()
    await site.tell(first, 1, 0.1)
    await site.tell(second, 1, 0.5)
    await site.step(gone(first, "FAILED", error="ValueError: no"))
    best = (await figures(site)).best
    assert best is not None
    assert best.trial.number == 1
