"""Rows that are no longer needed are deleted a few at a time, and nothing else waits for that."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from session_site import Replica, study, worker
from sqlalchemy import delete, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone

from headrace import worker_labels
from headrace.ages import Ages
from headrace_services.scheduler.engine.janitor import Janitor
from headrace_services.scheduler.engine.sweeper import Sweeper
from headrace_services.scheduler.store import cluster, database, tables, trials

OLD = 400
"""Answers to old requests. A trigger delays each deletion so much that all together exceed the statement timeout.
"""


@pytest_asyncio.fixture
async def engine(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncEngine]:
    """An engine with a statement timeout of half a second."""
    monkeypatch.setattr(database, "STATEMENT_TIMEOUT_MS", 500)
    opened = database.open_engine(database_url, pool_size=4)
    yield opened
    await opened.dispose()


async def many_old_requests(engine: AsyncEngine) -> None:
    async with engine.begin() as conn:
        await conn.execute(
            text(
                "INSERT INTO request (request_id, method, digest, response, time)"
                " SELECT 'r' || n, 'M', '', '', clock_timestamp() - interval '2 days' FROM generate_series(1, :n) n"
            ),
            {"n": OLD},
        )
        await conn.execute(
            text(
                "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN PERFORM pg_sleep(0.003); RETURN OLD; END $$"
            )
        )
        await conn.execute(
            text("CREATE TRIGGER slow BEFORE DELETE ON request FOR EACH ROW EXECUTE FUNCTION slow()")
        )


async def test_leases_expire_while_old_requests_pile_up(engine: AsyncEngine, replica: Replica) -> None:
    site = await study(engine)
    await many_old_requests(engine)
    async with worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        await w.hears("assign")
        async with engine.begin() as conn:
            await conn.execute(update(tables.worker).values(expires_at=tables.worker.c.session_time))
        sweeper = Sweeper(replica.hub, lease_ttl_s=0.1)
        sweeping = asyncio.create_task(sweeper.run())
        async with asyncio.timeout(60):
            while not (await site.trial(0)).interruptions:
                await asyncio.sleep(0.01)
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)


async def test_workers_that_are_gone_for_long_leave_their_name_to_past_attempts(
    engine: AsyncEngine,
) -> None:
    site = await study(engine)
    used = await site.connect("used", slots=1)
    (lease,) = await site.kick()
    await site.step(gone(lease, "FINISHED"))
    unused, lately = await site.connect("unused"), await site.connect("lately")
    other = await study(engine)
    holding = await other.connect("holding", slots=1)
    async with engine.begin() as conn:
        away = update(tables.worker).values(connected=False, last_seen=text("now() - interval '8 days'"))
        await conn.execute(away.where(tables.worker.c.id.in_([used, unused])))
        await conn.execute(
            update(tables.worker)
            .where(tables.worker.c.id == lately)
            .values(connected=False, last_seen=text("now() - interval '6 days'"))
        )
    await other.kick()
    async with engine.begin() as conn:
        await conn.execute(away.where(tables.worker.c.id == holding))
    await Janitor(engine).clean()
    assert await ids(site, tables.worker.c.id) == {used, lately, holding}
    assert await ids(site, tables.slot.c.worker_id) == {lately, holding}
    async with engine.connect() as conn:
        listed = await cluster.workers_after(conn, name="", limit=10)
        (shown,) = await trials.views(conn, tables.trial.c.study_id == site.study_id)
    assert {key.name for key in listed} == {f"{site.name}-lately", f"{other.name}-holding"}
    assert shown.last_worker == f"{site.name}-used"
    async with engine.begin() as conn:
        await conn.execute(delete(tables.study).where(tables.study.c.id == site.study_id))
    await Janitor(engine).clean()
    assert await ids(site, tables.worker.c.id) == {lately, holding}


async def test_ephemeral_workers_are_removed_as_soon_as_they_are_gone_whatever_the_age(
    engine: AsyncEngine,
) -> None:
    site = await study(engine)
    used = await site.connect("used", slots=1)
    (lease,) = await site.kick()
    await site.step(gone(lease, "FINISHED"))
    names = ("left", "killed", "away", "here", "lasting")
    left, killed, away, here, lasting = [await site.connect(name) for name in names]
    w = tables.worker
    async with engine.begin() as conn:
        mine = w.c.id.in_([used, left, killed, away, here])
        await conn.execute(update(w).where(mine).values(labels={worker_labels.EPHEMERAL: "yes"}))
        gone_now = update(w).values(connected=False, leaving="idle for 10m")
        await conn.execute(gone_now.where(w.c.id.in_([used, left, lasting])))
        silent = update(w).values(connected=False, last_seen=text("now() - interval '3 minutes'"))
        await conn.execute(silent.where(w.c.id == killed))
        await conn.execute(update(w).where(w.c.id == away).values(connected=False))
        await conn.execute(update(w).where(w.c.id == here).values(leaving="SIGTERM"))
    await Janitor(engine, Ages(workers=None)).clean()
    assert await ids(site, w.c.id) == {used, away, here, lasting}, (
        "a past attempt shows the name of the first"
    )
    assert await ids(site, tables.slot.c.worker_id) == {away, here, lasting}
    async with engine.connect() as conn:
        listed = await cluster.workers_after(conn, name="", limit=10)
    assert {key.name for key in listed} == {f"{site.name}-{name}" for name in ("away", "here", "lasting")}


async def ids(site: StudySite, column: Any) -> set[int]:
    return {row[0] for row in await site.rows(select(column))}


async def test_old_requests_are_deleted_in_parts_that_fit_the_statement_timeout(engine: AsyncEngine) -> None:
    await many_old_requests(engine)
    async with engine.begin() as conn:
        await conn.execute(
            text("INSERT INTO request (request_id, method, digest, response) VALUES ('new', 'M', '', '')")
        )
    await Janitor(engine).clean()
    async with engine.connect() as conn:
        assert (await conn.execute(select(tables.request.c.request_id))).scalars().all() == ["new"]
