"""A lease that a sweep found silent ends only if it still is, under the study's lock. Such ends are counted."""

import pytest
from sqlalchemy import text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace_services.scheduler.core.exits import MAX_LOSSES_IN_ROW
from headrace_services.scheduler.core.inputs import (
    Accepted,
    LeaseExpired,
    PlaceNow,
    Renewed,
    RestoredArrived,
    Stale,
)
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.store import tables


async def one_at_work(engine: AsyncEngine) -> tuple[StudySite, Lease]:
    site = await StudySite(engine, make_spec(policy={"kind": "run_all"}, max_trials=1)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    return site, lease


def expiry(lease: Lease) -> LeaseExpired:
    return LeaseExpired(lease_id=lease.id, number=0, attempt=lease.attempt, sequence=None, why="silence")


async def hear_of_workers(engine: AsyncEngine, when: str) -> None:
    """Let the leases of all workers end at that time."""
    async with engine.begin() as conn:
        await conn.execute(update(tables.worker).values(expires_at=when))


async def test_a_report_earlier_in_the_batch_keeps_a_lease_from_expiring(engine: AsyncEngine) -> None:
    site, lease = await one_at_work(engine)
    await hear_of_workers(engine, "2000-01-01")
    reported, expired = await site.step(site.report(lease, 1, 0.5), expiry(lease))
    assert isinstance(reported, Accepted)
    assert expired == Stale()
    assert (await site.trial(0)).lease_id == lease.id


async def test_a_worker_that_was_heard_of_since_the_sweep_keeps_its_leases(engine: AsyncEngine) -> None:
    site, lease = await one_at_work(engine)
    assert await site.step(expiry(lease)) == [Stale()]
    assert (await site.trial(0)).lease_id == lease.id
    await hear_of_workers(engine, "2000-01-01")
    assert await site.step(expiry(lease)) == [Accepted()]
    assert (await site.trial(0)).state == "PENDING"


async def test_a_trial_that_silences_its_workers_again_and_again_is_over(engine: AsyncEngine) -> None:
    site, lease = await one_at_work(engine)
    for turn in range(1, MAX_LOSSES_IN_ROW + 1):
        assert (await site.trial(0)).state == "RUNNING", f"after {turn - 1} expiries"
        await hear_of_workers(engine, "2000-01-01")
        await site.step(expiry(lease))
        await hear_of_workers(engine, "2100-01-01")
        await site.step(PlaceNow())
        lease = list(site.leases.values())[-1]
    trial = await site.trial(0)
    assert (trial.state, trial.reason) == ("TERMINATED", "FAILED")
    assert "silence, 10 times in a row without a new checkpoint or a rung between" in trial.detail
    assert trial.losses_in_row == MAX_LOSSES_IN_ROW


async def test_a_worker_never_takes_up_a_lease_that_expired(engine: AsyncEngine) -> None:
    """Even if nobody else had the trial: its process may still run beside the next one, and write checkpoints."""
    site, lease = await one_at_work(engine)
    await site.tell(lease, 1, 0.5)
    await hear_of_workers(engine, "2000-01-01")
    await site.step(expiry(lease))
    before = await site.trial(0)
    assert (before.state, before.lapsed) == ("PAUSED", False)
    name = {"lease_id": lease.id, "number": 0, "attempt": lease.attempt}
    outcomes = await site.step(
        site.report(lease, 2, 0.4),
        RestoredArrived(**name, sequence=100),
        Renewed(**name, sequence=None),
        gone(lease, "FINISHED"),
    )
    assert [type(outcome) for outcome in outcomes] == [Stale] * 4
    assert outcomes[0].why == "silence"
    assert await site.trial(0) == before
    for forced, said in (
        ("UPDATE lease SET live = true, end_time = NULL, ended = '' WHERE id = :id", "is over for good"),
        ("UPDATE trial SET state = 'RUNNING', lease_id = :id WHERE number = 0", "an attempt begins once"),
    ):
        async with engine.connect() as conn:
            with pytest.raises(IntegrityError, match=said):
                await conn.execute(text(forced), {"id": lease.id})
