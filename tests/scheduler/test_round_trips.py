"""How many round trips to Postgres a cycle makes: two if it only processes reports, at most four if it places."""

from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace_services.scheduler.core.inputs import PlaceNow
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.store import pipeline, tables
from headrace_services.scheduler.store.pipeline import Pipeline

STOPPING = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "variant": "stopping"}
PROMOTION = {**STOPPING, "variant": "promotion"}


class Trips:
    """The round trips so far, each with the texts of its statements."""

    def __init__(self) -> None:
        self.made: list[list[str]] = []

    def __len__(self) -> int:
        return len(self.made)

    def clear(self) -> None:
        self.made.clear()

    @property
    def slots_locked(self) -> bool:
        """Whether slots were locked."""
        return any("FOR UPDATE OF slot" in text for texts in self.made for text in texts)


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    trips = Trips()
    send = pipeline.send

    async def counted(driver: Any, asked: Pipeline) -> None:
        trips.made.append([reply.statement.text.decode() for reply in asked.replies])
        await send(driver, asked)

    execute = AsyncConnection.execute

    async def by_sqlalchemy(conn: AsyncConnection, *args: Any, **more: Any) -> Any:
        trips.made.append([str(args[0])])
        return await execute(conn, *args, **more)

    monkeypatch.setattr(pipeline, "send", counted)
    monkeypatch.setattr(AsyncConnection, "execute", by_sqlalchemy)
    return trips


async def two_at_work(engine: AsyncEngine, **policy: Any) -> tuple[StudySite, Lease, Lease]:
    """A study with two trials on two slots, past their first report."""
    site = await StudySite(engine, make_spec(policy={**STOPPING, **policy}, max_trials=30)).create()
    await site.connect(slots=2)
    first, second = await site.kick()
    await site.tell(first, 1, 0.5)
    await site.tell(second, 1, 0.5)
    return site, first, second


async def test_reports_take_two_round_trips_and_lock_no_slot(engine: AsyncEngine, trips: Trips) -> None:
    site, first, second = await two_at_work(engine)
    trips.clear()
    await site.step(site.report(first, 2, 0.5), site.report(second, 2, 0.5))
    assert len(trips) == 2
    assert not trips.slots_locked


@pytest.mark.parametrize("by", ["its end", "its last report"])
async def test_an_end_and_the_relaunch_take_four_round_trips(
    engine: AsyncEngine, trips: Trips, by: str
) -> None:
    site, first, _ = await two_at_work(engine)
    known, _ = set(site.leases), trips.clear()
    await site.step(gone(first, "FINISHED") if by == "its end" else site.report(first, 9, 0.5))
    (started,) = (lease for key, lease in site.leases.items() if key not in known)
    assert started.slots == first.slots
    assert len(trips) == 4
    assert trips.slots_locked


async def test_a_promotion_is_loaded_with_the_trials_that_could_start(
    engine: AsyncEngine, trips: Trips
) -> None:
    spec = make_spec(policy=PROMOTION, max_trials=3)
    site = await StudySite(engine, spec).create()
    await site.connect(slots=1)
    await site.kick()
    for place in range(2):
        await site.tell(list(site.leases.values())[-1], 1, place / 10)
    trips.clear()
    await site.tell(list(site.leases.values())[-1], 1, 0.9)  # the third result promotes the first trial
    assert len(trips) == 4
    assert (await site.trial(0)).state == "RESUMED"


async def test_a_slot_that_is_gone_by_then_is_not_given_on(engine: AsyncEngine) -> None:
    site, first, _ = await two_at_work(engine)
    async with engine.begin() as conn:
        await conn.execute(update(tables.worker).values(connected=False))
    known = set(site.leases)
    await site.step(gone(first, "FINISHED"))
    assert set(site.leases) == known
    async with engine.begin() as conn:
        await conn.execute(update(tables.worker).values(connected=True))
    (started,) = await site.kick()
    assert started.slots == first.slots


async def test_a_stale_end_gives_nothing_away_and_locks_no_slot(engine: AsyncEngine, trips: Trips) -> None:
    site, first, _ = await two_at_work(engine)
    await site.step(gone(first, "FINISHED"))
    known, _ = set(site.leases), trips.clear()
    await site.step(gone(first, "FINISHED"))
    assert set(site.leases) == known
    assert not trips.slots_locked
    await site.step(gone(first, "FINISHED"), PlaceNow())  # while it places, another study takes its slot
    assert set(site.leases) == known


async def test_a_freed_seat_is_given_on_in_four_round_trips(engine: AsyncEngine, trips: Trips) -> None:
    spec = make_spec(policy={"kind": "run_all"}, max_trials=30, fuse={"most": 3})
    site = await StudySite(engine, spec).create()
    await site.connect(slots=2)
    first, *_ = await site.kick()
    known, _ = set(site.leases), trips.clear()
    await site.tell(first, 9, 0.5)
    (joined,) = (lease for key, lease in site.leases.items() if key not in known)
    assert joined.grant is not None
    assert joined.grant.id == first.id
    assert len(trips) == 4
