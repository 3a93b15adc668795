"""`headrace retry`: failed trials continue, an ended study becomes active again, and nothing is lost or doubled."""

import pytest
from reopened_site import train
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace.errors import InvalidFieldError, TrialNotFoundError
from headrace_services.scheduler.core.inputs import Reopened, RetryTrials, StopStudy, StopTrial
from headrace_services.scheduler.replay.replaying import replay
from headrace_services.scheduler.store import quarantine, tables
from headrace_services.scheduler.store.database import transaction

ONCE = {"max_retries": 0, "policy": {"kind": "run_all"}}
ALL = RetryTrials(numbers=None)


async def one_failed(engine: AsyncEngine, *, saved: bool) -> StudySite:
    """A completed study of two trials, the first of which failed after its report at step 3."""
    site = await StudySite(engine, make_spec(**ONCE, max_trials=2)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.tell(lease, 3, 0.5, saved=saved)
    await site.step(gone(lease, "FAILED", error="ValueError: no"))
    await train(site)
    assert (await site.study()).state == "COMPLETED"
    assert (await site.trial(0)).reason == "FAILED"
    return site


@pytest.mark.parametrize(("saved", "step"), [(True, 3), (False, 0)])
async def test_a_failed_trial_continues_from_its_checkpoint_or_begins_again(
    engine: AsyncEngine, saved: bool, step: int
) -> None:
    site = await one_failed(engine, saved=saved)
    assert await site.step(ALL) == [Reopened(numbers=(0,), others=0)]
    study, trial = await site.study(), await site.trial(0)
    assert (study.state, study.end_time) == ("ACTIVE", None)
    assert (trial.state, trial.attempt) == ("RESUMED" if saved else "RUNNING", 2)
    assert (trial.failures, trial.losses_in_row, trial.reason, trial.end_cursor) == (0, 0, None, None)
    lease = site.leases[trial.lease_id]
    assert lease.step == step
    assert (await site.tell(lease, 9, 0.1)).action == "STOP"
    study, trial = await site.study(), await site.trial(0)
    assert (study.state, trial.reason, trial.best_value) == ("COMPLETED", "COMPLETED", 0.1)
    results = await site.rows(
        select(tables.rung_result.c.number).where(tables.rung_result.c.study_id == site.study_id)
    )
    assert sorted(row.number for row in results) == [0, 1]
    found = replay(site.spec, await site.log())
    assert found.identical, found.differences


async def test_the_count_of_failures_restarts(engine: AsyncEngine) -> None:
    site = await one_failed(engine, saved=True)
    for attempt in (2, 3):
        await site.step(ALL)
        trial = await site.trial(0)
        assert trial.attempt == attempt
        await site.step(gone(site.leases[trial.lease_id], "FAILED", error="ValueError: still"))
        trial = await site.trial(0)
        assert (trial.reason, trial.failures) == ("FAILED", 1)
        assert (await site.study()).state == "COMPLETED"


async def test_a_study_that_failed_continues_with_all_that_its_end_cut_off(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_retries=0, max_trials=6)).create()
    await site.connect(slots=4)
    leases = await site.kick()
    for lease in leases[:3]:
        await site.step(gone(lease, "FAILED", error="ImportError: no"))
    study = await site.study()
    assert (study.state, study.early_failures) == ("FAILED", 3)
    (outcome,) = await site.step(ALL)
    assert isinstance(outcome, Reopened)
    assert outcome.numbers == (0, 1, 2)
    assert outcome.others == len(await site.trials()) - 3
    study = await site.study()
    assert (study.state, study.early_failures, study.standing["early"]) == ("ACTIVE", 0, {})
    assert {row.reason for row in await site.trials()} == {None}
    await train(site)
    assert (await site.study()).state == "COMPLETED"
    assert len(await site.trials()) == 6
    found = replay(site.spec, await site.log())
    assert found.identical, found.differences
    assert found.starts == 6


