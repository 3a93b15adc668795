"""Cycles on a real database: what each input changes, once, whenever and however often it arrives."""

import math

import pytest
from msgspec.structs import replace
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace_services.scheduler.core.exits import MAX_KILLS_IN_ROW, MAX_LOSSES_IN_ROW
from headrace_services.scheduler.core.inputs import (
    Accepted,
    Assignment,
    Cancellation,
    LeaseExpired,
    RestoredArrived,
    Stale,
)
from headrace_services.scheduler.core.records import Checkpoint
from headrace_services.scheduler.store import tables

RUN_ALL = {"kind": "run_all"}


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


async def test_an_old_attempt_changes_nothing(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL)).create()
    await site.connect(slots=1)
    (old,) = await site.kick()
    await site.tell(old, 1, 0.5)
    expiry = LeaseExpired(
        lease_id=old.id, number=old.number, attempt=old.attempt, sequence=None, why="silence"
    )
    await site.step(gone(old, "LOST"))
    cursor = (await site.study()).cursor
    outcomes = await site.step(
        site.report(old, 2, 0.1),
        RestoredArrived(lease_id=old.id, number=old.number, attempt=old.attempt, sequence=77),
        gone(old, "FAILED"),
        expiry,
    )
    assert [type(outcome) for outcome in outcomes] == [Stale] * 4
    assert (await site.study()).cursor == cursor
    trial = await site.trial(0)
    assert (trial.state, trial.attempt, trial.step, trial.failures) == ("RESUMED", 2, 1, 0)


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
    again = next(held for held in site.leases.values() if held.number == 0 and held.attempt == 2)
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
    said = [event.message for event in await site.events("trial_moved") if "interrupted" in event.message]
    assert len(said) == 4
    assert all(": killed by SIGKILL; it " in line for line in said), said
    assert said[0].endswith("; it starts over")


@pytest.mark.parametrize(
    ("first", "later"),
    [((), ()), ((1, 2, 3, 4, 5), (4, 5))],
    ids=["before any report", "with reports that it makes again"],
)
async def test_a_program_that_is_killed_again_and_again_without_progress_is_stopped(
    engine: AsyncEngine, first: tuple[int, ...], later: tuple[int, ...]
) -> None:
    site = await StudySite(engine, make_spec(max_trials=1)).create()
    await site.connect(slots=1)
    await site.kick()
    for turn in range(1, MAX_KILLS_IN_ROW + 1):
        lease = next(held for held in site.leases.values() if held.attempt == turn)
        for step in later if turn > 1 else first:
            saved = Checkpoint(uri="mem:/", step=3, size_bytes=1) if step == 3 else None
            await site.step(replace(site.report(lease, step, 0.5), checkpoint=saved))
        await site.step(gone(lease, "LOST", error="killed by SIGKILL"))
    trial = await site.trial(0)
    assert (trial.state, trial.reason) == ("TERMINATED", "FAILED")
    said = (
        "killed by SIGKILL, 4 times in a row without a new checkpoint or a rung between: is it out of memory?"
    )
    assert trial.detail == said


async def test_a_kill_after_losses_of_machines_is_one_kill(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_trials=1)).create()
    await site.connect(slots=1)
    await site.kick()
    words = ["the worker daemon died"] * (MAX_KILLS_IN_ROW - 1) + ["killed by SIGKILL"]
    for turn, error in enumerate(words, start=1):
        lease = next(held for held in site.leases.values() if held.attempt == turn)
        await site.step(gone(lease, "LOST", error=error))
    trial = await site.trial(0)
    assert (trial.state, trial.losses_in_row, trial.kills_in_row) == ("RUNNING", MAX_KILLS_IN_ROW, 1)


