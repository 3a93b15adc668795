"""`headrace extend`: more configurations, or a larger full budget, under every policy; and what is refused."""

import runpy
from typing import Any

import pytest
from reopened_site import improving, spec_now, train
from sqlalchemy import select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace.errors import InvalidFieldError, StudyEndedError, Violation
from headrace.spec import StudySpec
from headrace_services.scheduler.core import fold as cache
from headrace_services.scheduler.core.inputs import (
    Added,
    AddTrials,
    ExtendStudy,
    PauseStudy,
    PauseTrial,
    Reopened,
    ResumeStudy,
    ResumeTrial,
    RetryTrials,
    StopStudy,
)
from headrace_services.scheduler.core.policies import Policy, make_policy
from headrace_services.scheduler.replay.replaying import replay
from headrace_services.scheduler.store import schema, tables
from headrace_services.scheduler.store.database import transaction

POLICIES: dict[str, dict[str, Any]] = {
    "auto": {"kind": "auto"},
    "asha": {"kind": "asha", "eta": 3, "min_steps": 1},
    "asha-brackets": {"kind": "asha", "eta": 3, "min_steps": 1, "brackets": 2},
    "asha-effort": {"kind": "asha", "eta": 3, "min_steps": 1, "effort": 0.4},
    "asha-stopping": {"kind": "asha", "eta": 3, "min_steps": 1, "variant": "stopping"},
    "successive-halving": {"kind": "successive_halving", "eta": 3, "min_steps": 1},
    "hyperband": {"kind": "hyperband", "eta": 3, "min_steps": 1},
    "pasha": {"kind": "pasha", "eta": 3, "min_steps": 1},
    "median": {"kind": "median", "interval": 3},
    "rung-median": {"kind": "rung_median", "interval": 3},
    "run-all": {"kind": "run_all"},
    "pbt": {"kind": "pbt", "interval": 3},
}
RUN_ALL = POLICIES["run-all"]


def by_trials(more: int) -> ExtendStudy:
    return ExtendStudy(trials=more, steps=None)


def by_steps(steps: int) -> ExtendStudy:
    return ExtendStudy(trials=0, steps=steps)


async def ended(engine: AsyncEngine, **changes: Any) -> StudySite:
    site = await StudySite(engine, make_spec(**changes)).create()
    await site.connect(slots=3)
    await train(site)
    assert (await site.study()).state == "COMPLETED"
    return site


async def replayed(site: StudySite) -> None:
    found = replay(await spec_now(site), await site.log())
    assert found.identical, found.differences
    assert not found.reworded


@pytest.mark.cases(4)
@pytest.mark.parametrize("kind", POLICIES)
async def test_a_larger_budget_continues_from_what_is_there(engine: AsyncEngine, kind: str) -> None:
    site = await ended(engine, policy=POLICIES[kind])
    before = await site.trials()
    rungs = (await spec_now(site)).rungs()
    entries = select(tables.rung_result).where(tables.rung_result.c.study_id == site.study_id)
    recorded = {(row.number, row.rung): (row.milestone, row.value) for row in await site.rows(entries)}
    (outcome,) = await site.step(by_steps(27))
    assert not isinstance(outcome, Exception), outcome
    spec = await spec_now(site)
    assert spec.rungs()[: len(rungs)] == rungs
    assert (spec.max_steps, spec.rungs()[-1], spec.as_created().max_steps) == (27, 27, 9)
    await train(site)
    study, after = await site.study(), await site.trials()
    assert study.state == "COMPLETED"
    assert len(after) == len(before)
    now = {(row.number, row.rung): (row.milestone, row.value) for row in await site.rows(entries)}
    assert {key: now[key] for key in recorded} == recorded
    if kind != "pasha":  # whose rankings may have settled
        assert max(row.step for row in after) == 27
    assert all(row.attempt >= then.attempt for row, then in zip(after, before, strict=True))
    await replayed(site)


@pytest.mark.parametrize("kind", ["asha-brackets", "successive-halving", "hyperband", "median", "run-all"])
async def test_more_configurations_join_those_that_are_there(engine: AsyncEngine, kind: str) -> None:
    site = await ended(engine, policy=POLICIES[kind])
    await site.step(by_trials(5))
    await train(site)
    assert (await site.study()).state == "COMPLETED"
    trials = await site.trials()
    assert len(trials) == 14
    assert all(row.step for row in trials[9:])
    await replayed(site)


