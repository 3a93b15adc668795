"""Steps on a real database: what each arrival changes, once, whenever and however often it comes."""

import math
import re

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, make_spec

from headrace.errors import StudyEndedError, TrialEndedError, TrialNotFoundError
from headrace_services.scheduler.arrivals import (
    Accepted,
    AddTrials,
    Assignment,
    Cancellation,
    ExitedArrived,
    Kick,
    LeaseExpired,
    PauseStudy,
    PauseTrial,
    RestoredArrived,
    ResumeStudy,
    ResumeTrial,
    Stale,
    StopStudy,
    StopTrial,
    Suggest,
    Suggested,
)
from headrace_services.scheduler.records import Lease
from headrace_services.scheduler.step.endings import MAX_EARLY_FAILURES, MAX_LOSSES_IN_ROW
from headrace_services.scheduler.store import step_reads, tables

RUN_ALL = {"kind": "run_all"}


def gone(lease: Lease, outcome: str, sequence: int = 1000, **changes: str) -> ExitedArrived:
    return ExitedArrived(
        lease_id=lease.id,
        number=lease.number,
        epoch=lease.epoch,
        sequence=sequence,
        outcome=outcome,
        **changes,
    )


async def test_a_freed_slot_gets_its_next_trial_in_the_step_that_freed_it(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=1)
    (first,) = await site.kick()
    assert (await site.tell(first, 1, 0.5)).action == "PAUSE"
    running = [row.number for row in await site.trials() if row.state == "RUNNING"]
    assert running == [1]
    decision = (await site.events("decision_made"))[0].detail
    assert decision["explanation"]["slot_goes_to"] == f"studies/{site.name}/trials/1"


async def test_a_report_that_comes_twice_counts_once_and_is_answered_alike(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    report = site.report(lease, 1, 0.5)
    together = await site.step(report, report)
    later = await site.step(report)
    assert together[0] == together[1] == later[0]
    assert isinstance(later[0], Accepted)
    count = await site.rows(select(func.count()).select_from(tables.report))
    assert count[0][0] == 1
    assert len(await site.events("rung_recorded")) == 1


async def test_an_old_epoch_changes_nothing(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL)).create()
    await site.connect(slots=1)
    (old,) = await site.kick()
    await site.tell(old, 1, 0.5)
    expiry = LeaseExpired(lease_id=old.id, number=old.number, epoch=old.epoch, sequence=None, why="silence")
    await site.step(expiry)
    cursor = (await site.study()).cursor
    outcomes = await site.step(
        site.report(old, 2, 0.1),
        RestoredArrived(lease_id=old.id, number=old.number, epoch=old.epoch, sequence=77),
        gone(old, "FAILED"),
        expiry,
    )
    assert outcomes == [Stale()] * 4
    assert (await site.study()).cursor == cursor
    trial = await site.trial(0)
    assert (trial.state, trial.epoch, trial.step, trial.failures) == ("RESUMED", 2, 1, 0)


async def test_a_report_that_crosses_two_milestones_is_recorded_at_both_lowest_first(
    engine: AsyncEngine,
) -> None:
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.tell(lease, 5, 0.5)
    recorded = [event.detail["result"] for event in await site.events("rung_recorded")]
    assert [(r["rung"], r["milestone"], r["step"]) for r in recorded] == [(0, 1, 5), (1, 3, 5)]


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
async def test_what_cannot_be_ranked_is_stored_as_it_came_and_never_promoted(
    engine: AsyncEngine, value
) -> None:
    site = await StudySite(engine, make_spec(max_trials=3)).create()
    await site.connect(slots=1)
    for attempt in range(3):
        (lease,) = [order.lease for order in site.orders if isinstance(order, Assignment)][
            attempt:
        ] or await site.kick()
        await site.tell(lease, 1, 0.5 if attempt == 0 else value)
    rows = await site.trials()
    assert rows[0].rungs == 1
    assert rows[0].state == "RESUMED"
    assert [row.best_value for row in rows[1:]] == [None, None]
    decisions = [event.detail["explanation"]["sentence"] for event in await site.events("decision_made")]
    assert any("never" in sentence or "last" in sentence for sentence in decisions), decisions


