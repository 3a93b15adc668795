"""Two workers of one name: the second is refused while the first is connected, and a restarted worker takes over
at once."""

import asyncio
from typing import Any

import grpc
import pytest
from session_site import DEADLINE_S, Replica, ScriptedWorker, study, worker
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.v1 import event_pb2, worker_pb2
from headrace_services.scheduler.store import workers


async def _refused(replica: Replica, **hello: Any) -> str:
    async with worker(replica) as w:
        await w.hello(**hello)
        async with asyncio.timeout(DEADLINE_S):
            await w.ended.wait()
        assert await w.call.code() == grpc.StatusCode.ALREADY_EXISTS
        assert not w.heard
        return str(await w.call.details())


async def _with_a_trial(engine: AsyncEngine, replica: Replica, w: ScriptedWorker) -> event_pb2.LeaseRef:
    site = await study(engine)
    await w.hello(incarnation="a", host="alpha", home="1")
    await w.hears("welcome")
    replica.hub.kick(site.study_id)
    lease: event_pb2.LeaseRef = (await w.hears("assign")).lease
    return lease


async def test_the_second_one_is_refused_and_told_where_the_first_one_runs(
    engine: AsyncEngine, replica: Replica
) -> None:
    async with worker(replica) as first:
        lease = await _with_a_trial(engine, replica, first)
        said = await _refused(replica, incarnation="b", host="beta", home="2")
        assert "a worker 'w' runs already on host 'alpha'" in said
        await _refused(replica, incarnation="c", host="alpha", home="3")
        await first.report(lease, 1, 9, 0.5)  # nobody took over: its messages still count
        await first.hears("decision", lambda d: d.lease == lease)


async def test_a_restart_with_the_same_home_takes_over_at_once(engine: AsyncEngine, replica: Replica) -> None:
    async with worker(replica) as first, worker(replica) as again:
        await _with_a_trial(engine, replica, first)
        await again.hello(incarnation="b", host="alpha", home="1")
        await again.hears("welcome")


async def test_a_daemon_on_a_copy_of_the_home_is_refused_and_the_first_one_notices_nothing(
    engine: AsyncEngine, replica: Replica
) -> None:
    async with worker(replica) as first:
        site = await study(engine)
        await first.hello(incarnation="a", host="alpha", home="1", home_lock="x")
        await first.hears("welcome")
        replica.hub.kick(site.study_id)
        lease = (await first.hears("assign")).lease
        copy = {"incarnation": "b", "host": "alpha", "home": "1", "home_lock": "y", "held": (lease,)}
        said = await _refused(replica, **copy)
        assert "a worker 'w' runs already on host 'alpha', from a home of which this one's is a copy" in said
        said = await _refused(replica, **copy, name="v")
        assert "home is a copy of that of worker 'w', which runs on host 'alpha'" in said
        await first.report(lease, 1, 3, 0.5)
        await first.hears("decision", lambda d: d.lease == lease)
    await _until_disconnected(engine)
    await _refused(replica, **copy)
    await _refused(replica, **copy, name="v")
    async with worker(replica) as back:
        await back.hello(incarnation="a", held=(lease,), host="alpha", home="1", home_lock="x")
        assert list((await back.hears("welcome")).held) == [lease]


async def test_the_holder_of_the_lock_takes_over_at_once_under_any_name(
    engine: AsyncEngine, replica: Replica
) -> None:
    async with worker(replica) as first, worker(replica) as again, worker(replica) as renamed:
        await first.hello(incarnation="a", host="alpha", home="1", home_lock="x")
        await first.hears("welcome")
        await again.hello(incarnation="b", host="alpha", home="1", home_lock="x")
        await again.hears("welcome")
        await renamed.hello(incarnation="c", host="alpha", home="1", home_lock="x", name="v")
        await renamed.hears("welcome")


async def test_a_daemon_whose_home_was_made_again_has_another_lock_and_is_the_same(
    engine: AsyncEngine, replica: Replica
) -> None:
    async with worker(replica) as first, worker(replica) as again:
        await first.hello(incarnation="a", host="alpha", home="1", home_lock="x")
        await first.hears("welcome")
        await again.hello(incarnation="a", host="alpha", home="1", home_lock="y")
        await again.hears("welcome")


async def test_a_home_that_was_moved_is_taken_when_its_worker_is_gone(
    engine: AsyncEngine, replica: Replica
) -> None:
    async with worker(replica) as first:
        await first.hello(incarnation="a", host="alpha", home="1", home_lock="x")
        await first.hears("welcome")
    await _until_disconnected(engine)
    async with worker(replica) as moved:
        await moved.hello(incarnation="b", host="beta", home="1", home_lock="y")
        await moved.hears("welcome")


