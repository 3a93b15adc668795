"""`trial_timeout_s`: how long a trial may run, over all of its attempts."""

from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace_services.scheduler.core.inputs import Accepted, RetryTrials
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.core.time_limits import left_s
from headrace_services.scheduler.store.database import transaction

OVER = "it timed out: it ran for 60 s, the study's trial_timeout_s"


async def limited(engine: AsyncEngine) -> tuple[StudySite, Lease]:
    template = {"callable": "train:train", "working_dir": "/tmp", "timeout": timedelta(seconds=60)}
    site = await StudySite(
        engine, make_spec(policy={"kind": "run_all"}, max_trials=1, template=template)
    ).create()
    await site.connect(slots=1)
    return site, (await site.kick())[0]


async def runs(site: StudySite, seconds: float) -> None:
    """Let the trial have run for that many seconds."""
    async with transaction(site.engine) as conn:
        await conn.execute(
            text("UPDATE trial SET runs_since_s = runs_since_s - :s WHERE study_id = :id"),
            {"s": seconds, "id": site.study_id},
        )


async def action(site: StudySite, lease: Lease, step: int, value: float) -> str:
    (outcome,) = await site.step(site.report(lease, step, value))
    assert isinstance(outcome, Accepted)
    assert outcome.decision is not None
    return outcome.decision.action


async def test_a_trial_ends_at_the_report_after_its_time(engine: AsyncEngine) -> None:
    site, lease = await limited(engine)
    await runs(site, 40)
    assert await action(site, lease, 1, 0.5) == "CONTINUE"
    await runs(site, 21)
    assert await action(site, lease, 2, 0.4) == "STOP"
    trial = await site.trial(0)
    assert (trial.reason, trial.detail, trial.score) == ("STOPPED_EARLY", OVER, 0.4)
    study = await site.study()
    assert study.state == "COMPLETED"
    assert study.detail.endswith("the furthest reached step 2. Is trial_timeout_s, 60 s, long enough?")


async def test_attempts_add_up_and_what_is_left_goes_to_the_next_one(engine: AsyncEngine) -> None:
    site, lease = await limited(engine)
    await runs(site, 40)
    assert await action(site, lease, 1, 0.5) == "CONTINUE"
    await site.step(gone(lease, "LOST", error="killed by SIGKILL"))
    await site.kick()
    trial = await site.trial(0)
    assert trial.attempt == 2
    left = left_s(site.spec, trial)
    assert left is not None
    assert 15 < left <= 20
    await runs(site, 21)
    assert await action(site, site.leases[trial.lease_id or ""], 2, 0.4) == "STOP"


async def test_a_trial_that_its_worker_ended_counts_with_what_it_reported(engine: AsyncEngine) -> None:
    site, lease = await limited(engine)
    assert await action(site, lease, 1, 0.5) == "CONTINUE"
    await site.step(gone(lease, "TIMED_OUT", error="ran for 60 s, the study's trial_timeout_s"))
    trial = await site.trial(0)
    assert (trial.reason, trial.score, trial.failures) == ("STOPPED_EARLY", 0.5, 0)
    assert trial.detail == f"{OVER}, and did not stop when asked"


async def test_a_trial_that_reported_nothing_in_its_time_has_failed(engine: AsyncEngine) -> None:
    site, lease = await limited(engine)
    await site.step(gone(lease, "TIMED_OUT", error="ran for 60 s, the study's trial_timeout_s"))
    trial = await site.trial(0)
    assert (trial.reason, trial.detail) == ("FAILED", f"{OVER}, without a report of its objective")
    assert trial.attempt == 1


async def test_a_trial_that_is_tried_again_has_its_full_time_again(engine: AsyncEngine) -> None:
    site, lease = await limited(engine)
    await runs(site, 61)
    await site.step(gone(lease, "TIMED_OUT", error="ran for 60 s, the study's trial_timeout_s"))
    assert (await site.study()).state == "FAILED"
    await site.step(RetryTrials(numbers=None))
    trial = await site.trial(0)
    left = left_s(site.spec, trial)
    assert (trial.attempt, trial.reason) == (2, None)
    assert left is not None
    assert left == 60.0


async def test_a_report_that_was_on_its_way_does_not_end_a_trial_that_has_not_saved(
    engine: AsyncEngine,
) -> None:
    site, lease = await limited(engine)
    assert await action(site, lease, 1, 0.5) == "CONTINUE"
    await runs(site, 61)
    (early,) = await site.step(site.report(lease, 2, 0.4, saved=False))
    assert isinstance(early, Accepted)
    assert early.decision is not None
    assert (early.decision.action, early.decision.next_milestone) == ("CONTINUE", 3)
    assert await action(site, lease, 3, 0.3) == "STOP"
    trial = await site.trial(0)
    assert (trial.reason, trial.score, trial.checkpoint["step"]) == ("STOPPED_EARLY", 0.3, 3)