async def test_same_or_lower_step_is_recorded_and_moves_nothing(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.tell(lease, 4, 0.5)
    assert (await site.tell(lease, 4, 0.4)).action == "CONTINUE"
    assert (await site.tell(lease, 2, 0.3)).action == "CONTINUE"
    trial = await site.trial(0)
    assert (trial.step, trial.steps_spent, trial.value) == (4, 4, 0.5)
    assert len(await site.events("report_recorded")) == 3


async def test_without_a_checkpoint_a_pause_gives_up_the_work_and_says_so(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_trials=3)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    decision = await site.tell(lease, 1, 0.1, saved=False)
    assert decision.action == "PAUSE"
    assert "no checkpoint" in decision.reason
    assert ((await site.trial(0)).state, (await site.trial(0)).milestone) == ("PENDING", None)
    for number, value in ((1, 0.5), (2, 0.6)):
        lease = next(held for held in site.leases.values() if held.number == number)
        await site.tell(lease, 1, value)
    again = next(held for held in site.leases.values() if held.number == 0 and held.epoch == 2)
    assert again.resume is None
    await site.tell(again, 1, 0.1, saved=False)
    await site.tell(again, 3, 0.05, saved=False)
    trial = await site.trial(0)
    assert (trial.rungs, trial.steps_spent) == (2, 4)


async def test_a_machine_s_failure_is_never_charged(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_retries=0, max_trials=1)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    for turn in range(1, 5):
        await site.step(gone(lease, "LOST", error="killed by SIGKILL"))
        lease = site.leases[f"{lease.id.rsplit('.', 1)[0]}.{turn + 1}"]
        await site.tell(lease, turn, 0.5)
    trial = await site.trial(0)
    assert (trial.failures, trial.interruptions, trial.state) == (0, 4, "RUNNING")


async def test_a_program_that_is_killed_again_and_again_without_progress_is_stopped(
    engine: AsyncEngine,
) -> None:
    site = await StudySite(engine, make_spec(max_trials=1)).create()
    await site.connect(slots=1)
    await site.kick()
    for turn in range(1, MAX_LOSSES_IN_ROW + 1):
        lease = next(held for held in site.leases.values() if held.epoch == turn)
        await site.step(gone(lease, "LOST", error="killed by SIGKILL"))
    trial = await site.trial(0)
    assert (trial.state, trial.reason) == ("TERMINATED", "FAILED")
    assert "out of memory" in trial.detail


async def test_the_user_s_failures_are_retried_then_charged(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_retries=1, max_trials=1)).create()
    await site.connect(slots=1)
    (first,) = await site.kick()
    await site.tell(first, 2, 0.5)
    await site.step(gone(first, "FAILED", error="ValueError: no"))
    second = next(held for held in site.leases.values() if held.epoch == 2)
    assert second.resume is not None
    assert second.resume.step == 2
    await site.step(gone(second, "FAILED", error="ValueError: no", log_tail="Traceback …"))
    trial = await site.trial(0)
    assert (trial.state, trial.reason, trial.failures, trial.log_tail) == (
        "TERMINATED",
        "FAILED",
        2,
        "Traceback …",
    )
    assert "ValueError: no" in trial.detail


async def test_a_study_whose_first_trials_all_fail_ends_with_the_reason(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_retries=0)).create()
    await site.connect(slots=1)
    await site.kick()
    for number in range(MAX_EARLY_FAILURES):
        lease = next(held for held in site.leases.values() if held.number == number)
        await site.step(gone(lease, "FAILED", error="ModuleNotFoundError: No module named 'nope'"))
    study = await site.study()
    assert study.state == "FAILED"
    assert "No module named 'nope'" in study.detail
    assert {row.state for row in await site.trials()} == {"TERMINATED"}


async def test_a_metric_that_nobody_reports_ends_the_study_at_the_first_rung(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=2)
    first, _ = await site.kick()
    report = site.report(first, 1, None)
    object.__setattr__(report, "metrics", {"val_los": 1.0})
    (outcome,) = await site.step(report)
    assert isinstance(outcome, Accepted)
    assert outcome.decision is not None
    assert outcome.decision.action == "STOP"
    study = await site.study()
    assert study.state == "FAILED"
    assert "'loss'" in study.detail
    assert "val_los" in study.detail
    assert len([order for order in site.orders if isinstance(order, Cancellation)]) == 2


async def test_a_program_that_ends_early_is_complete_if_it_reported(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_trials=2)).create()
    await site.connect(slots=2)
    reported, silent = await site.kick()
    await site.tell(reported, 4, 0.5)
    await site.step(gone(reported, "FINISHED"), gone(silent, "FINISHED"))
    rows = await site.trials()
    assert [row.reason for row in rows] == ["COMPLETED", "FAILED"]
    assert "without reporting 'loss'" in rows[1].detail


