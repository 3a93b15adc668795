"""A result that a study had when a trial ended stays, whatever happens to the trial when it continues."""

import math
from typing import Any

import pytest
from msgspec.structs import replace
from reopened_site import spec_now, train
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec
from test_outcomes import figures

from headrace.client.convert import study as client_study
from headrace.client.convert import trial as client_trial
from headrace.client.model import StudyInfo, TrialInfo
from headrace.client.outcome import Outcome
from headrace.errors import InvalidFieldError
from headrace_services.scheduler.core.inputs import (
    ExtendStudy,
    Reopened,
    RetryTrials,
    StopStudy,
    StopTrial,
)
from headrace_services.scheduler.core.records import Lease, Schedule
from headrace_services.scheduler.replay.replaying import replay
from headrace_services.scheduler.rpc import convert as rpc_convert
from headrace_services.scheduler.session.messages import assign
from headrace_services.scheduler.store import aging, leftovers, proposals, studies, trials, workers
from headrace_services.scheduler.store.database import transaction

RUN_ALL = {"kind": "run_all"}
SCOPES = ["best", "last", "full_budget", "mean_last_k"]


def by_steps(steps: int) -> ExtendStudy:
    return ExtendStudy(trials=0, steps=steps)


def scoped(scope: str, **more: Any) -> dict[str, Any]:
    return {"metric": "loss", "goal": "minimize", "scope": scope, **more} | (
        {"k": 2} if scope == "mean_last_k" else {}
    )


async def complete(engine: AsyncEngine, *values: float, **changes: Any) -> StudySite:
    """A study whose trials completed 9 steps with these values, and whose baseline completed with 9."""
    fields = {"policy": RUN_ALL, "max_trials": len(values), "max_retries": 0, **changes}
    site = await StudySite(engine, make_spec(**fields)).create()
    await site.connect(slots=len(values) + 1)
    told = [9.0, *values] if "baseline" in changes else values
    for lease in await site.kick():
        await site.tell(lease, 9, told[lease.number])
    assert (await site.study()).state == "COMPLETED"
    return site


async def lease_of(site: StudySite, number: int) -> Lease:
    return site.leases[(await site.trial(number)).lease_id]


async def fail(site: StudySite, number: int) -> None:
    lease = await lease_of(site, number)
    await site.step(gone(lease, "FAILED", error="ValueError: Tried to step 10 times"))
    assert (await site.trial(number)).reason == "FAILED"


async def shown(site: StudySite) -> tuple[StudyInfo, dict[int, TrialInfo]]:
    """The study and its trials as the SDK shows them."""
    spec = await spec_now(site)
    async with transaction(site.engine) as conn:
        record = await studies.get(conn, site.study_id)
        views = [await trials.one(conn, site.study_id, row.number) for row in await site.trials()]
    assert record is not None
    study = client_study(rpc_convert.study(record, await figures(site)))
    found = [client_trial(rpc_convert.trial(site.name, view, spec)) for view in views if view is not None]
    return study, {one.number: one for one in found}


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_winner_that_fails_on_its_way_to_a_larger_budget_stays_the_winner(
    engine: AsyncEngine, scope: str
) -> None:
    site = await complete(engine, 0.5, 0.6, objective=scoped(scope))
    await site.step(by_steps(27))
    await site.tell(await lease_of(site, 0), 12, 5.0)
    await fail(site, 0)
    await site.tell(await lease_of(site, 1), 27, 0.55)
    study, found = await shown(site)
    assert study.state == "completed"
    winner = found[0]
    assert study.best is not None
    assert (study.best.number, study.best.score, study.best.score_step) == (0, 0.5, 9)
    assert (winner.outcome, winner.step, winner.value) == ("failed", 12, 5.0)
    assert (winner.counts_as, winner.sound) == ("completed", True)
    assert winner.kept_checkpoint is not None
    assert winner.kept_checkpoint.uri == "file:///0/9"
    (end,) = winner.earlier_ends
    assert end == winner.counted_end
    assert (end.reason, end.budget, end.step, end.score) == ("completed", 9, 9, 0.5)
    assert [one.number for one in Outcome(study).best_first(found.values())] == [0, 1]
    notes = [event.message for event in await site.events("note")]
    assert any(
        "trial 0 keeps its result, loss 0.5 at step 9, from before it continued: it completed" in one
        for one in notes
    )
    assert replay(await spec_now(site), await site.log()).identical


