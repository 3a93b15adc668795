"""What a scheduler knows of workers' stores: who creates a marker, and which one must be present."""

from session_site import TIMING, Replica, serving, study, worker
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite

from headrace.v1 import worker_pb2
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.database import transaction

URL = "file:///mnt/store"


async def greet(
    replica: Replica, name: str, found: str = "", *, unseen: bool = False, beats: str | None = None
) -> worker_pb2.StoreOrder:
    """Connect a worker that reports what it finds at the address, for one heartbeat at most. Returns the
    scheduler's answer."""
    async with worker(replica) as scripted:
        said = worker_pb2.Store(url=URL, id=found, unseen=unseen)
        await scripted.say(hello=worker_pb2.Hello(protocol=1, worker=name, incarnation="1", store=said))
        order: worker_pb2.StoreOrder = (await scripted.hears("welcome")).store
        if beats is not None:
            await scripted.say(heartbeat=worker_pb2.Heartbeat(sequence=1, store_id=beats))
            await scripted.say(heartbeat=worker_pb2.Heartbeat(sequence=2))
            await scripted.hears("ack", lambda ack: ack.heartbeat == 2)
    return order


async def test_the_first_worker_at_an_address_makes_the_marker_and_no_other_one_after_it_was_seen(
    engine: AsyncEngine,
) -> None:
    async with serving(engine, TIMING) as replica:
        first = await greet(replica, "a", beats="")
        assert (first.set_up, first.used, len(first.id)) == (True, False, 32)
        again = await greet(replica, "a", beats=first.id)
        assert again == first, "it may have died before it made the marker"
        later = await greet(replica, "b")
        assert later == worker_pb2.StoreOrder(id=first.id), "its mount point is empty: that is not the store"
        assert (await greet(replica, "a")).set_up is False


async def test_while_the_first_worker_is_at_it_a_second_one_waits(engine: AsyncEngine) -> None:
    async with serving(engine, TIMING) as replica, worker(replica) as first:
        await first.say(
            hello=worker_pb2.Hello(protocol=1, worker="a", incarnation="1", store=worker_pb2.Store(url=URL))
        )
        order = (await first.hears("welcome")).store
        assert await greet(replica, "b") == worker_pb2.StoreOrder(id=order.id)
        await first.hang_up()
        async with transaction(engine) as conn:
            await conn.execute(update(tables.worker).values(connected=False))
        assert (await greet(replica, "b")).set_up, "the first one is gone"


async def test_a_store_with_a_marker_is_taken_as_it_is(engine: AsyncEngine) -> None:
    """The database is new, but the store is not."""
    async with serving(engine, TIMING) as replica:
        assert await greet(replica, "a", "kept-from-before") == worker_pb2.StoreOrder(id="kept-from-before")
        assert await greet(replica, "b") == worker_pb2.StoreOrder(id="kept-from-before")
        assert (await greet(replica, "c", "another-one")).id == "kept-from-before"


async def test_of_a_store_that_did_not_answer_nothing_is_decided(engine: AsyncEngine) -> None:
    async with serving(engine, TIMING) as replica:
        assert await greet(replica, "a", unseen=True) == worker_pb2.StoreOrder()
        async with transaction(engine) as conn:
            assert (await conn.execute(select(tables.checkpoint_store))).all() == []
        assert (await greet(replica, "a")).set_up


async def test_an_address_with_checkpoints_and_no_marker_must_hold_some(engine: AsyncEngine) -> None:
    site: StudySite = await study(engine)
    async with transaction(engine) as conn:
        kept = {"uri": f"{URL}/studies/s-1/trials/0/1/", "step": 1}
        row = {"study_id": site.study_id, "number": 0, "state": "PENDING", "params": {}, "checkpoint": kept}
        await conn.execute(insert(tables.trial).values(**row))
    async with serving(engine, TIMING) as replica:
        order = await greet(replica, "a")
        assert (order.set_up, order.used) == (True, True)


async def test_a_worker_that_names_no_store_is_told_nothing_of_one(engine: AsyncEngine) -> None:
    async with serving(engine, TIMING) as replica, worker(replica) as scripted:
        await scripted.hello()
        assert not (await scripted.hears("welcome")).HasField("store")