async def test_the_baseline_runs_to_the_end_outside_the_policy(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(baseline={"x": 0.5}, max_trials=3)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    assert [(await site.tell(lease, step, 100.0 + step)).action for step in (1, 3, 9)] == [
        "CONTINUE",
        "CONTINUE",
        "STOP",
    ]
    trial = await site.trial(0)
    assert (trial.baseline, trial.reason, trial.rungs) == (True, "COMPLETED", 0)


async def test_a_paused_study_starts_nothing_and_a_resumed_one_goes_on(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_trials=2)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.step(PauseStudy())
    await site.step(gone(lease, "LOST"))
    assert await site.kick() == []
    await site.step(ResumeStudy())
    assert len(site.leases) == 2


async def test_a_paused_study_pauses_trials_at_their_next_rung(engine: AsyncEngine) -> None:
    policy = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "variant": "stopping"}
    site = await StudySite(engine, make_spec(policy=policy)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.step(PauseStudy())
    assert (await site.tell(lease, 1, 0.5)).action == "PAUSE"
    trial = await site.trial(0)
    assert (trial.state, trial.milestone) == ("PAUSED", 3)
    await site.step(ResumeStudy())
    assert (await site.trial(0)).state == "RESUMED"


async def test_a_held_trial_stays_paused_and_keeps_the_study_open(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_trials=1)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.step(PauseTrial(number=0))
    assert (await site.tell(lease, 1, 0.5)).action == "PAUSE"
    await site.kick()
    assert (await site.study()).state == "ACTIVE"
    await site.step(ResumeTrial(number=0))
    again = list(site.leases.values())[-1]  # alone in its study, it is trained to the end
    assert (await site.tell(again, 9, 0.5)).action == "STOP"
    assert (await site.study()).state == "COMPLETED"


async def test_held_trials_are_counted_only_where_the_study_may_be_complete(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []
    count = step_reads.held_count
    monkeypatch.setattr(
        step_reads, "held_count", lambda conn, study_id: counted.append(study_id) or count(conn, study_id)
    )
    site = await StudySite(engine, make_spec(max_trials=2)).create()
    await site.connect(slots=1)
    (first,) = await site.kick()
    await site.tell(first, 9, 0.5)
    assert counted == []
    (_, second) = site.leases.values()
    await site.tell(second, 9, 0.5)
    assert counted == [site.study_id]
    assert (await site.study()).state == "COMPLETED"


async def test_stopping_a_trial_cancels_its_process_and_frees_its_slot(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    site.orders.clear()
    await site.step(StopTrial(number=0, reason="enough"))
    assert [type(order) for order in site.orders] == [Cancellation, Assignment]
    assert site.orders[0].lease.id == lease.id
    trial = await site.trial(0)
    assert (trial.reason, trial.detail) == ("CANCELLED", "enough")


async def test_what_is_kept_follows_the_slots_and_not_the_trials_ray_64231_katib_2260(
    engine: AsyncEngine,
) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_trials=40, max_steps=1)).create()
    await site.connect(slots=2)
    await site.kick()
    told: set[str] = set()
    while waiting := [lease for key, lease in site.leases.items() if key not in told]:
        for lease in waiting:
            told.add(lease.id)
            await site.tell(lease, 1, 0.5)
            assert site.cache is not None
            assert len(site.cache.live.trials) <= 2
            assert len(site.cache.live.leases) <= 2
            assert len(site.cache.live.slots) <= 2
    assert len(told) == 40


async def test_stopping_a_study_ends_everything_katib_2061(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=2)
    await site.kick()
    await site.step(StopStudy(reason="enough"))
    await site.step(StopStudy(reason="again"))
    assert (await site.study()).detail == "enough"
    assert {(row.state, row.reason) for row in await site.trials()} == {("TERMINATED", "CANCELLED")}
    taken = await site.rows(select(tables.slot).where(tables.slot.c.lease_id.is_not(None)))
    assert taken == []


async def test_commands_that_cannot_be_carried_out_change_nothing(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_trials=2)).create()
    await site.kick()
    await site.step(StopTrial(number=0, reason=""))
    before = (await site.study()).cursor
    outcomes = await site.step(StopTrial(number=0, reason=""), PauseTrial(number=99))
    assert [type(outcome) for outcome in outcomes] == [TrialEndedError, TrialNotFoundError]
    assert (await site.study()).cursor == before
    await site.step(StopStudy(reason=""))
    outcomes = await site.step(PauseStudy(), ResumeStudy(), AddTrials(params=({"x": 0.5},)))
    assert [type(outcome) for outcome in outcomes] == [StudyEndedError] * 3


