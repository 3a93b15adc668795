"""The copies of rows that a step goes by: what guards them, and what is kept of the trials that could start."""

import asyncio

import psycopg
import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from study_site import StudySite, make_spec

from headrace_services.scheduler.arrivals import Accepted, AddTrials, PauseTrial, ResumeTrial
from headrace_services.scheduler.records import Trial
from headrace_services.scheduler.step import live
from headrace_services.scheduler.step.runner import StudyRunner
from headrace_services.scheduler.step.submissions import Submission
from headrace_services.scheduler.store import step_reads, tables
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.step_writes import is_stale_copy

read_runnable = step_reads.runnable_trials


async def change_behind(site: StudySite, engine: AsyncEngine) -> None:
    """Changes a trial without the study's lock and without an event, as nothing of ours does."""
    t = tables.trial
    async with transaction(engine) as conn:
        await conn.execute(update(t).where(t.c.study_id == site.study_id, t.c.number == 0).values(epoch=7))


async def test_a_stale_copy_undoes_the_whole_step(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    before = await site.events()
    await change_behind(site, engine)
    with pytest.raises(psycopg.errors.DivisionByZero) as raised:
        await site.tell(lease, 1, 0.5)
    assert is_stale_copy(raised.value)
    assert await site.events() == before


async def test_a_runner_reads_anew_where_its_copy_was_stale(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    runner = StudyRunner(engine, site.study_id, lambda *_: None)
    runner._cache = site.cache
    await change_behind(site, engine)
    task = asyncio.create_task(runner.run())
    settled = await runner.submit(Submission(arrival=site.report(lease, 1, 0.5)))
    assert isinstance(settled.outcome, Accepted)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    trial = await site.trial(0)
    assert (trial.epoch, trial.step) == (7, 1)


async def test_trials_that_could_start_are_read_once(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the copies say the same as the rows, through every way in which trials come and go."""
    reads: list[int] = []

    async def counting(conn: AsyncConnection, study_id: int, limit: int) -> list[Trial]:
        found = await read_runnable(conn, study_id, limit)
        reads.append(len(found))
        return found

    monkeypatch.setattr(step_reads, "runnable_trials", counting)
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=2)
    leases = await site.kick()
    await site.step(AddTrials(params=({"x": 0.25}, {"x": 0.5})))
    for lease in leases:
        await site.tell(lease, 1, 0.5)
    waiting = [number for number in await kept(site) if number > 1]
    await site.step(PauseTrial(number=waiting[0]))
    assert waiting[0] not in await kept(site)
    await site.step(ResumeTrial(number=waiting[0]))
    assert waiting[0] in await kept(site)
    assert len(reads) == 1
    site.cache = None  # another replica
    await site.kick()
    assert len(reads) == 2


async def test_too_many_that_could_start_are_not_kept(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MOST_WAITING", 6)
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=1)
    await site.kick()
    assert site.cache is not None
    assert site.cache.live.waiting is not None
    await site.step(AddTrials(params=tuple({"x": n / 10} for n in range(10))))
    assert site.cache.live.waiting is None
    await site.kick()
    assert site.cache.live.waiting is None, "a part of them is not all"


async def kept(site: StudySite) -> list[int]:
    """The numbers that are kept; they are those that the rows say."""
    assert site.cache is not None
    assert site.cache.live.waiting is not None
    async with transaction(site.engine) as conn:
        found = await read_runnable(conn, site.study_id, 1000)
    assert {trial.number: trial.params for trial in found} == {
        number: trial.params for number, trial in site.cache.live.waiting.items()
    }
    return sorted(site.cache.live.waiting)