@pytest.mark.parametrize("scope", ["last", "full_budget"])
@pytest.mark.parametrize("fate", ["diverges", "worse", "stopped", "study stopped", "at its end"])
async def test_a_winner_that_gets_worse_counts_with_what_it_had(
    engine: AsyncEngine, scope: str, fate: str
) -> None:
    site = await complete(engine, 0.5, 0.6, objective=scoped(scope))
    await site.step(by_steps(27))
    lease = await lease_of(site, 0)
    match fate:
        case "diverges":
            await site.tell(lease, 27, math.nan)
        case "at its end":
            await site.tell(lease, 27, 0.9)
        case _:
            await site.tell(lease, 12, 0.9)
    if fate == "stopped":
        await site.step(StopTrial(number=0, reason="enough"))
    if fate == "study stopped":
        await site.step(StopStudy(reason="enough"))
    study, found = await shown(site)
    assert study.best is not None
    assert (study.best.number, study.best.score) == (0, 0.5)
    assert found[0].counted_end is not None


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_winner_that_gets_better_counts_with_what_it_has(engine: AsyncEngine, scope: str) -> None:
    site = await complete(engine, 0.5, objective=scoped(scope))
    await site.step(by_steps(27))
    lease = await lease_of(site, 0)
    await site.tell(lease, 18, 0.3)
    if scope != "full_budget":
        assert (await shown(site))[1][0].counted_end is None
    await site.tell(lease, 27, 0.2)
    winner = (await shown(site))[1][0]
    assert winner.counted_end is None
    assert winner.score == (0.25 if scope == "mean_last_k" else 0.2)
    assert winner.kept_checkpoint is not None
    assert winner.kept_checkpoint.step == 27
    assert [end.score for end in winner.earlier_ends] == [0.5]


async def test_each_completion_stays_on_record_and_the_best_of_them_counts(engine: AsyncEngine) -> None:
    site = await complete(engine, 0.5)
    for steps, value in ((18, 0.4), (27, 0.7)):
        await site.step(by_steps(steps))
        await site.tell(await lease_of(site, 0), steps, value)
    await site.step(by_steps(36))
    await fail(site, 0)
    study, found = await shown(site)
    ends = [(end.budget, end.score, end.checkpoint.step) for end in found[0].earlier_ends if end.checkpoint]
    assert ends == [(9, 0.5, 9), (18, 0.4, 18), (27, 0.7, 27)]
    assert (found[0].score, found[0].score_step) == (0.4, 18)
    assert study.state == "completed"


async def test_what_an_ended_study_had_stays_though_the_trial_had_not_completed(engine: AsyncEngine) -> None:
    """The best trial of an ended study had been stopped. It continues with the study, and fails."""
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_trials=2, max_retries=0)).create()
    await site.connect(slots=2)
    first, second = await site.kick()
    await site.tell(first, 5, 0.1)
    await site.tell(second, 5, 0.2)
    await site.step(StopStudy(reason="enough"))
    await site.step(ExtendStudy(trials=1, steps=None))
    await fail(site, 0)
    await train(site)
    study, found = await shown(site)
    assert study.best is not None
    assert (study.best.number, study.best.score, found[0].counts_as) == (0, 0.1, "cancelled")
    assert [(end.reason, end.budget) for end in found[0].earlier_ends] == [("cancelled", None)]


async def test_an_end_that_does_not_count_and_is_no_completion_is_forgotten(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_trials=1)).create()
    await site.connect(slots=1)
    await site.kick()
    for step, value in ((2, 0.5), (4, 0.4), (6, 0.3)):
        await site.tell(await lease_of(site, 0), step, value)
        await site.step(StopStudy(reason="enough"))
        await site.step(ExtendStudy(trials=1, steps=None))
    row = await site.trial(0)
    assert [end["step"] for end in row.earlier_ends] == [6]


async def test_a_trial_that_failed_since_continues_with_the_next_extension(engine: AsyncEngine) -> None:
    site = await complete(engine, 0.5, 0.6, baseline={"x": 0.5})
    await site.step(by_steps(18))
    await fail(site, 1)
    await fail(site, 0)
    await train(site)
    assert (await site.study()).state == "COMPLETED"
    (outcome,) = await site.step(by_steps(27))
    assert outcome == Reopened(numbers=(0, 1, 2), others=0)
    rows = await site.trials()
    assert [row.milestone for row in rows] == [18, 18, 27]
    assert {site.leases[row.lease_id].step for row in rows[:2]} == {9}
    await train(site)
    assert [(row.step, row.reason) for row in await site.trials()] == [(27, "COMPLETED")] * 3
    assert replay(await spec_now(site), await site.log()).identical


