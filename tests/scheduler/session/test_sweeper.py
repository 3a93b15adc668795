"""Leases end in time when their worker is silent, and only then."""

import asyncio
import time

import pytest
from session_site import DEADLINE_S, Replica, study, worker
from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.v1 import worker_pb2
from headrace_services.scheduler.core.inputs import LeaseExpired, StopTrial
from headrace_services.scheduler.engine import sweeper as sweeping
from headrace_services.scheduler.engine.submissions import Settled, Submission
from headrace_services.scheduler.engine.sweeper import Sweeper
from headrace_services.scheduler.session.known_studies import KnownStudies
from headrace_services.scheduler.store import tables


async def swept(sweeper: Sweeper) -> None:
    """Sweep once, and wait for what follows."""
    async with asyncio.TaskGroup() as tasks:
        await sweeper.sweep(tasks)


async def fall_silent(engine: AsyncEngine) -> None:
    """Let the leases of all workers expire."""
    async with engine.begin() as conn:
        await conn.execute(update(tables.worker).values(expires_at=tables.worker.c.session_time))


async def test_a_silent_worker_loses_its_leases_after_the_lease_time(
    engine: AsyncEngine, replica: Replica
) -> None:
    site = await study(engine)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        lease = (await w.hears("assign")).lease
        await fall_silent(engine)
        sweeper = Sweeper(replica.hub, lease_ttl_s=0)
        await swept(sweeper)
        await swept(sweeper)
        assert (await site.trial(0)).interruptions == 1
        await w.report(lease, 1, 3, 0.5)
        await w.hears("ack")
        assert (await site.trial(0)).steps_spent == 0


async def test_nothing_expires_right_after_a_start(engine: AsyncEngine, replica: Replica) -> None:
    site = await study(engine)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        await w.hears("assign")
        await fall_silent(engine)
        await swept(Sweeper(replica.hub, lease_ttl_s=60))
        assert (await site.trial(0)).interruptions == 0


async def test_what_was_asked_of_a_grant_that_ended_just_then_is_forgotten(
    engine: AsyncEngine, replica: Replica
) -> None:
    site = await study(engine, max_trials=2)
    leave = tables.leave
    async with worker(replica) as w:
        await w.hello(slots=2)
        replica.hub.kick(site.study_id)
        ended, live = (await w.hears("assign")).lease, (await w.hears("assign", count=2)).lease
        await replica.hub.submit(site.study_id, Submission(input=StopTrial(number=0, reason="")))
        async with engine.begin() as conn:  # like a cycle of another study that had seen both grants live
            asked = [
                {"grant_id": ref.lease_id, "study_id": site.study_id, "for_study_id": site.study_id}
                | {"at_report": True, "why": "others need the slots"}
                for ref in (ended, live)
            ]
            await conn.execute(insert(leave), asked)
        await swept(Sweeper(replica.hub, lease_ttl_s=60))
        async with engine.connect() as conn:
            assert (await conn.execute(select(leave.c.grant_id))).scalars().all() == [live.lease_id]


