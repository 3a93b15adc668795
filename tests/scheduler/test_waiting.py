"""Who is offered a free slot: no slot idles while some study could use it."""

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, make_spec

from headrace_services.scheduler.arrivals import PauseTrial, StopStudy
from headrace_services.scheduler.store import tables, workers


async def waiting(engine: AsyncEngine) -> list[int]:
    async with engine.connect() as conn:
        return await workers.studies_waiting_for_slots(conn)


async def test_a_study_with_nothing_but_a_promotion_left_is_offered_a_slot(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_trials=3)).create()
    worker_id = await site.connect(slots=1)
    await site.kick()
    for number in range(3):
        lease = next(held for held in site.leases.values() if held.number == number)
        if number == 2:  # the stream breaks just before the last report is committed
            async with engine.begin() as conn:
                await conn.execute(update(tables.worker).values(connected=False))
        await site.tell(lease, 1, 0.5 + number)
    assert {(row.state, row.milestone) for row in await site.trials()} == {("PAUSED", None)}
    assert (await site.study()).state == "ACTIVE"
    assert await waiting(engine) == []
    async with engine.begin() as conn:
        await conn.execute(
            update(tables.worker).where(tables.worker.c.id == worker_id).values(connected=True)
        )
    assert await waiting(engine) == [site.study_id]
    (promoted,) = await site.kick()
    assert (promoted.number, promoted.epoch) == (0, 2)


async def test_held_trials_and_ended_studies_wait_for_no_slot(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_trials=1)).create()
    assert await waiting(engine) == []
    await site.kick()
    await site.step(PauseTrial(number=0))
    await site.connect(slots=1)
    assert await waiting(engine) == []
    await site.step(StopStudy(reason=""))
    assert await waiting(engine) == []