async def test_a_trial_whose_checkpoint_cannot_be_read_is_not_asked_for_memory(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_trials=1)).create()
    await site.connect(slots=1)
    await site.kick()
    for turn in range(1, MAX_LOSSES_IN_ROW + 1):
        lease = next(held for held in site.leases.values() if held.attempt == turn)
        await site.step(gone(lease, "LOST", error="checkpoint s/0/1 cannot be read"))
    detail = (await site.trial(0)).detail
    assert detail.startswith("checkpoint s/0/1 cannot be read, 10 times in a row")
    assert "memory" not in detail


async def test_the_user_s_failures_are_retried_then_charged(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_retries=1, max_trials=1)).create()
    await site.connect(slots=1)
    (first,) = await site.kick()
    await site.tell(first, 2, 0.5)
    await site.step(gone(first, "FAILED", error="ValueError: no"))
    second = next(held for held in site.leases.values() if held.attempt == 2)
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


LOG = "Traceback (most recent call last):\n  File 'train.py', line 3, in train\n"


@pytest.mark.parametrize(
    ("errors", "attempts"),
    [
        (["NameError: name 'x' is not defined"] * 5, 2),
        (["NameError: name 'x' is not defined", *["NameError: name 'y' is not defined"] * 4], 3),
        (["program 'trian' cannot be started: No such file or directory"] * 5, 2),
        (["RuntimeError: CUDA error: out of memory"] * 5, 5),
        (["ConnectionError: refused"] * 5, 5),
    ],
)
async def test_an_error_of_the_program_that_comes_again_is_not_tried_again(
    engine: AsyncEngine, errors: list[str], attempts: int
) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_retries=4, max_trials=1)).create()
    await site.connect(slots=1)
    await site.kick()
    for attempt, error in enumerate(errors[:attempts], start=1):
        lease = next(held for held in site.leases.values() if held.attempt == attempt)
        await site.step(gone(lease, "FAILED", error=error, log_tail=f"{LOG}{error}\n"))
    trial = await site.trial(0)
    assert (trial.state, trial.reason, trial.failures) == ("TERMINATED", "FAILED", attempts)
    more = "" if attempts == 5 else "; not tried again: the same error at the same place"
    assert trial.detail == f"{errors[attempts - 1]} (attempt {attempts} of 5{more})"


async def test_an_error_after_a_report_is_tried_again_as_often_as_said(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_retries=2, max_trials=1)).create()
    await site.connect(slots=1)
    await site.kick()
    for attempt in (1, 2, 3):
        lease = next(held for held in site.leases.values() if held.attempt == attempt)
        await site.tell(lease, 1, 0.5)
        await site.step(gone(lease, "FAILED", error="TypeError: no", log_tail=f"{LOG}TypeError: no\n"))
    assert (await site.trial(0)).failures == 3


@pytest.mark.parametrize("failures", [1, 3, 5])
async def test_a_study_whose_first_trials_all_fail_ends_with_the_reason(
    engine: AsyncEngine, failures: int
) -> None:
    chosen = {} if failures == 3 else {"max_early_failures": failures}
    site = await StudySite(engine, make_spec(max_retries=0, **chosen)).create()
    await site.connect(slots=1)
    await site.kick()
    for number in range(failures):
        assert (await site.study()).state == "ACTIVE"
        lease = next(held for held in site.leases.values() if held.number == number)
        await site.step(gone(lease, "FAILED", error="ModuleNotFoundError: No module named 'nope'"))
    study = await site.study()
    assert study.state == "FAILED"
    assert "No module named 'nope'" in study.detail
    assert {row.state for row in await site.trials()} == {"TERMINATED"}


async def test_one_trial_that_leaves_the_metric_out_ends_no_study(engine: AsyncEngine) -> None:
    """Whichever reaches its rung first."""
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=2)
    first, second = await site.kick()
    await site.step(replace(site.report(first, 1, None), metrics={"val_los": 1.0}))
    assert (await site.trial(0)).state == "PAUSED", "it is never promoted"
    await site.tell(second, 1, 0.5)
    third = next(lease for lease in site.leases.values() if lease.number == 2)
    await site.step(replace(site.report(third, 1, None), metrics={"val_los": 1.0}))
    assert (await site.study()).state == "ACTIVE"


