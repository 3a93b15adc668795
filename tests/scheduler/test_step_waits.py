"""How often a step waits for Postgres: twice where nothing has to be found out in between (decisions 0024, 0028)."""

from collections.abc import Generator
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace.errors import TrialNotFoundError
from headrace_services.scheduler.arrivals import Kick, PauseTrial, ResumeTrial
from headrace_services.scheduler.records import Lease
from headrace_services.scheduler.store import pipeline, tables

STOPPING = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "variant": "stopping"}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many statements each wait so far was for."""
    made: list[int] = []
    talk = pipeline._talk

    def counted(driver: pipeline.Driver, asked: pipeline.Pipeline) -> Generator[Any, Any, None]:
        made.append(len(asked.replies))
        return talk(driver, asked)

    execute = AsyncConnection.execute

    async def by_sqlalchemy(conn: AsyncConnection, *args: Any, **more: Any) -> Any:
        made.append(1)
        return await execute(conn, *args, **more)

    monkeypatch.setattr(pipeline, "_talk", counted)
    monkeypatch.setattr(AsyncConnection, "execute", by_sqlalchemy)
    return made


async def two_at_work(engine: AsyncEngine) -> tuple[StudySite, Lease, Lease]:
    """A study with two trials on two slots, whose cache knows all that a step needs."""
    site = await StudySite(engine, make_spec(policy=STOPPING, max_trials=30)).create()
    await site.connect(slots=2)
    first, second = await site.kick()
    await site.tell(first, 1, 0.5)
    await site.tell(second, 1, 0.5)
    return site, first, second


async def test_a_report_that_frees_nothing_takes_two_waits(engine: AsyncEngine, waits: list[int]) -> None:
    site, first, _ = await two_at_work(engine)
    waits.clear()
    assert (await site.tell(first, 2, 0.5)).action == "CONTINUE"
    assert len(waits) == 2


async def test_an_end_and_the_relaunch_take_two_waits(engine: AsyncEngine, waits: list[int]) -> None:
    site, first, _ = await two_at_work(engine)
    known, _ = set(site.leases), waits.clear()
    await site.step(gone(first, "FINISHED"))
    (started,) = (lease for key, lease in site.leases.items() if key not in known)
    assert started.slots == first.slots
    assert len(waits) == 2


async def test_a_report_that_ends_its_trial_takes_a_third(engine: AsyncEngine, waits: list[int]) -> None:
    site, first, _ = await two_at_work(engine)
    known, _ = set(site.leases), waits.clear()
    assert (await site.tell(first, 9, 0.5)).action == "STOP"
    assert len(site.leases) == len(known) + 1
    assert len(waits) == 3


async def test_what_was_not_asked_for_ahead_is_asked_for_after_all(
    engine: AsyncEngine, waits: list[int]
) -> None:
    """One trial ends by itself and one by its report, in the same step: both slots are given on in it."""
    site, first, second = await two_at_work(engine)
    known, _ = set(site.leases), waits.clear()
    await site.step(gone(first, "FINISHED"), site.report(second, 9, 0.5))
    started = [lease for key, lease in site.leases.items() if key not in known]
    assert {lease.slots for lease in started} == {first.slots, second.slots}
    assert len(waits) == 3


async def test_a_slot_that_is_gone_by_then_is_not_given_on(engine: AsyncEngine, waits: list[int]) -> None:
    """The rows say what can be used again, however early they were asked."""
    site, first, _ = await two_at_work(engine)
    async with engine.begin() as conn:
        await conn.execute(update(tables.worker).values(connected=False))
    known, _ = set(site.leases), waits.clear()
    await site.step(gone(first, "FINISHED"))
    assert set(site.leases) == known
    assert len(waits) == 2
    async with engine.begin() as conn:
        await conn.execute(update(tables.worker).values(connected=True))
    (started,) = await site.kick()
    assert started.slots == first.slots


async def test_a_stale_end_gives_nothing_away_and_asks_for_nothing(
    engine: AsyncEngine, waits: list[int]
) -> None:
    site, first, _ = await two_at_work(engine)
    await site.step(gone(first, "FINISHED"))
    known, _ = set(site.leases), waits.clear()
    await site.step(gone(first, "FINISHED"))
    assert set(site.leases) == known
    assert waits[0] <= 4  # the study, the lease that is over with its slots, its trial: no free slots
    await site.step(gone(first, "FINISHED"), Kick())  # placing, its slot is another's by now
    assert set(site.leases) == known


async def test_slots_that_were_locked_for_nothing_are_offered_to_others(engine: AsyncEngine) -> None:
    """Others passed over them meanwhile, and would not look again."""
    site, _, second = await two_at_work(engine)
    await site.step(PauseTrial(number=second.number))
    await site.connect("b", slots=1)
    (refused,) = await site.step(ResumeTrial(number=99))
    assert isinstance(refused, TrialNotFoundError)
    assert site.last is not None
    assert site.last.slots_left