async def test_run_all_continues_with_every_trial_from_its_checkpoint(engine: AsyncEngine) -> None:
    site = await ended(engine, policy=RUN_ALL, max_trials=2, baseline={"x": 0.5})
    await site.step(by_steps(27))
    rows = await site.trials()
    assert [(row.state, row.milestone) for row in rows] == [("RESUMED", 27)] * 3
    assert {site.leases[row.lease_id].step for row in rows} == {9}
    assert {site.leases[row.lease_id].budget for row in rows} == {27}
    await train(site)
    assert [(row.step, row.reason) for row in await site.trials()] == [(27, "COMPLETED")] * 3
    await replayed(site)


async def test_a_completed_trial_that_is_not_promoted_says_that_it_completed(engine: AsyncEngine) -> None:
    """Also after a second extension: it reads `stopped_early`, and must not look as if its result was lost."""
    site = await ended(engine, policy=POLICIES["asha"], max_trials=27)
    completed = {row.number: row.value for row in await site.trials() if row.reason == "COMPLETED"}
    for steps in (27, 81):
        await site.step(by_steps(steps))
        await train(site)
        waited = [row for row in await site.trials() if row.number in completed and row.step == 9]
        assert waited
        for row in waited:
            assert row.reason == "STOPPED_EARLY"
            assert row.detail == (
                f"completed the full budget of 9 steps with loss {completed[row.number]:.5g}; not promoted to the new "
                f"budget of {steps} steps before the study ended"
            )
    others = {row.detail for row in await site.trials() if row.step < 9}
    assert others == {"not promoted before the study ended"}


async def test_a_trial_that_trains_pauses_at_the_budget_that_it_was_told(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_trials=1)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    assert lease.budget == 9
    await site.tell(lease, 4, 0.5)
    await site.step(by_steps(27))
    decision = await site.tell(lease, 9, 0.4)
    assert decision.action == "PAUSE"
    assert "started with a full budget of 9 steps" in decision.reason
    trial = await site.trial(0)
    assert (trial.state, trial.milestone) == ("RESUMED", 27)
    again = site.leases[trial.lease_id]
    assert (again.step, again.budget) == (9, 27)
    assert (await site.tell(again, 27, 0.1)).action == "STOP"
    assert (await site.study()).state == "COMPLETED"
    await replayed(site)


INTERRUPTIONS = [
    "nothing",
    "kill",
    "kill of all it had",
    "pause by hand",
    "pause of the study",
    "failure",
    "retry",
]


@pytest.mark.parametrize("by", INTERRUPTIONS)
async def test_no_interruption_changes_the_budget_that_a_trial_sees(engine: AsyncEngine, by: str) -> None:
    """A trial that began before an extension keeps its budget until it has reached it, as one that runs through."""
    spec = make_spec(policy=RUN_ALL, max_trials=2, max_steps=12, max_retries=0 if by == "retry" else 3)
    site = await StudySite(engine, spec).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.tell(lease, 5, 0.5, saved=by != "kill of all it had")
    await site.step(by_steps(20))
    match by:
        case "kill" | "kill of all it had":
            await site.step(gone(lease, "LOST", error="killed by SIGKILL"))
        case "pause by hand":
            await site.step(PauseTrial(number=0))
        case "pause of the study":
            await site.step(PauseStudy())
        case "failure" | "retry":
            await site.step(gone(lease, "FAILED", error="ValueError: boom"))
    if by == "retry":
        await site.step(RetryTrials(numbers=frozenset({0})))
    while (trial := await site.trial(0)).lease_id is None:  # the other one may have the slot
        for other in (row for row in await site.trials() if row.lease_id):
            await site.tell(site.leases[other.lease_id], 20, 0.9)
        await site.kick()
    lease = site.leases[trial.lease_id]
    assert lease.budget == 12
    assert (await site.tell(lease, 12, 0.4)).action == "PAUSE"
    await site.step(ResumeTrial(number=0), ResumeStudy())
    while (trial := await site.trial(0)).lease_id is None:
        for other in (row for row in await site.trials() if row.lease_id):
            await site.tell(site.leases[other.lease_id], other.milestone, 0.9)
        await site.kick()
    assert (site.leases[trial.lease_id].budget, trial.milestone) == (20, 20)
    await site.tell(site.leases[trial.lease_id], 20, 0.1)
    await train(site)
    budgets = {one.number: one.budget for one in site.leases.values()}
    assert budgets[1] == 20, "it had not begun"
    await replayed(site)


async def test_a_study_of_before_the_column_keeps_what_its_attempts_were_told(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_trials=2, max_steps=12)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.tell(lease, 5, 0.5)
    await site.step(by_steps(20))
    async with transaction(engine) as conn:
        await conn.execute(update(tables.trial).values(budget=None))
        versions = schema.MIGRATIONS / "versions"
        await conn.execute(text(runpy.run_path(str(versions / "0005_budgets.py"))["LAST_TOLD"]))
    assert [row.budget for row in await site.trials()] == [12, None]