async def test_a_trial_that_failed_since_is_retried(engine: AsyncEngine) -> None:
    site = await complete(engine, 0.5)
    await site.step(by_steps(18))
    await fail(site, 0)
    (outcome,) = await site.step(RetryTrials(numbers=None))
    assert outcome == Reopened(numbers=(0,), others=0)
    lease = await lease_of(site, 0)
    assert lease.step == 9
    await site.tell(lease, 18, 0.3)
    found = (await shown(site))[1][0]
    assert (found.outcome, found.score, found.counted_end) == ("completed", 0.3, None)
    assert [end.budget for end in found.earlier_ends] == [9]


async def test_a_study_that_extends_one_trial_and_loses_it_has_its_result(engine: AsyncEngine) -> None:
    site = await complete(engine, 0.5)
    await site.step(by_steps(18))
    await fail(site, 0)
    study = await site.study()
    assert study.state == "COMPLETED"
    assert "none reached the full budget; 1 of 1 trial failed with: ValueError" in study.detail


async def test_several_objectives_keep_the_point_of_a_trial_that_fails(engine: AsyncEngine) -> None:
    spec = make_spec(
        policy=RUN_ALL,
        max_trials=2,
        max_retries=0,
        further_objectives=[{"metric": "size", "goal": "minimize"}],
        constraints=[{"metric": "mem", "at_most": 1.0}],
    )
    site = await StudySite(engine, spec).create()
    await site.connect(slots=2)

    async def tell(number: int, step: int, loss: float, size: float, mem: float) -> None:
        lease = await lease_of(site, number)
        metrics = {"loss": loss, "size": size, "mem": mem}
        await site.step(replace(site.report(lease, step, loss), metrics=metrics))

    await site.kick()
    await tell(0, 9, 0.1, 2.0, 0.5)
    await tell(1, 9, 0.2, 1.0, 0.5)
    await site.step(by_steps(18))
    await tell(0, 12, 0.05, 1.5, 3.0)  # better, but violating the constraint
    await tell(1, 12, 0.3, 0.5, 0.5)  # neither better nor worse
    study, found = await shown(site)
    assert (found[0].objective_values, found[0].feasible) == ({"loss": 0.1, "size": 2.0}, True)
    assert found[1].objective_values == {"loss": 0.2, "size": 1.0}, "a point of the front stays on it"
    await fail(site, 0)
    await fail(site, 1)
    assert dict((await figures(site)).measured) == {0: (0.1, 2.0), 1: (0.2, 1.0)}
    study, found = await shown(site)
    assert study.state == "completed"
    assert [one.feasible for one in found.values()] == [True, True]
    assert found[1].objective_values == {"loss": 0.2, "size": 1.0}


async def test_the_checkpoint_of_an_earlier_end_is_pinned(engine: AsyncEngine) -> None:
    site = await complete(engine, 0.5)
    await site.step(by_steps(27))
    lease = await lease_of(site, 0)
    async with transaction(engine) as conn:
        record = await studies.get(conn, site.study_id)
        view = await trials.one(conn, site.study_id, 0)
    assert record is not None
    assert view is not None
    columns = (await site.study()).spec
    told = assign(
        workers.StudyInfo(site.study_id, record.uid, site.name, columns, project="p"), view.trial, lease
    )
    assert told.checkpoints_shared
    decision = await site.tell(lease, 12, 0.4)
    assert decision.pinned == ("file:///0/9",)
    assert (await site.tell(lease, 27, 0.3)).pinned == ("file:///0/9",)
    async with transaction(engine) as conn:
        assert await leftovers._kept(conn, site.study_id) == ("file:///0/27", "file:///0/9")


async def test_checkpoints_that_age_take_their_references_from_earlier_ends(engine: AsyncEngine) -> None:
    site = await complete(engine, 0.5, 0.6)
    await site.step(by_steps(18))
    await fail(site, 0)
    await train(site)
    async with transaction(engine) as conn:
        study = await studies.get(conn, site.study_id)
        assert study is not None
        assert study.end_time is not None
        due = aging.Due(id=site.study_id, end_time=study.end_time, ended="")
        keep = await aging.worth_keeping(conn, due)
        assert keep == {1}
        await aging.forget_checkpoints(conn, due, frozenset({1}), 100, None)
    first, second = await site.trials()
    assert [end["checkpoint"] for end in first.earlier_ends] == [None]
    assert [end["score"] for end in first.earlier_ends] == [0.5]
    assert all(end["checkpoint"] for end in second.earlier_ends)