async def test_those_that_waited_wait_again_and_any_replica_decides_alike(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_retries=0)).create()
    await site.connect(slots=2)
    first, *_ = await site.kick()
    await site.tell(first, 1, 0.01)
    await train(site, fails={4})
    assert (await site.study()).state == "COMPLETED"
    waited = [row.number for row in await site.trials() if row.reason == "STOPPED_EARLY"]
    assert waited
    (outcome,) = await site.step(ALL)
    assert outcome == Reopened(numbers=(4,), others=len(waited))
    rows = {row.number: row for row in await site.trials()}
    assert all((rows[number].state, rows[number].reason) == ("PAUSED", None) for number in waited)
    site.fold = None  # another replica
    await train(site)
    study = await site.study()
    assert study.state == "COMPLETED"
    assert (await site.trial(4)).rungs >= 1
    found = replay(site.spec, await site.log())
    assert found.identical, found.differences


async def test_named_trials_alone_are_tried_again(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(**ONCE, max_trials=4, max_early_failures=9)).create()
    await site.connect(slots=4)
    leases = await site.kick()
    await site.tell(leases[3], 1, 0.5)
    for lease in leases[:2]:
        await site.step(gone(lease, "FAILED", error="ValueError: no"))
    await site.step(StopTrial(number=2, reason="enough"))
    assert await site.step(RetryTrials(numbers=frozenset({1, 2}))) == [Reopened(numbers=(1, 2), others=0)]
    assert [row.reason for row in await site.trials()] == ["FAILED", None, None, None]


async def test_what_cannot_be_tried_again_changes_nothing(engine: AsyncEngine) -> None:
    site = await one_failed(engine, saved=True)
    before = (await site.study()).cursor
    outcomes = await site.step(
        RetryTrials(numbers=frozenset({0, 1})), RetryTrials(numbers=frozenset({0, 7})), StopStudy(reason="")
    )
    assert isinstance(outcomes[0], InvalidFieldError)
    assert "names one that has not failed: it is completed (got 1)" in str(outcomes[0])
    assert isinstance(outcomes[1], TrialNotFoundError)
    assert (await site.study()).cursor == before
    assert (await site.trial(0)).reason == "FAILED"
    sound = await StudySite(engine, make_spec(**ONCE, max_trials=1)).create()
    await sound.connect(slots=1)
    await train(sound)
    (outcome,) = await sound.step(ALL)
    assert "none of study" in str(outcome)
    assert (await sound.study()).state == "COMPLETED"


async def test_a_retry_in_a_cycle_with_reports_is_carried_out_first(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(**ONCE, max_trials=2)).create()
    await site.connect(slots=2)
    first, second = await site.kick()
    await site.tell(second, 1, 0.4)
    await site.step(gone(first, "FAILED", error="ValueError: no"))
    await site.step(site.report(second, 9, 0.3), ALL)
    assert (await site.trial(1)).reason == "COMPLETED"
    assert (await site.study()).state == "ACTIVE"
    await train(site)
    assert [row.reason for row in await site.trials()] == ["COMPLETED", "COMPLETED"]
    arrivals = select(func.count()).where(tables.rung_result.c.study_id == site.study_id)
    assert (await site.rows(arrivals))[0][0] == 2
    found = replay(site.spec, await site.log())
    assert found.identical, found.differences


async def test_a_study_whose_trials_left_the_metric_out_begins_again_at_the_rung_that_lacks_it(
    engine: AsyncEngine,
) -> None:
    site = await StudySite(engine, make_spec(max_trials=3)).create()
    await site.connect(slots=2)
    for lease in await site.kick():
        await site.tell(lease, 1, None)
    assert (await site.study()).state == "FAILED"
    assert {row.reason for row in await site.trials()} == {"CANCELLED"}
    (outcome,) = await site.step(ALL)
    assert isinstance(outcome, Reopened)
    assert (outcome.numbers, outcome.others) == ((), len(await site.trials()))
    await train(site)
    assert (await site.study()).state == "COMPLETED"
    assert all(row.rungs for row in await site.trials())
    found = replay(site.spec, await site.log())
    assert found.identical, found.differences