async def test_what_the_policy_stops_stays_as_it_ended_and_says_why(engine: AsyncEngine) -> None:
    site = await ended(engine, policy=POLICIES["asha-stopping"])
    before = {row.number for row in await site.trials() if row.reason == "COMPLETED"}
    await site.step(by_steps(27))
    on = {row.number for row in await site.trials() if row.reason is None}
    notes = {row.number for row in await site.events("note") if "does not continue" in row.message}
    assert on
    assert on | notes == before
    assert not on & notes


async def test_extended_again_and_again_by_replicas_that_know_nothing(engine: AsyncEngine) -> None:
    site = await ended(engine, policy=POLICIES["asha"])
    for command in (by_trials(3), by_steps(20), by_trials(2), by_steps(27)):
        site.fold = None
        await site.step(command)
        site.fold = None
        await train(site)
        assert (await site.study()).state == "COMPLETED"
    spec = await spec_now(site)
    assert (spec.max_trials, spec.budgets, spec.rungs()) == (14, (9, 20, 27), (1, 3, 9, 20, 27))
    assert spec.as_created() == site.spec
    await replayed(site)


async def test_a_fold_of_another_replica_is_dropped(engine: AsyncEngine) -> None:
    """Two replicas take turns, each with a cache of its own."""
    site = await ended(engine, policy=POLICIES["asha"])
    here, there = site.fold, None
    await site.step(by_steps(27))
    for _ in range(100):
        if (await site.study()).state != "ACTIVE":
            break
        here, there = there, here
        site.fold = here
        await train_one(site)
        here = site.fold
    assert (await site.study()).state == "COMPLETED"
    await replayed(site)


async def train_one(site: StudySite) -> None:
    running = [row for row in await site.trials() if row.lease_id]
    if not running:
        await site.kick()
        return
    lease = site.leases[running[0].lease_id]
    await site.tell(lease, running[0].milestone, improving(running[0].number, running[0].milestone))


async def test_a_paused_study_is_extended_and_stays_paused(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_trials=1)).create()
    await site.step(PauseStudy())
    await site.step(by_trials(2))
    study = await site.study()
    assert (study.state, study.spec["max_trials"]) == ("PAUSED", 3)


async def test_a_stopped_study_continues_with_what_its_stop_cancelled(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_trials=3)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.tell(lease, 2, 0.5)
    await site.step(StopStudy(reason="enough"))
    await site.step(by_trials(1))
    first = await site.trial(0)
    assert (first.state, site.leases[first.lease_id].step) == ("RESUMED", 2)
    await train(site)
    assert [row.reason for row in await site.trials()] == ["COMPLETED"] * 4


async def test_a_trial_that_completes_in_the_cycle_that_stops_its_study_continues_once(
    engine: AsyncEngine,
) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_trials=2)).create()
    await site.connect(slots=2)
    last, running = await site.kick()
    await site.tell(running, 2, 0.5)
    await site.step(StopStudy(reason="enough"), site.report(last, 9, 0.3))
    assert await site.step(by_steps(27)) == [Reopened(numbers=(0,), others=1)]
    await train(site)
    assert [(row.step, row.reason) for row in await site.trials()] == [(27, "COMPLETED")] * 2
    await replayed(site)


GRID = {"space": {"x": {"type": "categorical", "values": [1, 2, 3]}}, "sampler": {"kind": "grid"}}


@pytest.mark.parametrize(
    ("changes", "command", "field", "says"),
    [
        ({}, by_steps(9), "steps", "is not more than the full budget, which is 9"),
        ({}, by_steps(3), "steps", "is not more than the full budget"),
        ({}, by_trials(1_000_000), "trials", "makes more than 1000000 configurations"),
        ({"transfer": {"callable": "train:large", "top": 1}}, by_trials(1), "trials", "is too late"),
        ({"transfer": {"callable": "train:large", "top": 1}}, by_steps(27), "steps", "is too late"),
        (GRID, by_trials(1), "trials", "the grid of 3 has no further configuration"),
        ({**GRID, "max_trials": 2}, by_trials(2), "trials", "Give at most 1"),
        ({"policy": POLICIES["pbt"]}, by_trials(1), "trials", "cannot join a population"),
        ({"policy": POLICIES["pbt"]}, by_steps(3000), "steps", "makes 1000 rungs, which are too many"),
        (
            {"policy": {"kind": "median", "interval": 1}},
            by_steps(2**40),
            "steps",
            "makes 1099511627776 rungs",
        ),
        ({}, by_steps(2**40 + 1), "steps", "is more than the 1099511627776 steps that a trial may have"),
    ],
)
async def test_what_cannot_be_done_is_refused_before_anything_is_changed(
    engine: AsyncEngine, changes: dict[str, Any], command: ExtendStudy, field: str, says: str
) -> None:
    site = await ended(engine, **{"policy": RUN_ALL, "max_trials": 4, **changes})
    before = await site.study()
    (refused,) = await site.step(command)
    assert isinstance(refused, InvalidFieldError)
    assert [violation.field for violation in refused.violations] == [field]
    assert says in str(refused)
    assert await site.study() == before