async def test_samplers_keep_the_completion_of_the_baseline(engine: AsyncEngine) -> None:
    """It is recorded at no rung: only the row of its end has it."""
    site = await complete(engine, 0.6, baseline={"x": 0.25})

    async def known(level: int) -> list[tuple[float, float]]:
        study = await site.study()
        budgets = (await spec_now(site)).budgets
        async with transaction(engine) as conn:
            found = await proposals.results_since(
                conn, site.study_id, level, 0, study.cursor, budgets=budgets, among=(9, 18)
            )
        return sorted((float(one.params["x"]), one.metrics["loss"]) for one in found)

    before = await known(9)
    since = (await site.study()).cursor
    assert len(before) == 2
    assert await known(proposals.FIRST) == before
    await site.step(by_steps(18))
    assert await known(9) == before
    assert await known(proposals.FIRST) == before
    await fail(site, 0)
    await train(site)
    assert await known(9) == before
    assert await known(proposals.FIRST) == before
    assert len(await known(18)) == 1
    await site.step(RetryTrials(numbers=None))
    await train(site)
    assert await known(proposals.FIRST) == before
    assert len(await known(proposals.EVERY)) == 4
    async with transaction(engine) as conn:  # a reader that knew it before does not get it again
        told = await proposals.results_since(
            conn, site.study_id, proposals.FIRST, since, since + 99, budgets=(9, 18)
        )
    assert told == []


async def test_other_studies_take_the_configuration_of_a_winner_that_failed_since(
    engine: AsyncEngine,
) -> None:
    site = await complete(engine, 0.5, 0.6)
    await site.step(by_steps(18))
    await fail(site, 0)
    await fail(site, 1)
    other = await StudySite(engine, make_spec(max_trials=1)).create()
    async with transaction(engine) as conn:
        source = await proposals.source(conn, "default", site.name)
        best = await proposals.best_left(conn, site.study_id, other.study_id, maximize=False)
    assert source is not None
    assert source.has_full
    assert best is not None
    assert best.number == 0


async def test_only_schedules_of_trials_that_a_larger_budget_continues_are_told(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_trials=3)).create()
    await site.connect(slots=3)
    ends = Schedule(name="schedule", kind="OneCycleLR", last_step=9, past_end="RAISES")
    for lease in await site.kick():
        step = 4 if lease.number == 0 else 9
        await site.step(replace(site.report(lease, step, 0.5), schedules=(ends,)))
        if step == 4:  # it stopped early by itself, and stays that way
            await site.step(gone(lease, "FINISHED", by_itself=True))
    study, found = await shown(site)
    assert [one.reason for one in found.values()] == ["completed"] * 3
    assert [(one.first_trial, one.trials) for one in study.schedules] == [(1, 2)]


async def test_an_extension_by_which_no_trial_continues_is_refused(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_trials=2)).create()
    await site.connect(slots=2)
    for lease in await site.kick():
        await site.tell(lease, 4, 0.5)
        await site.step(gone(lease, "FINISHED", by_itself=True))
    assert (await site.study()).state == "COMPLETED"
    before = len(await site.events())
    (refused,) = await site.step(by_steps(27))
    assert isinstance(refused, InvalidFieldError)
    assert "lets no trial continue" in str(refused)
    assert len(await site.events()) == before
    await site.step(ExtendStudy(trials=1, steps=0))
    assert (await site.study()).state == "ACTIVE"


async def test_the_time_in_which_a_study_was_over_is_told_apart(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy={"kind": "run_all"}, max_trials=1)).create()
    assert (await shown(site))[0].started is None
    await site.connect(slots=1)
    await train(site)
    study, _ = await shown(site)
    assert study.started is not None
    assert study.created is not None
    assert study.created <= study.started
    assert study.over_s == 0.0
    async with engine.begin() as conn:
        for name in ("create_time", "end_time"):
            await conn.execute(text(f"UPDATE study SET {name} = {name} - interval '1 hour'"))
    await site.step(ExtendStudy(trials=1, steps=None))
    await train(site)
    study, _ = await shown(site)
    assert 3600 <= study.over_s < 3660
    wall_time_s = Outcome(study).wall_time_s
    assert wall_time_s is not None
    assert wall_time_s < 60


