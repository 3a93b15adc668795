"""The status against a brute-force count, after ask/tell studies that ran to their end."""

import math
from typing import Any

import pytest
from rpc_site import RpcSite
from sqlalchemy import select

from headrace.spec.grid import Grid
from headrace.v1 import study_pb2 as pb
from headrace.v1 import trial_pb2
from headrace_services.scheduler.store import tables


def noisy(params: dict[str, Any], step: int) -> float:
    """A loss with ties."""
    return round(abs(params["x"] - 0.3), 1) + 1 / step


POLICIES = {
    "promotion": {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "variant": "promotion"},
    "stopping": {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "variant": "stopping"},
    "brackets": {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "brackets": 2},
    "run_all": {"kind": "run_all"},
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("goal", ["minimize", "maximize"])
@pytest.mark.parametrize("policy", POLICIES)
async def test_status_is_the_brute_force_count(site: RpcSite, policy: str, goal: str) -> None:
    await site.create(
        policy=POLICIES[policy],
        objective={"metric": "loss", "goal": goal},
        max_trials=12,
        baseline={"x": 0.3},
    )
    await site.add_replica()
    await site.drive(noisy)
    study = await site.study()
    trials = await site.trials()
    assert study.state == pb.STUDY_STATE_COMPLETED
    assert study.HasField("end_time")
    await check_status(site, study, trials)


async def check_status(site: RpcSite, study: pb.Study, trials: list[trial_pb2.Trial]) -> None:
    status = study.status
    for name in ("pending", "running", "paused", "resumed", "terminated"):
        state = trial_pb2.TrialState.Value(f"TRIAL_STATE_{name.upper()}")
        assert getattr(status, name) == sum(trial.state == state for trial in trials), name
    for name in ("completed", "stopped_early", "failed", "cancelled"):
        reason = trial_pb2.TerminationReason.Value(f"TERMINATION_REASON_{name.upper()}")
        assert getattr(status, name) == sum(trial.termination_reason == reason for trial in trials), name
    sign = -1 if study.spec.objective.goal == 2 else 1
    ranked = sorted(
        (
            sign * trial.score,
            trial.termination_reason != trial_pb2.TERMINATION_REASON_COMPLETED,
            -trial.step,
            trial.number,
        )
        for trial in trials
        if trial.HasField("score") and not trial.baseline
    )
    assert status.HasField("best") == bool(ranked)
    if ranked:
        assert status.best.number == ranked[0][-1]
    baselines = [trial.number for trial in trials if trial.baseline]
    assert [status.baseline.number] * status.HasField("baseline") == baselines
    for rung in status.rungs:
        results = [r for trial in trials for r in trial.rung_results if r.milestone == rung.milestone]
        assert rung.recorded == len(results)
        assert rung.promoted == sum(result.promoted for result in results)
        on_worker = (trial_pb2.TRIAL_STATE_RUNNING, trial_pb2.TRIAL_STATE_RESUMED)
        assert rung.running == sum(
            trial.state in on_worker and trial.milestone == rung.milestone for trial in trials
        )
    assert status.steps_spent == sum(trial.steps_spent for trial in trials)
    configurations = study.spec.max_trials + study.spec.HasField("baseline")
    assert status.steps_run_all == configurations * study.spec.max_steps
    async with site.engine.connect() as conn:
        newest = (
            await conn.execute(select(tables.event.c.cursor).order_by(tables.event.c.cursor.desc()))
        ).first()
    assert newest is not None
    assert status.cursor == newest.cursor


async def test_status_in_the_middle_counts_what_runs(site: RpcSite) -> None:
    await site.create(max_trials=4, baseline={"x": 0.5})
    first = await site.suggest()
    second = await site.suggest(client="d")
    await site.report(second.lease, 1, 0.5)
    third = await site.suggest(client="e")
    await site.report(third.lease, 1, math.nan)
    study = await site.study()
    assert first.trial.baseline
    assert study.status.running == 1
    assert study.status.paused == 2
    await check_status(site, study, await site.trials())


async def test_best_ignores_what_is_not_finite_and_breaks_ties_by_number(site: RpcSite) -> None:
    await site.create(policy={"kind": "run_all"}, max_trials=4, max_steps=1)
    asked = [await site.suggest(client=f"c{n}") for n in range(4)]
    for place, value in ((0, math.nan), (1, -math.inf), (3, 0.5), (2, 0.5)):
        await site.report(asked[place].lease, 1, value)
    status = (await site.study()).status
    assert status.best.number == 2
    assert status.best.best_value == 0.5
    trials = await site.trials()
    assert math.isnan(trials[0].rung_results[0].value)
    assert trials[1].value == -math.inf
    assert not trials[0].HasField("best_value")


async def test_a_grid_is_counted_when_its_study_is_created(
    site: RpcSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = {"x": {"type": "int", "low": 1, "high": 5}}
    study = await site.create(space=space, sampler={"kind": "grid"}, max_trials=100)
    assert study.status.steps_run_all == 5 * 9

    def count(grid: Grid) -> None:
        raise AssertionError(f"{grid} was counted again")

    monkeypatch.setattr(Grid, "_count", count)
    assert (await site.study()).status.steps_run_all == 5 * 9
    page = await site.call("ListStudies", pb.ListStudiesRequest())
    assert page.studies[0].status.steps_run_all == 5 * 9


async def test_trials_added_by_users_count_as_to_be_run(site: RpcSite) -> None:
    study = await site.create(max_trials=3)
    assert study.status.steps_run_all == 27
    added = pb.AddTrialsRequest(study="studies/s")
    added.parameters.add().values["x"].float_value = 0.25
    await site.call("AddTrials", added)
    assert (await site.study()).status.steps_run_all == 36