@pytest.mark.parametrize("active", [True, False])
async def test_the_remedy_for_an_exhausted_grid_can_be_carried_out(engine: AsyncEngine, active: bool) -> None:
    """An active study accepts the user's own configurations. One that has ended does not, and says so."""
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_trials=3, **GRID)).create()
    own = AddTrials(params=({"x": 2},))
    if active:
        await site.kick()
    else:
        await site.connect(slots=3)
        await train(site)
    (refused,) = await site.step(by_trials(1))
    assert ("`headrace add" in str(refused)) is active
    assert ("`enqueue`" in str(refused)) is not active
    (outcome,) = await site.step(own)
    assert isinstance(outcome, Added if active else StudyEndedError)
    if not active:
        assert "create a new study" in str(outcome).lower()
        assert "`enqueue`" in str(outcome)
        assert "headrace extend" not in str(outcome)


async def test_an_ended_study_that_takes_more_trials_points_to_its_extension(engine: AsyncEngine) -> None:
    site = await ended(engine, policy=RUN_ALL, max_trials=2)
    (outcome,) = await site.step(AddTrials(params=({"x": 0.5},)))
    assert isinstance(outcome, StudyEndedError)
    assert "`headrace extend` continues it" in str(outcome)


@pytest.mark.parametrize("command", [AddTrials(params=({"x": 0.5},)), PauseStudy()], ids=["add", "pause"])
async def test_a_failed_study_points_to_a_retry_and_to_no_extension(
    engine: AsyncEngine, command: AddTrials | PauseStudy
) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_trials=1, max_retries=0)).create()
    await site.connect(slots=1)
    await train(site, fails={0})
    assert (await site.study()).state == "FAILED"
    (outcome,) = await site.step(command)
    assert isinstance(outcome, StudyEndedError)
    assert "`headrace retry" in str(outcome)
    assert "headrace extend" not in str(outcome)


async def test_a_refused_budget_names_no_extension_that_is_refused_too(engine: AsyncEngine) -> None:
    """Every trial of an exhausted grid ended by itself, so neither more steps nor more trials let it continue."""
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_trials=3, **GRID)).create()
    await site.connect(slots=3)
    for lease in await site.kick():
        await site.tell(lease, 2, 0.5)
        await site.step(gone(lease, "FINISHED"))
    (refused,) = await site.step(by_steps(27))
    assert "lets no trial continue" in str(refused)
    assert "headrace extend" not in str(refused)


async def test_a_policy_that_refuses_the_larger_study_changes_nothing(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await ended(engine, policy=RUN_ALL, max_trials=2)

    def make(spec: StudySpec) -> Policy:
        if spec.max_steps > 9:
            raise InvalidFieldError([Violation(field="policy", value="own", message="knows 9 steps at most")])
        return make_policy(spec)

    monkeypatch.setattr(cache, "make_policy", make)
    before = await site.study(), await site.trials()
    (refused,) = await site.step(by_steps(27))
    assert "knows 9 steps at most" in str(refused)
    assert (await site.study(), await site.trials()) == before


async def test_the_study_of_a_transfer_takes_no_further_trials(engine: AsyncEngine) -> None:
    best = {"kind": "best_of", "study": "small"}
    site = await StudySite(engine, make_spec(policy=RUN_ALL, sampler=best, max_trials=2)).create()
    (refused,) = await site.step(by_trials(1))
    assert "its configurations are the best of study 'small'" in str(refused)
    await site.step(by_steps(27))
    assert (await spec_now(site)).max_steps == 27


async def test_a_study_that_failed_is_retried_and_not_extended(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_retries=0, max_trials=3)).create()
    await site.connect(slots=3)
    await train(site, fails={0, 1, 2})
    (refused,) = await site.step(by_trials(1))
    assert "`headrace retry" in str(refused)
    await site.step(RetryTrials(numbers=None))
    await train(site)
    assert (await site.study()).state == "COMPLETED"
