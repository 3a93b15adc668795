"""A database is restored from a copy older than what workers know: nothing is issued twice, and the study
completes."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
import pytest_asyncio
from copied_database import copy_rows
from session_site import TIMING, ScriptedWorker, serving, study, worker
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite

from headrace.v1 import event_pb2, trial_pb2, worker_pb2
from headrace_services.scheduler.core.inputs import Suggest
from headrace_services.scheduler.engine.sweeper import Sweeper
from headrace_services.scheduler.preparing import look_back
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.database import open_engine
from headrace_services.scheduler.store.lineage import notice_restore


@pytest.fixture
def other_url(postgres_url: str, migrated_template: str, database_url: str) -> Iterator[str]:
    """The URL of a second fresh database."""
    name = f"restored_{secrets.token_hex(6)}"
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {migrated_template} STRATEGY FILE_COPY")
    head, _, query = database_url.partition("?")
    yield f"{head.rpartition('/')[0]}/{name}?{query}"
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest_asyncio.fixture
async def restored(other_url: str) -> AsyncIterator[AsyncEngine]:
    """An engine on the second database."""
    opened = open_engine(other_url, pool_size=4)
    yield opened
    await opened.dispose()


def saved(attempt: int, step: int) -> trial_pb2.CheckpointRef:
    """A checkpoint in the study's folder."""
    return trial_pb2.CheckpointRef(uri=f"file:///c/{attempt}/{step}", step=step)


async def report(w: ScriptedWorker, lease: event_pb2.LeaseRef, sequence: int, step: int) -> None:
    """Report a step with its checkpoint, and wait until it is acknowledged."""
    await w.say(
        report=worker_pb2.Report(
            sequence=sequence,
            lease=lease,
            step=step,
            metrics={"loss": 1.0},
            checkpoint=saved(lease.attempt, step),
        )
    )
    await w.hears("ack", lambda ack: sequence in ack.sequences)


async def lose(w: ScriptedWorker, lease: event_pb2.LeaseRef, sequence: int) -> None:
    """Report that a lease was lost."""
    await w.say(
        exited=worker_pb2.Exited(sequence=sequence, lease=lease, outcome=worker_pb2.EXIT_OUTCOME_LOST)
    )
    await w.hears("ack", lambda ack: sequence in ack.sequences)


async def attempts(site: StudySite) -> list[tuple[str, int]]:
    le = tables.lease
    found = await site.rows(select(le.c.id, le.c.attempt).where(le.c.study_id == site.study_id))
    return [(row.id, row.attempt) for row in found]


async def test_nothing_is_issued_twice_and_the_study_completes(
    engine: AsyncEngine, restored: AsyncEngine, database_url: str, other_url: str
) -> None:
    await look_back(engine)
    site = await study(engine, max_steps=9, max_trials=2)
    async with serving(engine, TIMING) as replica, worker(replica) as w:
        await w.hello(home="h")
        replica.hub.kick(site.study_id)
        first = (await w.hears("assign")).lease
        await report(w, first, 1, 1)
        await asyncio.to_thread(copy_rows, database_url, other_url)
        # What the copy does not contain: further reports, two more attempts, another trial.
        await report(w, first, 2, 2)
        await lose(w, first, 3)
        second = (await w.hears("assign", count=2)).lease
        await report(w, second, 4, 4)
        await lose(w, second, 5)
        third = (await w.hears("assign", count=3)).lease
        before = await attempts(site)
    again = StudySite(restored, site.spec)
    again.study_id = site.study_id
    told = await look_back(restored)
    assert told is not None
    assert (told.restores, told.leases) == (1, 1)
    assert await look_back(restored) is None
    async with serving(restored, TIMING) as replica, worker(replica) as w:
        await w.hello(home="h", held=(third,))
        assert list((await w.hears("welcome")).held) == []
        for sequence, lease, step in ((6, first, 3), (7, second, 5), (8, third, 6)):
            await report(w, lease, sequence, step)
        await w.hears("cancel", lambda cancel: cancel.lease.lease_id == third.lease_id)
        await lose(w, third, 9)
        assigned = await w.hears("assign")
        assert (assigned.lease.attempt, assigned.lease.trial) == (1001, first.trial)
        assert assigned.checkpoint.uri == "file:///c/1/1"
        assert (await again.trial(0)).step == 1
        sequence = 10
        for count in (1, 2):
            lease = (await w.hears("assign", count=count)).lease
            await report(w, lease, sequence, 9)
            await lose(w, lease, sequence + 1)
            sequence += 2
        row = await again.study()
        assert row.state == "COMPLETED"
        assert [trial.failures for trial in await again.trials()] == [0, 0]
    after = await attempts(again)
    assert not {lease for lease, _ in before} & {lease for lease, _ in after}
    assert sorted(attempt for _, attempt in after) == [1, 1001, 1001]