async def without_checkpoints(engine: AsyncEngine, **changes: Any) -> StudySite:
    """Two trials that completed 27 steps, with rungs at 3, 9 and 27, and that continue to 81 without a checkpoint."""
    policy = {"kind": "median", "rungs": [3, 9, 27]}
    site = await StudySite(engine, make_spec(policy=policy, max_trials=2, max_steps=27, **changes)).create()
    await site.connect(slots=2)
    await train(site, lambda number, step: 0.5 + number / 10 + 1 / step)
    assert (await site.study()).state == "COMPLETED"
    async with transaction(engine) as conn:
        uris = [row.checkpoint["uri"] for row in await site.trials()]
        assert await aging.forget_deleted(conn, site.study_id, uris) == 2
    await site.step(by_steps(81))
    return site


async def told(site: StudySite, number: int) -> Any:
    """The order to a worker to run a trial."""
    async with transaction(site.engine) as conn:
        record = await studies.get(conn, site.study_id)
        view = await trials.one(conn, site.study_id, number)
    assert record is not None
    assert view is not None
    spec = (await site.study()).spec
    known = workers.StudyInfo(site.study_id, record.uid, site.name, spec, project="p")
    return assign(known, view.trial, await lease_of(site, number))


async def test_a_trial_that_starts_over_saves_at_the_rungs_that_it_passes_again(engine: AsyncEngine) -> None:
    site = await without_checkpoints(engine)
    lease = await lease_of(site, 0)
    order = await told(site, 0)
    assert (lease.step, order.next_milestone, list(order.rungs), order.last_step) == (0, 3, [81], 27)
    told_next = []
    for step, saved in ((1, False), (3, True), (5, False), (9, True), (22, False)):
        decision = await site.tell(lease, step, 0.6, saved=saved)
        assert decision.action == "CONTINUE"
        told_next.append(decision.next_milestone)
    assert told_next == [3, 9, 9, 27, 27]
    await site.step(gone(lease, "LOST", error="killed by SIGKILL"))
    lease = await lease_of(site, 0)
    assert (lease.step, (await told(site, 0)).next_milestone) == (9, 27)
    assert (await site.tell(lease, 27, 0.6)).next_milestone == 81
    assert [(row.step, len(row.earlier_ends)) for row in await site.trials()] == [(27, 1), (27, 1)]
    await site.tell(lease, 81, 0.2)
    await site.tell(await lease_of(site, 1), 81, 0.3)
    assert (await site.study()).state == "COMPLETED"
    assert replay(await spec_now(site), await site.log()).identical


async def test_a_trial_that_starts_over_saves_before_its_study_ends(engine: AsyncEngine) -> None:
    site = await without_checkpoints(engine, until={"value": 0.01})
    lease, other = await lease_of(site, 0), await lease_of(site, 1)
    await site.tell(lease, 1, 0.6, saved=False)
    await site.tell(other, 1, 0.001)
    decision = await site.tell(lease, 2, 0.6, saved=False)
    assert (decision.action, decision.next_milestone) == ("CONTINUE", 3)
    assert "it saves its state first" in decision.reason
    assert (await site.tell(lease, 3, 0.6)).action == "STOP"
    trial = await site.trial(0)
    assert trial.checkpoint["step"] == 3
    assert (await site.study()).state == "COMPLETED"


async def test_the_best_checkpoint_is_kept_again_when_its_step_is_repeated(engine: AsyncEngine) -> None:
    objective = {"metric": "loss", "goal": "minimize", "keep": "best"}
    site = await StudySite(
        engine,
        make_spec(policy=RUN_ALL, max_trials=1, max_steps=9, objective=objective, max_retries=3),
    ).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    assert not (await told(site, 0)).keep_best.HasField("best_value")
    values = ((1, 0.9), (2, 0.2), (9, 0.5))
    for step, value in values:
        await site.tell(lease, step, value)
    row = await site.trial(0)
    assert row.best_checkpoint["step"] == 2
    async with transaction(engine) as conn:
        uris = [row.checkpoint["uri"], row.best_checkpoint["uri"]]
        assert await aging.forget_deleted(conn, site.study_id, uris) == 1
    await site.step(by_steps(18))
    lease = await lease_of(site, 0)
    assert not (await told(site, 0)).keep_best.HasField("best_value"), "it has to save it again"
    for step, value in values:
        await site.tell(lease, step, value)
    row = await site.trial(0)
    assert (row.best_step, row.best_checkpoint["step"]) == (2, 2)
