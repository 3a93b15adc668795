"""A worker's session ends with its certificate, even if the connection could last longer."""

import asyncio
from datetime import timedelta

import grpc
import pytest
from session_site import DEADLINE_S, ScriptedWorker, serving, worker
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from headrace.v1 import worker_pb2
from headrace.v1.worker_pb2_grpc import WorkerServiceStub
from headrace_services.identity.shown import WorkerCertificate
from headrace_services.scheduler.session import certificates, servicer
from headrace_services.scheduler.session.worker_session import Timing
from headrace_services.scheduler.store import joins
from headrace_services.scheduler.store.database import transaction

TIMING = Timing(heartbeat_s=0.05, lease_ttl_s=60, stream_age_s=3600)


async def shows(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, lives: timedelta) -> WorkerCertificate:
    """Let each call show a certificate of worker `w` that ends after `lives`."""
    async with transaction(engine) as conn:
        now = await joins.database_time(conn)
    shown = WorkerCertificate(worker="w", issued=now - timedelta(days=1), until=now + lives)
    for module in (servicer, certificates):
        monkeypatch.setattr(module, "certificate_of", lambda _: shown)
    return shown


@pytest.mark.parametrize("seconds", [-3600, 0])
async def test_a_certificate_that_has_ended_opens_no_session_and_judges_no_folder(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """The connection may have started before, or the replica's clock may be behind the database's."""
    await shows(engine, monkeypatch, timedelta(seconds=seconds))
    async with serving(engine, TIMING, certified=True) as replica, worker(replica) as scripted:
        await scripted.hello()
        assert "'w' expired on" in await refused(scripted)
        async with grpc.aio.insecure_channel(replica.address) as channel:
            asked = worker_pb2.JudgeFoldersRequest(folders=["a-b"])
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await WorkerServiceStub(channel).JudgeFolders(asked, timeout=DEADLINE_S)
        assert failure.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_session_ends_with_its_certificate(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker neither renews its certificate nor leaves, and its stream would last for an hour."""
    await shows(engine, monkeypatch, timedelta(hours=1))
    check = joins.check

    async def soon_over(conn: AsyncConnection, shown: WorkerCertificate) -> float:
        return min(await check(conn, shown), 0.05)

    monkeypatch.setattr(joins, "check", soon_over)
    async with serving(engine, TIMING, certified=True) as replica, worker(replica) as scripted:
        await scripted.hello()
        assert "'w' expired on" in await refused(scripted)
        await until_disconnected(engine)


async def refused(scripted: ScriptedWorker) -> str:
    """The reason for which a worker's stream ended."""
    await scripted.ended.wait()
    assert isinstance(scripted.error, grpc.aio.AioRpcError)
    assert scripted.error.code() is grpc.StatusCode.PERMISSION_DENIED
    return str(scripted.error.details())


async def until_disconnected(engine: AsyncEngine) -> None:
    """Wait until the row of the worker says that it is disconnected."""
    connected = True
    while connected:
        await asyncio.sleep(0.01)
        async with transaction(engine) as conn:
            connected = (await conn.execute(text("SELECT connected FROM worker"))).scalar_one()