async def test_a_worker_that_never_comes_back_holds_nothing(
    engine: AsyncEngine, restored: AsyncEngine, database_url: str, other_url: str
) -> None:
    await look_back(engine)
    site = await study(engine)
    async with serving(engine, TIMING) as replica, worker(replica) as w:
        await w.hello()
        replica.hub.kick(site.study_id)
        await w.hears("assign")
        await asyncio.to_thread(copy_rows, database_url, other_url)
    await look_back(restored)
    again = StudySite(restored, site.spec)
    again.study_id = site.study_id
    async with serving(restored, TIMING) as replica:
        sweeping = asyncio.create_task(Sweeper(replica.hub, lease_ttl_s=0.1).run())
        async with asyncio.timeout(60):
            while (await again.trial(0)).lease_id:
                await asyncio.sleep(0.02)
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
    assert (await again.trial(0)).failures == 0


async def test_a_user_s_own_loop_learns_that_its_lease_is_gone(
    engine: AsyncEngine, restored: AsyncEngine, database_url: str, other_url: str
) -> None:
    await look_back(engine)
    site = await study(engine, template=None)
    await site.step(Suggest(client_id="c", ttl_s=600.0))
    before = (await site.trial(0)).lease_id
    await asyncio.to_thread(copy_rows, database_url, other_url)
    await look_back(restored)
    again = StudySite(restored, site.spec)
    again.study_id = site.study_id
    assert before
    assert (await again.trial(0)).lease_id == f"restored-1.{before}"
    (lease,) = await again.rows(select(tables.lease.c.expires_at <= text("clock_timestamp()")))
    assert lease[0]


async def test_a_copy_of_files_is_noticed_by_what_a_worker_holds(
    engine: AsyncEngine, restored: AsyncEngine, database_url: str, other_url: str
) -> None:
    site = await study(engine, max_trials=2)
    async with serving(engine, TIMING) as replica, worker(replica) as w:
        await w.hello(home="h")
        replica.hub.kick(site.study_id)
        first = (await w.hears("assign")).lease
        await asyncio.to_thread(copy_rows, database_url, other_url)
        await lose(w, first, 1)
        second = (await w.hears("assign", count=2)).lease
    again = StudySite(restored, site.spec)
    again.study_id = site.study_id
    assert await look_back(restored) is None  # the copy carried no fingerprint
    for _ in range(2):  # the repeat is no news
        async with serving(restored, TIMING) as replica, worker(replica) as w:
            await w.hello(home="h", held=(second,))
            assert (await w.hears("assign")).lease.attempt == 1001
        (row,) = await again.rows(select(tables.lineage.c.restores))
        assert row.restores == 1


async def test_an_attempt_that_a_worker_invents_is_no_sign_of_a_copy(engine: AsyncEngine) -> None:
    site = await study(engine)
    async with serving(engine, TIMING) as replica, worker(replica) as w:
        await w.hello(home="h")
        replica.hub.kick(site.study_id)
        held = (await w.hears("assign")).lease
    uid, number, _ = held.lease_id.split(".")
    invented = event_pb2.LeaseRef(lease_id=f"{uid}.{number}.7", trial=held.trial, attempt=7)
    for proof in ("", "0" * 32, held.proof):
        invented.proof = proof
        async with serving(engine, TIMING) as replica, worker(replica) as w:
            await w.hello(home="h", held=(held, invented))
            assert [ref.lease_id for ref in (await w.hears("welcome")).held] == [held.lease_id]
    assert (await site.study()).attempts_from == 0
    assert (await site.trial(0)).lease_id == held.lease_id


async def test_the_same_database_is_not_taken_for_a_copy(engine: AsyncEngine) -> None:
    for _ in range(3):
        assert await look_back(engine) is None
    site = await study(engine)
    assert (await site.study()).attempts_from == 0


async def test_an_ordinary_role_can_tell_which_database_it_is(engine: AsyncEngine) -> None:
    async with engine.begin() as conn:
        await conn.execute(text("CREATE ROLE ordinary"))
        await conn.execute(text("GRANT SELECT, UPDATE ON lineage TO ordinary"))
        await conn.execute(text("SET LOCAL ROLE ordinary"))
        assert await notice_restore(conn) is None
        assert (await conn.execute(select(tables.lineage.c.fingerprint))).scalar_one()
        await conn.rollback()


async def test_a_copy_of_the_files_is_a_copy_when_somebody_says_so(engine: AsyncEngine) -> None:
    site = await study(engine)
    await look_back(engine)
    for restores in (1, 2):
        told = await look_back(engine, certain=True)
        assert told is not None
        assert told.restores == restores
        assert (await site.study()).attempts_from == 1000 * restores


async def test_attempts_continue_above_all_that_the_copy_knows(engine: AsyncEngine) -> None:
    site = await study(engine)
    await site.connect(slots=1)
    await site.kick()
    for known, next_from in ((1499, 2000), (1500, 3000)):
        async with engine.begin() as conn:
            await conn.execute(text("UPDATE trial SET attempt = :known"), {"known": known})
            await conn.execute(text("UPDATE study SET attempts_from = 0"))
        await look_back(engine, certain=True)
        assert (await site.study()).attempts_from == next_from
