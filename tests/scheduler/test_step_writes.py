"""What a cycle writes for a trial that it creates and launches, and for a slot that changes hands without ever
being free; and what guards that."""

from typing import Any

import psycopg
import pytest
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace_services.scheduler.core.lifecycle import State
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.store import apply, tables
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.pipeline import Pipeline, Statement

STOPPING = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "variant": "stopping"}


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[Statement]:
    """The statements of all cycles so far."""
    statements: list[Statement] = []
    run = Pipeline.run

    def noted(sent: Pipeline, statement: Statement, *args: Any, **values: Any) -> Any:
        statements.append(statement)
        return run(sent, statement, *args, **values)

    monkeypatch.setattr(Pipeline, "run", noted)
    return statements


async def at_work(engine: AsyncEngine) -> tuple[StudySite, Lease]:
    site = await StudySite(engine, make_spec(policy=STOPPING)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.tell(lease, 1, 0.5)
    return site, lease


async def held_by(site: StudySite) -> str | None:
    async with transaction(site.engine) as conn:
        found: str | None = (await conn.execute(select(tables.slot.c.grant_id))).scalar_one()
        return found


async def occupy_behind(site: StudySite, lease_id: str | None) -> None:
    async with transaction(site.engine) as conn:
        await conn.execute(update(tables.slot).values(grant_id=lease_id))


async def test_a_trial_that_is_launched_at_once_runs_in_its_row(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy=STOPPING)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    trial = await site.trial(lease.number)
    assert (trial.state, trial.lease_id, trial.attempt) == (State.RUNNING, lease.id, 1)
    assert trial.create_time is not None
    assert trial.start_time is not None
    assert trial.create_time <= trial.start_time
    assert trial.end_time is None
    told = [event.kind for event in await site.events() if event.number == lease.number]
    assert told[:2] == ["trial_created", "trial_moved"]


async def test_a_slot_goes_from_one_trial_to_the_next_in_one_write(
    engine: AsyncEngine, said: list[Statement]
) -> None:
    site, first = await at_work(engine)
    said.clear()
    await site.step(gone(first, "FINISHED"))
    assert apply._VACATE_SLOTS not in said
    assert said.count(apply._OCCUPY_SLOTS) == 1
    holder = await held_by(site)
    assert holder not in (None, first.id)
    assert holder in site.leases


async def test_a_slot_that_nothing_follows_on_is_vacated(engine: AsyncEngine, said: list[Statement]) -> None:
    site = await StudySite(engine, make_spec(policy=STOPPING, max_trials=1)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    said.clear()
    await site.step(gone(lease, "FINISHED"))
    assert apply._OCCUPY_SLOTS not in said
    assert await held_by(site) is None


async def test_a_slot_that_was_vacated_before_is_given_on_anyway(engine: AsyncEngine) -> None:
    site, first = await at_work(engine)
    await occupy_behind(site, None)
    await site.step(gone(first, "FINISHED"))
    assert await held_by(site) not in (None, first.id)


async def test_a_slot_that_another_lease_has_got_is_not_taken_from_it(engine: AsyncEngine) -> None:
    site, first = await at_work(engine)
    other = await StudySite(engine, make_spec(policy=STOPPING)).create()
    await other.connect(slots=1)
    theirs = (await other.kick())[0]
    async with transaction(engine) as conn:
        mine = tables.slot.c.grant_id == first.id
        await conn.execute(update(tables.slot).where(mine).values(grant_id=theirs.id))
    with pytest.raises(psycopg.errors.DivisionByZero) as raised:
        await site.step(gone(first, "FINISHED"))
    assert apply.is_stale_copy(raised.value)
