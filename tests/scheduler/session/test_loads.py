"""How busy devices are: from heartbeats to rows and lists, for an hour."""

from datetime import timedelta

import pytest
from session_site import Replica, worker
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.v1 import worker_pb2
from headrace_services.scheduler.store import cluster, loads, tables
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.loads import Measured


def heartbeat(sequence: int, *said: tuple[int, float | None, int]) -> worker_pb2.Heartbeat:
    return worker_pb2.Heartbeat(
        sequence=sequence,
        telemetry=[
            worker_pb2.DeviceTelemetry(index=index, utilization=busy, memory_used_bytes=used)
            for index, busy, used in said
        ],
    )


async def listed(engine: AsyncEngine, *, history: bool) -> list[list[tuple[float | None, int]]]:
    """The loads of the only worker's slots."""
    async with transaction(engine) as conn:
        keys = await cluster.workers_after(conn, name="", limit=10)
        (view,) = await cluster.workers(conn, keys, history=history)
    return [[(load.utilization, load.memory_used_bytes) for load in slot.loads] for slot in view.slots]


async def age(engine: AsyncEngine, by: timedelta) -> None:
    """Make all rows older by `by`, in the places that they would then have."""
    t = tables.slot_load
    async with transaction(engine) as conn:
        minute = t.c.minute - by
        await conn.execute(
            update(t).values(minute=minute, place=(t.c.place + 60 - int(by.total_seconds() // 60) % 60) % 60)
        )


async def test_a_device_whose_utilization_is_unknown_has_none_and_a_missed_sample_counts_for_nothing(
    engine: AsyncEngine, replica: Replica
) -> None:
    async with worker(replica) as w:
        await w.hello(slots=2)
        for sequence, busy in enumerate((0.2, None, 0.4), 1):
            await w.say(heartbeat=heartbeat(sequence, (0, busy, 100), (1, None, 7)))
            await w.hears("ack", lambda ack, at=sequence: ack.heartbeat == at)
            if sequence == 2:
                await replica.loads.flush()
        await replica.loads.flush()
        busy, unknown = await listed(engine, history=False)
        assert unknown == [(None, 7)]
        assert busy[0][0] is not None
        assert 0.2 <= busy[0][0] <= 0.4


async def test_what_heartbeats_say_is_kept_by_minute(engine: AsyncEngine, replica: Replica) -> None:
    async with worker(replica) as w:
        await w.hello(slots=2)
        for sequence, busy in enumerate((0.2, 0.4), 1):
            await w.say(heartbeat=heartbeat(sequence, (0, busy, 100 * sequence), (1, 1.0, 7)))
            await w.hears("ack", lambda ack, at=sequence: ack.heartbeat == at)
        await replica.loads.flush()
        assert await listed(engine, history=False) == [[(pytest.approx(0.3), 200)], [(1.0, 7)]]
        await age(engine, timedelta(minutes=10))
        assert await listed(engine, history=False) == [[], []]  # a load from ten minutes ago is not current
        await w.say(heartbeat=heartbeat(3, (0, 0.9, 50)))
        await w.hears("ack", lambda ack: ack.heartbeat == 3)
        await replica.loads.flush()
        assert await listed(engine, history=False) == [[(0.9, 50)], []]
        assert await listed(engine, history=True) == [[(pytest.approx(0.3), 200), (0.9, 50)], [(1.0, 7)]]


async def test_flushes_within_a_minute_are_one_row_and_an_hour_is_sixty(
    engine: AsyncEngine, replica: Replica
) -> None:
    async with worker(replica) as w:
        await w.hello(slots=1)
        await w.hears("welcome")
        async with transaction(engine) as conn:
            worker_id = (await conn.execute(select(tables.worker.c.id))).scalar_one()

            def measured(samples: int, busy: float, used: int) -> Measured:
                return Measured(
                    worker_id=worker_id, index=0, samples=samples, utilization=busy, memory_used_bytes=used
                )

            await loads.add(conn, [measured(1, 0.0, 10)])
            gone = Measured(worker_id=10**9, index=0, samples=1, utilization=1.0, memory_used_bytes=1)
            await loads.add(conn, [measured(3, 1.0, 5), gone])
            rows = (await conn.execute(select(tables.slot_load))).all()
        assert [(row.samples, row.utilization, row.memory_used_bytes) for row in rows] == [(4, 0.75, 10)]
        await age(engine, timedelta(hours=1))
        async with transaction(engine) as conn:
            await loads.add(conn, [measured(1, 0.5, 1)])
        assert await listed(engine, history=True) == [[(0.5, 1)]]


async def test_measurements_out_of_bounds_are_not_kept(engine: AsyncEngine, replica: Replica) -> None:
    async with worker(replica) as w:
        await w.hello(slots=1)
        await w.hears("welcome")
        await w.say(heartbeat=heartbeat(1, (0, 7.0, 1)))
        await w.hears("ack", lambda ack: ack.heartbeat == 1)
        await replica.loads.flush()
        assert await listed(engine, history=True) == [[]]