async def test_a_metric_that_nobody_reports_ends_the_study_at_the_second_trials_rung(
    engine: AsyncEngine,
) -> None:
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=2)
    first, second = await site.kick()
    await site.step(replace(site.report(first, 1, None), metrics={"val_los": 1.0}))
    assert (await site.study()).state == "ACTIVE"
    report = replace(site.report(second, 1, None), metrics={"val_los": 1.0})
    (outcome,) = await site.step(report)
    assert isinstance(outcome, Accepted)
    assert outcome.decision is not None
    assert outcome.decision.action == "STOP"
    study = await site.study()
    assert study.state == "FAILED"
    assert "'loss'" in study.detail
    assert "val_los" in study.detail
    assert len([order for order in site.orders if isinstance(order, Cancellation)]) == 2


async def test_the_only_trial_without_the_metric_ends_the_study_at_its_rung(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_trials=1)).create()
    await site.connect(slots=2)
    (only,) = await site.kick()
    await site.step(replace(site.report(only, 1, None), metrics={"val_los": 1.0}))
    assert (await site.study()).state == "FAILED"


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


@pytest.mark.parametrize(
    ("outcome", "error"), [("FAILED", "RuntimeError: saving failed"), ("LOST", "killed by SIGKILL")]
)
async def test_a_program_that_fails_or_is_killed_behind_its_last_report_stays_completed_and_says_so(
    outcome: str, error: str, engine: AsyncEngine
) -> None:
    site = await StudySite(engine, make_spec(max_trials=2)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.tell(lease, 9, 0.5)
    for _ in range(2):  # the message arrives twice
        await site.step(replace(gone(lease, outcome, error=error, log_tail="Traceback"), exit_code=-9))
    trial = await site.trial(0)
    assert (trial.state, trial.reason, trial.log_tail) == ("TERMINATED", "COMPLETED", "Traceback")
    assert trial.detail.endswith(f"; then its program ended early: {error}")
    warned = [event for event in await site.events() if event.kind == "trial_warned"]
    (said,) = [event.detail["warning"] for event in warned]
    assert said.startswith(f"its program ended early, after its last report: {error}. Its result stands")


async def test_a_program_that_does_not_leave_after_its_last_report_is_reported_with_its_signal(
    engine: AsyncEngine,
) -> None:
    site = await StudySite(engine, make_spec(max_trials=2)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.tell(lease, 9, 0.5)
    await site.step(replace(gone(lease, "RELEASED"), exit_code=0))
    assert not [event for event in await site.events() if event.kind == "trial_warned"]
    for _ in range(2):  # the message arrives twice
        await site.step(replace(gone(lease, "RELEASED"), exit_code=-9))
    trial = await site.trial(0)
    assert trial.detail.endswith("; then its process was ended by SIGKILL")
    (warned,) = [event for event in await site.events() if event.kind == "trial_warned"]
    assert "did not end after its last report, and was ended by SIGKILL" in warned.detail["warning"]


async def test_a_warning_of_a_report_becomes_an_event_once(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_trials=1)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    report = replace(site.report(lease, 1, 0.5), warnings=("its loop begins anew",))
    await site.step(report)
    await site.step(report)
    said = [event.message for event in await site.events() if event.kind == "trial_warned"]
    assert said == ["trial 0 warns: its loop begins anew"]


async def test_a_trial_ends_once_whatever_changes_in_it_afterwards(engine: AsyncEngine) -> None:
    """Other replicas find what has ended since their last check by `end_cursor`."""
    site = await StudySite(engine, make_spec(max_trials=2)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.tell(lease, 9, 0.5)
    ended = (await site.trial(0)).end_cursor
    assert ended is not None
    await site.step(gone(lease, "FAILED", error="RuntimeError: saving failed"))
    assert (await site.trial(0)).end_cursor == ended
