"""A worker serves several studies: a fault in one of them stops neither its session nor its other trials."""

import asyncio
from typing import Any

import pytest
from session_site import TIMING, Replica, ScriptedWorker, serving, study, worker
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, lock_study

from headrace.v1 import event_pb2
from headrace_services.scheduler.engine.sweeper import Sweeper
from headrace_services.scheduler.session import in_flight
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.database import transaction


async def two_leases(
    engine: AsyncEngine, replica: Replica, w: ScriptedWorker
) -> tuple[tuple[StudySite, event_pb2.LeaseRef], tuple[StudySite, event_pb2.LeaseRef]]:
    """Two studies, each with a trial on the worker, and the leases."""
    found = []
    for count in (1, 2):
        site = await study(engine, max_steps=1000)
        replica.hub.kick(site.study_id)
        found.append((site, (await w.hears("assign", count=count)).lease))
    return found[0], found[1]


async def plant(engine: AsyncEngine, statement: str, site: StudySite) -> None:
    async with transaction(engine) as conn:
        await conn.execute(text(statement), {"study": site.study_id})


async def state_of(site: StudySite) -> str:
    return str(
        (await site.rows(select(tables.study.c.state).where(tables.study.c.id == site.study_id)))[0][0]
    )


DEFECTS = {
    "a spec that is none": "UPDATE study SET spec = '{\"no\": 1}', uid = 'new-' || uid WHERE id = :study",
    "speeds that are none": "UPDATE trial SET speeds = '{\"a\": 1}' WHERE study_id = :study",
    "a lease that resumes nothing": "UPDATE lease SET resume = '{\"no\": 1}' WHERE study_id = :study",
}


@pytest.mark.parametrize("defect", DEFECTS)
async def test_a_worker_whose_trial_cannot_be_read_is_welcome_anyway(
    engine: AsyncEngine, replica: Replica, defect: str
) -> None:
    async with worker(replica) as w:
        await w.hello(slots=2)
        (bad, broken), (_, sound) = await two_leases(engine, replica, w)
    await plant(engine, DEFECTS[defect], bad)
    # Another replica, which has nothing of the study in its cache.
    async with serving(engine, TIMING) as other, worker(other) as w:
        await w.hello(slots=2)
        await w.hears("welcome")
        await w.hears("assign", lambda assign: assign.lease == sound)
        await w.report(broken, 1, 1, 0.5)
        await w.report(sound, 2, 1, 0.5)
        await w.hears("ack", lambda ack: 2 in ack.sequences)
        await w.hears("ack", lambda ack: 1 in ack.sequences)
        await w.hears("cancel", lambda cancel: cancel.lease.lease_id == broken.lease_id)
        # Only the report is answered this way, before the cycle that ends the study.
        async with asyncio.timeout(60):
            while await state_of(bad) == "ACTIVE":
                await asyncio.sleep(0.01)
    assert await state_of(bad) == "FAILED"


async def test_silence_is_noticed_beside_a_lease_that_cannot_be_read(
    engine: AsyncEngine, replica: Replica
) -> None:
    async with worker(replica) as w:
        await w.hello(slots=2)
        (bad, _), (good, _) = await two_leases(engine, replica, w)
    await plant(engine, DEFECTS["a lease that resumes nothing"], bad)
    async with transaction(engine) as conn:
        await conn.execute(text("UPDATE worker SET expires_at = '2000-01-01'"))
    sweeper = Sweeper(replica.hub, lease_ttl_s=0.0)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        while (await good.trial(0)).state == "RUNNING" or await state_of(bad) == "ACTIVE":
            await sweeper.sweep(tasks)
            await asyncio.sleep(0.05)
    assert (await good.trial(0)).state == "PENDING"
    assert await state_of(bad) == "FAILED"


async def test_a_study_whose_step_hangs_does_not_stop_the_others(
    engine: AsyncEngine, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_flight, "SHARE", 4)
    monkeypatch.setattr(in_flight, "PATIENCE_S", 0.2)
    async with worker(replica) as w:
        await w.hello(slots=2)
        (hung, stuck), (_, free) = await two_leases(engine, replica, w)
        async with engine.begin() as conn:
            await lock_study(conn, hung.study_id)  # none of its cycles can end
            for sequence in range(1, 11):
                await w.report(stuck, sequence, sequence, 0.5)
            await w.report(free, 100, 1, 0.5)
            await w.hears("ack", lambda ack: 100 in ack.sequences)
        for sequence in range(1, 5):
            await w.hears("ack", lambda ack, sequence=sequence: sequence in ack.sequences)
        await w.hears("drain")
        await w.report(stuck, 11, 11, 0.5)
        await w.report(free, 101, 2, 0.5)
        await w.hears("ack", lambda ack: 101 in ack.sequences)
        acknowledged = said_of(w)
    assert acknowledged == {1, 2, 3, 4, 100, 101}, "nothing overtakes what was left unanswered"
    async with worker(replica) as w:
        await w.hello(slots=2, held=(stuck, free))
        for sequence in range(5, 12):
            await w.report(stuck, sequence, sequence, 0.5)
        await w.hears("ack", lambda ack: 11 in ack.sequences)
    assert [row.sequence for row in await hung.rows(reports(hung))] == list(range(1, 12))


def said_of(w: ScriptedWorker) -> set[int]:
    return {
        sequence for response in w.heard for sequence in (*response.ack.sequences, *response.acknowledged)
    }


def reports(site: StudySite) -> Any:
    r = tables.report
    return select(r.c.sequence).where(r.c.study_id == site.study_id).order_by(r.c.sequence)
