"""What guards the copies of rows that a cycle relies on."""

import asyncio

import psycopg
import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from study_site import StudySite, make_spec

from headrace_services.scheduler.core.inputs import Assignment, PauseStudy, PlaceNow, ResumeStudy
from headrace_services.scheduler.core.plan import Plan
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.engine import cycle
from headrace_services.scheduler.engine.cycle import CycleResult
from headrace_services.scheduler.engine.runner import StudyRunner
from headrace_services.scheduler.engine.submissions import Submission
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.apply import apply, is_stale_copy
from headrace_services.scheduler.store.database import transaction


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch, engine: AsyncEngine) -> list[StudySite]:
    """A trial of each study in this list changes between a cycle's reads and its writes, as none of our code does."""
    sites: list[StudySite] = []

    async def changing(conn: AsyncConnection, plan: Plan, *answers: object) -> None:
        if sites:
            t, site = tables.trial, sites.pop()
            async with transaction(engine) as other:
                await other.execute(
                    update(t).where(t.c.study_id == site.study_id, t.c.number == 0).values(attempt=7)
                )
        await apply(conn, plan, *answers)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(cycle, "apply", changing)
    return sites


async def test_a_stale_copy_undoes_the_whole_cycle(engine: AsyncEngine, behind: list[StudySite]) -> None:
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    before = await site.events()
    behind.append(site)
    with pytest.raises(psycopg.errors.DivisionByZero) as raised:
        await site.tell(lease, 1, 0.5)
    assert is_stale_copy(raised.value)
    assert await site.events() == before


async def test_a_runner_reads_again_where_its_copy_was_stale(
    engine: AsyncEngine, behind: list[StudySite]
) -> None:
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    runner = StudyRunner(engine, site.study_id, lambda *_: None)
    behind.append(site)
    task = asyncio.create_task(runner.run())
    settled = await runner.submit(Submission(input=site.report(lease, 1, 0.5)))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not isinstance(settled.outcome, Exception)
    trial = await site.trial(0)
    assert (trial.attempt, trial.step) == (7, 1)


async def test_members_that_an_aborted_cycle_created_are_not_waited_for(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(policy={"kind": "pbt", "interval": 2, "quantile": 0.5}, max_trials=2, max_steps=4)
    site = await StudySite(engine, spec).create()
    await site.connect(slots=2)
    conflicts: list[psycopg.Error] = [psycopg.errors.SerializationFailure()]

    async def losing(conn: AsyncConnection, plan: Plan, *answers: object) -> None:
        if conflicts and plan.changes.created:
            raise conflicts.pop()
        await apply(conn, plan, *answers)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(cycle, "apply", losing)
    leases: list[Lease] = []

    def committed(_: int, result: CycleResult) -> None:
        leases.extend(order.lease for order in result.effects.orders if isinstance(order, Assignment))

    runner = StudyRunner(engine, site.study_id, committed)
    task = asyncio.create_task(runner.run())
    for command in (PauseStudy(), ResumeStudy(), PlaceNow()):
        await runner.submit(Submission(input=command))
    assert not conflicts
    for lease in leases[:2]:
        await runner.submit(Submission(input=site.report(lease, 2, float(lease.number))))
    await runner.submit(Submission(input=PlaceNow()))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [trial.milestone for trial in await site.trials()] == [4, 4], "both are there, so both go on"
