"""When a certificate admits its worker, and when no longer: after its end, or after a revocation, which lasts as
long."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest
from sqlalchemy import text, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from headrace.errors import WorkerIdentityError, WorkerRevokedError
from headrace_services.identity import join_tokens
from headrace_services.identity.shown import WorkerCertificate
from headrace_services.scheduler.store import joins, tables
from headrace_services.scheduler.store.database import open_engine, transaction
from headrace_services.scheduler.store.workers import Greeting, greet

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
KEY = b"k" * 32


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    opened = open_engine(database_url, pool_size=4)
    yield opened
    await opened.dispose()


async def joined(conn: AsyncConnection, lives: timedelta) -> WorkerCertificate:
    """The certificate of worker `w`, which joins."""
    token = join_tokens.new_token()
    await joins.create(conn, token, worker="w", uses=1, lifetime=HOUR)
    now = await joins.database_time(conn)
    await joins.join(conn, token, worker="w", key_digest=KEY, now=now, until=now + lives)
    return WorkerCertificate(worker="w", issued=now, until=now + lives)


async def renewed(conn: AsyncConnection, shown: WorkerCertificate, lives: timedelta) -> WorkerCertificate:
    """The worker's next certificate."""
    now = await joins.database_time(conn)
    await joins.renew(conn, shown, key_digest=KEY, now=now, until=now + lives)
    return WorkerCertificate(worker="w", issued=now, until=now + lives)


async def pass_by(
    conn: AsyncConnection, time: timedelta, *shown: WorkerCertificate
) -> list[WorkerCertificate]:
    """Let time pass: everything recorded, and what a worker shows, is older."""
    earlier = {column.name: column - time for column in tables.joined_worker.c if "_time" in column.name}
    until = tables.joined_worker.c.certificate_until - time
    await conn.execute(update(tables.joined_worker).values({**earlier, "certificate_until": until}))
    return [
        WorkerCertificate(worker=one.worker, issued=one.issued - time, until=one.until - time)
        for one in shown
    ]


async def test_a_revocation_lasts_as_long_as_any_certificate_though_lifetimes_were_shortened(
    engine: AsyncEngine,
) -> None:
    async with transaction(engine) as conn:
        long = await joined(conn, 30 * DAY)
        short = await renewed(conn, long, HOUR)
        assert await joins.revoke_worker(conn, "w")
        long, short = await pass_by(conn, 20 * DAY, long, short)
        await joins.forget_old(conn, 10)
        with pytest.raises(WorkerRevokedError):
            await joins.check(conn, long)
        (long,) = await pass_by(conn, 20 * DAY, long)
        assert await joins.forget_old(conn, 10) == 1, "it ended ten days ago"
        with pytest.raises(WorkerIdentityError, match="expired on"):
            await joins.check(conn, long)


async def test_a_certificate_that_has_ended_lets_nobody_in(engine: AsyncEngine) -> None:
    """gRPC checks it when a connection starts, and a connection lasts for half an hour."""
    async with transaction(engine) as conn:
        shown = await joined(conn, HOUR)
        assert 3590 < await joins.check(conn, shown) <= 3600
        (ended,) = await pass_by(conn, HOUR, shown)
        with pytest.raises(WorkerIdentityError, match="'w' expired on") as refused:
            await joins.check(conn, ended)
        assert "--worker w" in refused.value.remedy
        now: datetime = await joins.database_time(conn)
        with pytest.raises(WorkerIdentityError, match="expired on"):
            await joins.renew(conn, ended, key_digest=KEY, now=now, until=now + HOUR)


async def test_a_worker_of_which_a_restored_database_knows_no_join_is_shut_out_too(
    engine: AsyncEngine,
) -> None:
    async with transaction(engine) as conn:
        now = await joins.database_time(conn)
        shown = WorkerCertificate(worker="w", issued=now, until=now + 30 * DAY)
        await greet(conn, greeting(shown), 60)
        assert await joins.revoke_worker(conn, "w")
        with pytest.raises(WorkerRevokedError):
            await joins.check(conn, shown)
        (shown,) = await pass_by(conn, 20 * DAY, shown)
        await joins.forget_old(conn, 10)
        with pytest.raises(WorkerRevokedError):
            await joins.check(conn, shown)
        assert not await joins.revoke_worker(conn, "never connected")


async def test_a_session_that_begins_while_its_worker_is_shut_out_is_none(engine: AsyncEngine) -> None:
    async with transaction(engine) as conn:
        shown = await joined(conn, DAY)

    async def revoked() -> None:
        async with transaction(engine) as conn:
            await joins.revoke_worker(conn, "w")

    async with transaction(engine) as conn:
        await joins.check(conn, shown)
        revoking = asyncio.create_task(revoked())
        while not revoking.done() and not await someone_waits(engine):
            await asyncio.sleep(0.01)
        _, number = await greet(conn, greeting(shown), 60)
    await revoking
    async with transaction(engine) as conn:
        found = (await conn.execute(text("SELECT session, connected FROM worker"))).one()
    assert found.session > number
    assert not found.connected


async def someone_waits(engine: AsyncEngine) -> bool:
    """Whether a transaction waits for another one."""
    async with transaction(engine) as conn:
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
        return bool((await conn.execute(text(waits))).scalar_one())


def greeting(shown: WorkerCertificate) -> Greeting:
    """The greeting of worker `w` when it connects."""
    return Greeting(
        name="w",
        incarnation="1",
        devices=(),
        labels={},
        version="",
        log_dir="",
        certificate_until=shown.until,
    )