async def test_added_and_enqueued_configurations_come_beside_the_sampler_s(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(enqueued=[{"x": 0.25}], max_trials=2)).create()
    await site.step(AddTrials(params=({"x": 0.75},)), Kick())
    values = [row.params["x"] for row in await site.trials()]
    assert {0.25, 0.75} <= set(values)
    assert len(values) == 3


async def test_a_grid_that_is_used_up_ends_the_study(engine: AsyncEngine) -> None:
    space = {"x": {"type": "categorical", "values": ["a", "b"]}}
    spec = make_spec(space=space, sampler={"kind": "grid"}, policy=RUN_ALL, max_trials=10)
    site = await StudySite(engine, spec).create()
    await site.connect(slots=2)
    for lease in await site.kick():
        await site.tell(lease, 9, 0.5)
    assert [row.params["x"] for row in await site.trials()] == ["a", "b"]
    assert (await site.study()).state == "COMPLETED"


async def test_max_parallel_bounds_what_runs(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_parallel=2)).create()
    await site.connect(slots=5)
    assert len(await site.kick()) == 2


async def test_two_studies_never_share_a_slot(engine: AsyncEngine) -> None:
    one = await StudySite(engine, make_spec()).create()
    two = await StudySite(engine, make_spec()).create()
    await one.connect(slots=3)
    assert len(await one.kick()) == 3
    assert await two.kick() == []
    (lease, *_) = one.leases.values()
    await one.step(PauseStudy())
    await one.step(gone(lease, "LOST"))
    assert one.last is not None
    assert one.last.slots_left
    assert len(await two.kick()) == 1


async def test_a_gang_takes_its_slots_on_one_worker_or_none(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(resources={"gpus": 2})).create()
    await site.connect("a", slots=1, gpus=1)
    await site.connect("b", slots=1, gpus=1)
    assert await site.kick() == []
    await site.connect("c", slots=5, gpus=5)
    leases = await site.kick()
    assert [lease.slots for lease in leases] == [(0, 1), (2, 3)]


async def test_ask_and_tell_without_any_worker(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(template=None, max_trials=1, policy=RUN_ALL)).create()
    await site.connect(slots=1)
    ask = Suggest(client_id="me", ttl_s=60)
    (first,) = await site.step(ask)
    (second,) = await site.step(ask)
    assert isinstance(first, Suggested)
    assert first.lease is not None
    assert second == Suggested(trial=None, lease=None, done=False)
    assert (await site.tell(first.lease, 9, 0.5)).action == "STOP"
    (third,) = await site.step(ask)
    assert third == Suggested(trial=None, lease=None, done=True)
    assert (await site.study()).state == "COMPLETED"


async def drive(site: StudySite, *, warm: bool) -> list[str]:
    """Run a study on one slot to its end with made-up values, and return its log."""
    await site.connect(slots=1)
    await site.kick()
    reached: dict[str, int] = {}
    while (await site.study()).state == "ACTIVE":
        lease = list(site.leases.values())[-1]
        step = next(level for level in (1, 3, 9) if level > reached.get(lease.id, lease.step))
        reached[lease.id] = step
        await site.tell(lease, step, ((lease.number * 7919) % 101) / step)
        if not warm:
            site.cache = None
    return [re.sub(r"study-\d+-w", "w", event.message) for event in await site.events()]


async def test_a_cold_cache_decides_like_a_warm_one(engine: AsyncEngine) -> None:
    spec = make_spec(max_trials=12, max_parallel=1)
    warm = await drive(await StudySite(engine, spec).create(), warm=True)
    cold = await drive(await StudySite(engine, spec).create(), warm=False)
    assert warm == cold
    assert sum("goes on to 9 steps" in line for line in warm) >= 1


async def test_the_same_seed_on_one_slot_gives_the_same_trials_and_decisions(engine: AsyncEngine) -> None:
    logs = [
        await drive(await StudySite(engine, make_spec(seed=seed, max_parallel=1)).create(), warm=True)
        for seed in (3, 3, 4)
    ]
    assert logs[0] == logs[1] != logs[2]
