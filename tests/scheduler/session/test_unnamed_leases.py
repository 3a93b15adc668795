"""Heartbeats extend the leases that they name; a lease that its worker no longer names expires."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
from session_site import DEADLINE_S, Replica, serving, study, worker
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.v1 import event_pb2, worker_pb2
from headrace_services.scheduler.engine.sweeper import Sweeper
from headrace_services.scheduler.session.worker_session import Timing
from headrace_services.scheduler.store import tables

TTL_S = 1.0


@pytest_asyncio.fixture
async def replica(engine: AsyncEngine) -> AsyncIterator[Replica]:
    """A replica with leases of one second."""
    async with serving(engine, Timing(heartbeat_s=0.05, lease_ttl_s=TTL_S)) as running:
        yield running


async def test_a_lease_that_its_worker_does_not_name_expires(engine: AsyncEngine, replica: Replica) -> None:
    site = await study(engine, max_trials=2)
    async with worker(replica) as w, asyncio.timeout(DEADLINE_S):
        await w.hello(slots=2)
        replica.hub.kick(site.study_id)
        named = (await w.hears("assign")).lease
        forgotten = (await w.hears("assign", count=2)).lease
        sweeping = asyncio.create_task(Sweeper(replica.hub, TTL_S).run())
        lost, beat = asyncio.create_task(_lost(engine, forgotten)), 0
        while not lost.done():
            beat += 1
            await w.say(heartbeat=worker_pb2.Heartbeat(sequence=beat, held=[named]))
            await asyncio.sleep(0.05)
        sweeping.cancel()
        assert beat > TTL_S / 0.05 / 2, "not before it was unnamed for about a lease time"
        assert (await _lease(engine, named)).live


async def test_a_lease_that_is_named_again_in_time_continues(engine: AsyncEngine, replica: Replica) -> None:
    site = await study(engine)
    async with worker(replica) as w, asyncio.timeout(DEADLINE_S):
        await w.hello()
        replica.hub.kick(site.study_id)
        lease = (await w.hears("assign")).lease
        await w.say(heartbeat=worker_pb2.Heartbeat(sequence=1))
        while (await _lease(engine, lease)).expires_at is None:
            await asyncio.sleep(0.01)
        await w.say(heartbeat=worker_pb2.Heartbeat(sequence=2, held=[lease]))
        while (await _lease(engine, lease)).expires_at is not None:
            await asyncio.sleep(0.01)
        assert (await _lease(engine, lease)).live


async def _lost(engine: AsyncEngine, lease: event_pb2.LeaseRef) -> None:
    while (await _lease(engine, lease)).live:
        await asyncio.sleep(0.02)


async def _lease(engine: AsyncEngine, lease: event_pb2.LeaseRef) -> Any:
    async with engine.connect() as conn:
        return (await conn.execute(select(tables.lease).where(tables.lease.c.id == lease.lease_id))).one()