class FakeClock:
    """The loop's clock, which can be moved forward for the sweeper."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shift_s = 0.0
        monkeypatch.setattr(sweeping, "monotonic", lambda: time.monotonic() + self.shift_s)


async def test_nothing_expires_right_after_the_sweeper_was_held_up_optuna_4234_5470(
    engine: AsyncEngine, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await study(engine)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        await w.hears("assign")
        clock = FakeClock(monkeypatch)
        sweeper = Sweeper(replica.hub, lease_ttl_s=10)
        await swept(sweeper)
        await fall_silent(engine)
        clock.shift_s += 25  # the process was frozen: heartbeats wait to be read
        await swept(sweeper)
        assert (await site.trial(0)).interruptions == 0
        for _ in range(3):
            clock.shift_s += 4
            await swept(sweeper)
        assert (await site.trial(0)).interruptions == 1


async def expired_ago(engine: AsyncEngine, seconds: float) -> None:
    """Let the leases of all workers have expired that many seconds ago."""
    async with engine.begin() as conn:
        over_at = func.clock_timestamp() - func.make_interval(0, 0, 0, 0, 0, 0, seconds)
        await conn.execute(update(tables.worker).values(expires_at=over_at))


@pytest.mark.parametrize(("late_s", "interruptions"), [(20.0, 1), (600.0, 0)])
async def test_leases_last_longer_by_the_time_that_the_event_loop_was_late(
    engine: AsyncEngine, replica: Replica, late_s: float, interruptions: int
) -> None:
    site = await study(engine)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        await w.hears("assign")
        await expired_ago(engine, 60)
        sweeper = Sweeper(replica.hub, lease_ttl_s=0, late_within=lambda _: late_s)
        await swept(sweeper)
        await swept(sweeper)
        assert (await site.trial(0)).interruptions == interruptions


async def ripe(replica: Replica, clock: "FakeClock") -> Sweeper:
    """A sweeper that has swept for longer than the lease time."""
    sweeper = Sweeper(replica.hub, lease_ttl_s=60, is_heard=replica.registry.is_heard)
    for _ in range(3):
        await swept(sweeper)
        clock.shift_s += 40
    return sweeper


async def test_a_worker_whose_heartbeat_is_not_written_down_yet_is_not_silent(
    engine: AsyncEngine, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await study(engine)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        await w.hears("assign")
        sweeper = await ripe(replica, FakeClock(monkeypatch))
        await fall_silent(engine)
        await swept(sweeper)
        assert (await site.trial(0)).interruptions == 0
    await fall_silent(engine)  # its stream has ended by now
    await swept(sweeper)
    assert (await site.trial(0)).interruptions == 1


async def test_a_worker_whose_hello_is_being_written_down_is_not_silent(
    engine: AsyncEngine, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await study(engine)
    async with worker(replica) as before:
        await before.hello()
        replica.hub.kick(site.study_id)
        lease = (await before.hears("assign")).lease
    gone = select(tables.worker).where(~tables.worker.c.connected).with_for_update()
    async with worker(replica) as w, engine.connect() as slow, asyncio.timeout(DEADLINE_S):
        while not (await slow.execute(gone)).all():
            await slow.rollback()
            await asyncio.sleep(0.01)
        await slow.rollback()
        await fall_silent(engine)
        await slow.execute(gone)
        await w.hello(held=(lease,))
        while not replica.registry.is_heard(-1, "w", 0):
            await asyncio.sleep(0.01)
        await swept(await ripe(replica, FakeClock(monkeypatch)))
        await slow.rollback()
        await w.hears("welcome")
    assert (await site.trial(0)).interruptions == 0


async def test_a_worker_lives_while_what_it_said_waits_to_be_taken_in(
    engine: AsyncEngine, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, lock = await study(engine), asyncio.Event()

    async def wait_for_a_lock(_: KnownStudies, _uid: str) -> int:
        await lock.wait()
        return site.study_id

    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        lease = (await w.hears("assign")).lease
        monkeypatch.setattr(KnownStudies, "id_of", wait_for_a_lock)
        await w.report(lease, 1, 1, 0.5)
        await fall_silent(engine)  # its heartbeats wait behind the report
        async with asyncio.timeout(DEADLINE_S):
            await until_alive(engine)
        lock.set()
        await w.hears("ack")
        assert (await site.trial(0)).interruptions == 0


async def test_a_worker_whose_lease_expired_is_told_to_let_go(engine: AsyncEngine, replica: Replica) -> None:
    site = await study(engine)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        lease = (await w.hears("assign")).lease
        await fall_silent(engine)
        expiry = LeaseExpired(lease_id=lease.lease_id, number=0, attempt=1, sequence=None, why="silence")
        await replica.hub.submit(site.study_id, Submission(input=expiry))
        assert (await w.hears("cancel")).lease.lease_id == lease.lease_id


async def test_a_study_whose_step_hangs_holds_up_no_other_study_s_trials(
    engine: AsyncEngine, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, other = await study(engine), await study(engine)
    submit, lock = replica.hub.submit, asyncio.Event()

    async def wait_for_a_lock(study_id: int, submission: Submission) -> Settled:
        if study_id == hanging.study_id:
            await lock.wait()
        return await submit(study_id, submission)

    monkeypatch.setattr(replica.hub, "submit", wait_for_a_lock)
    sweeper = Sweeper(replica.hub, lease_ttl_s=0)
    async with worker(replica) as w, asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        await w.hello(slots=2)
        replica.hub.kick(hanging.study_id)
        while not any(row.lease_id for row in await hanging.trials()):  # the other study may be placed first
            await asyncio.sleep(0.01)
        await fall_silent(engine)
        await sweeper.sweep(tasks)
        await sweeper.sweep(tasks)
        await w.hears("welcome")
        await w.say(heartbeat=worker_pb2.Heartbeat(sequence=1))
        await until_alive(engine)
        replica.hub.kick(other.study_id)
        await w.hears("assign", count=2)
        while (placed := await other.trial(0)).lease_id is None:  # the first sweeps may have seen it, too
            await asyncio.sleep(0.01)
        await fall_silent(engine)
        await sweeper.sweep(tasks)
        while (await other.trial(0)).interruptions == placed.interruptions:
            await asyncio.sleep(0.01)
        assert (await hanging.trial(0)).interruptions == 0
        lock.set()
    assert (await hanging.trial(0)).interruptions == 1
    assert (await other.trial(0)).interruptions == placed.interruptions + 1


async def until_alive(engine: AsyncEngine) -> None:
    """Wait until a heartbeat was written."""
    alive = select(tables.worker.c.expires_at > func.clock_timestamp())
    while True:
        async with engine.connect() as conn:
            if (await conn.execute(alive)).scalar_one():
                return
        await asyncio.sleep(0.01)