async def test_while_a_connection_is_down_its_trials_keep_the_name(
    engine: AsyncEngine, replica: Replica
) -> None:
    async with worker(replica) as first:
        lease = await _with_a_trial(engine, replica, first)
    await _until_disconnected(engine)
    assert "'alpha'" in await _refused(replica, incarnation="b", host="beta", home="2")
    async with worker(replica) as back:
        await back.hello(incarnation="a", held=(lease,), host="alpha", home="1")
        assert list((await back.hears("welcome")).held) == [lease]


@pytest.mark.parametrize("how", ["its trials are over", "it is the same host", "its time is up"])
async def test_a_worker_that_is_gone_leaves_its_name_to_others(
    engine: AsyncEngine, replica: Replica, how: str
) -> None:
    async with worker(replica) as first:
        lease = await _with_a_trial(engine, replica, first)
        if how == "its trials are over":
            await first.report(lease, 1, 9, 0.5)
            await first.hears("decision")
    await _until_disconnected(engine)
    if how == "its time is up":
        async with engine.begin() as conn:
            await conn.execute(text("UPDATE worker SET expires_at = now() - interval '1 s' WHERE name = 'w'"))
    async with worker(replica) as other:
        host = "alpha" if how == "it is the same host" else "beta"
        await other.hello(incarnation="b", host=host, home="2")
        await other.hears("welcome")


async def test_a_device_that_failed_gets_no_trials_until_its_worker_starts_again(
    engine: AsyncEngine, replica: Replica
) -> None:
    async with worker(replica) as w:
        site = await study(engine, max_retries=0)
        await w.hello(slots=2)
        await w.hears("welcome")
        replica.hub.kick(site.study_id)
        first = await w.hears("assign")
        failed = first.grant.slots[0]
        ecc = "uncorrectable ECC error encountered"
        defect = worker_pb2.DeviceDefect(index=failed, reason=ecc)
        await w.say(heartbeat=worker_pb2.Heartbeat(sequence=1, held=[first.lease], defects=[defect]))
        await w.say(
            exited=worker_pb2.Exited(
                sequence=1,
                lease=first.lease,
                outcome=worker_pb2.EXIT_OUTCOME_LOST,
                error=f"its device failed: {ecc}",
            )
        )
        second = await w.hears("assign", lambda assign: assign.lease.attempt == 2)
        assert list(second.grant.slots) == [1 - failed], "the trial goes on elsewhere"
        assert (await site.trial(0)).failures == 0
        shown = (await _slots(engine))[failed]
        assert (shown.present, shown.defect) == (False, ecc)
    async with worker(replica) as w:
        devices = [worker_pb2.Device(index=n, kind=worker_pb2.DEVICE_KIND_CPU) for n in range(2)]
        devices[failed].defect = ecc
        hello = worker_pb2.Hello(
            protocol=1, worker="w", incarnation="1", devices=devices, held=[second.lease]
        )
        await w.say(hello=hello)
        await w.hears("welcome")
        assert [row.present for row in await _slots(engine)] == [n != failed for n in range(2)]
    async with worker(replica) as w:
        await w.hello(incarnation="2", slots=2)
        await w.hears("welcome")
        assert [(row.present, row.defect) for row in await _slots(engine)] == [(True, "")] * 2


async def _slots(engine: AsyncEngine) -> list[Any]:
    async with engine.connect() as conn:
        return list((await conn.execute(text("SELECT * FROM slot ORDER BY index"))).all())


async def _until_disconnected(engine: AsyncEngine) -> None:
    async with asyncio.timeout(60):
        while True:
            async with engine.connect() as conn:
                if not (
                    await conn.execute(text("SELECT connected FROM worker WHERE name = 'w'"))
                ).scalar_one():
                    return
            await asyncio.sleep(0.02)


async def test_a_worker_that_connects_again_waits_for_no_cycle_that_refers_to_it(
    engine: AsyncEngine, replica: Replica
) -> None:
    """A placing cycle locks slots first, and then refers to their worker: in the other order both would wait."""
    async with worker(replica) as first:
        await first.hello(home="1")
        await first.hears("welcome")
    await _until_disconnected(engine)
    async with engine.begin() as conn:
        greeting = workers.Greeting(
            name="w", incarnation="2", devices=(), labels={}, version="", log_dir="/l", home="1"
        )
        await workers._refuse_namesake(conn, greeting)
        async with engine.begin() as cycle:
            await cycle.execute(text("SET LOCAL lock_timeout = '2s'"))
            await cycle.execute(
                text("SELECT 1 FROM worker WHERE name = 'w' FOR KEY SHARE")
            )  # as a foreign key does