async def test_a_study_that_is_reopened_and_stopped_in_one_cycle_leaves_nothing_behind(
    engine: AsyncEngine,
) -> None:
    site = await one_failed(engine, saved=True)
    ended = (await site.study()).end_time
    await site.step(ALL, StopStudy(reason="enough"))
    study, trial = await site.study(), await site.trial(0)
    assert (study.state, trial.reason) == ("STOPPED", "CANCELLED")
    assert study.end_time > ended


async def test_a_trial_that_completes_in_the_cycle_that_stops_its_study_stays_completed(
    engine: AsyncEngine,
) -> None:
    site = await StudySite(engine, make_spec(**ONCE, max_trials=3, max_early_failures=9)).create()
    await site.connect(slots=3)
    failing, last, running = await site.kick()
    await site.tell(running, 2, 0.4)
    await site.step(gone(failing, "FAILED", error="ValueError: no"))
    await site.step(StopStudy(reason="enough"), site.report(last, 9, 0.3))
    assert [row.reason for row in await site.trials()] == ["FAILED", "COMPLETED", "CANCELLED"]
    assert await site.step(ALL) == [Reopened(numbers=(0,), others=1)]
    assert [row.reason for row in await site.trials()] == [None, "COMPLETED", None]


async def test_a_study_that_was_quarantined_continues_with_all_its_trials(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(**ONCE, max_trials=2)).create()
    await site.connect(slots=2)
    assert len(await site.kick()) == 2
    async with transaction(engine) as conn:
        await quarantine.quarantine(conn, site.study_id, "a defect")
    site.fold = None
    assert await site.step(ALL) == [Reopened(numbers=(), others=2)]
    await train(site)
    assert [row.reason for row in await site.trials()] == ["COMPLETED", "COMPLETED"]


async def test_a_member_that_its_population_has_left_behind_is_not_tried_again(engine: AsyncEngine) -> None:
    policy = {"kind": "pbt", "interval": 3}
    site = await StudySite(engine, make_spec(max_retries=0, max_trials=4, policy=policy)).create()
    await site.connect(slots=4)
    leases = await site.kick()
    await site.step(gone(leases[0], "FAILED", error="ValueError: no"))
    assert await site.step(ALL) == [Reopened(numbers=(0,), others=0)]
    await site.step(gone(site.leases[(await site.trial(0)).lease_id], "FAILED", error="ValueError: no"))
    for lease in leases[1:]:
        await site.tell(lease, 3, 0.1 * lease.number)
    before = await site.study()
    for named in (None, frozenset({0})):
        (refused,) = await site.step(RetryTrials(numbers=named))
        assert "names a member that the others have overtaken" in str(refused)
    assert (await site.study()) == before
    site.fold = None  # another replica says the same
    (refused,) = await site.step(ALL)
    assert "they are past its next rung, at step 3" in str(refused)


@pytest.mark.parametrize(
    ("stopped", "says", "remedy"),
    [
        (False, "has started", "(`headrace extend {}-target --steps N`)"),
        (True, "has ended too", "Create both studies again"),
    ],
)
async def test_a_study_whose_end_its_follower_was_told_is_not_tried_again(
    engine: AsyncEngine, stopped: bool, says: str, remedy: str
) -> None:
    transfer = {"callable": "train:large", "top": 1}
    site = await StudySite(engine, make_spec(**ONCE, max_trials=2, transfer=transfer)).create()
    await site.connect(slots=2)
    first, _ = await site.kick()
    await site.step(gone(first, "FAILED", error="ValueError: no"))
    await (site.step(StopStudy(reason="enough")) if stopped else train(site))
    before = await site.study()
    assert before.state == ("STOPPED" if stopped else "COMPLETED")
    (refused,) = await site.step(ALL)
    assert "is too late: the study that" in str(refused)
    assert says in str(refused)
    assert remedy.format(before.name) in str(refused)
    assert (await site.study()) == before
