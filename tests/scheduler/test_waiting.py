"""Who is offered a free slot: no slot idles while a study could use it."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, make_spec

from headrace_services.scheduler.core import cluster_state, decide
from headrace_services.scheduler.core.inputs import Assignment, Order, PauseTrial, PlaceNow, StopStudy
from headrace_services.scheduler.engine.cycle import CycleResult, run_cycle
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.engine.runner import StudyRunner
from headrace_services.scheduler.engine.submissions import Submission
from headrace_services.scheduler.engine.turns import Turn, Turns
from headrace_services.scheduler.store import tables, workers
from headrace_services.scheduler.store.database import transaction


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
    assert (promoted.number, promoted.attempt) == (0, 2)


async def test_leaving_many_slots_to_many_studies_orders_them_once(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ordering them again for each slot would make a cycle slower the more slots wait, and then more of them would
    wait."""
    studies = [await StudySite(engine, make_spec(max_trials=4)).create() for _ in range(20)]
    for study in studies:
        assert await study.kick() == []
    orders, in_order = 0, cluster_state.in_order

    def counted(*arguments: Any) -> Any:
        nonlocal orders
        orders += 1
        return in_order(*arguments)

    monkeypatch.setattr(cluster_state, "in_order", counted)
    await studies[0].connect(slots=40)
    last = studies[-1]
    assert len(await last.kick()) == 2, "the others go first by age, each as often as it"
    assert last.last is not None
    assert last.last.effects.wake == tuple(study.study_id for study in studies[:-1])
    assert orders <= 6
    monkeypatch.undo()
    assert [len(await study.kick()) for study in studies[:-1]] == [2] * 19


async def test_a_study_that_begins_after_another_one_waits_for_no_slot(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=1)
    st = tables.study
    for after, offered in (("the-gate", []), (None, [site.study_id])):
        async with engine.begin() as conn:
            await conn.execute(update(st).where(st.c.id == site.study_id).values(after=after))
        assert await waiting(engine) == offered


async def test_held_trials_and_ended_studies_wait_for_no_slot(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_trials=1)).create()
    assert await waiting(engine) == []
    await site.kick()
    await site.step(PauseTrial(number=0))
    await site.connect(slots=1)
    assert await waiting(engine) == []
    await site.step(StopStudy(reason=""))
    assert await waiting(engine) == []


@pytest.mark.parametrize(("gpus", "others"), [(1, {"slots": 5}), (2, {"slots": 1, "gpus": 1})])
async def test_slots_that_do_not_suit_hide_none_that_do(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, gpus: int, others: dict[str, int]
) -> None:
    monkeypatch.setattr(decide, "FREE_SLOTS_AT_ONCE", 4)
    site = await StudySite(engine, make_spec(resources={"gpus": gpus})).create()
    for name in "abcde":
        await site.connect(name, **others)
    assert await site.kick() == []
    suitable = await site.connect("f", slots=2, gpus=2)
    leases = await site.kick()
    assert {lease.worker_id for lease in leases} == {suitable}
    assert sum(len(lease.slots) for lease in leases) == 2


@pytest.mark.parametrize("gpus", [0, 2])
async def test_more_free_slots_than_a_step_looks_at_are_left_to_the_next_one(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    size = max(1, gpus)
    monkeypatch.setattr(decide, "FREE_SLOTS_AT_ONCE", 3 * size - 1)
    site = await StudySite(engine, make_spec(resources={"gpus": gpus})).create()
    await site.connect(slots=3 * size, gpus=3 * size)
    assert len(await site.kick()) == 2
    assert site.last is not None
    assert site.last.effects.again
    assert len(await site.kick()) == 1
    assert not site.last.effects.again


async def test_a_trial_goes_to_a_worker_with_its_labels(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(resources={"labels": {"zone": "b"}})).create()
    await site.connect("a", slots=1)
    assert await site.kick() == []
    there = await site.connect("b", slots=1, labels={"zone": "b", "rack": "7"})
    (lease,) = await site.kick()
    assert lease.worker_id == there


async def test_a_study_looks_again_for_slots_that_another_cycle_had_locked(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=2)
    async with asyncio.TaskGroup() as tasks:
        hub = Hub(engine, tasks)
        async with engine.begin() as another:  # locks all slots, takes one of them, and notifies nobody
            await another.execute(select(tables.slot).with_for_update())
            await hub.submit(site.study_id, Submission(input=PlaceNow()))
            assert {row.state for row in await site.trials()} <= {"PENDING"}
            await another.execute(update(tables.slot).where(tables.slot.c.index == 0).values(shared_milli=1))
        async with asyncio.timeout(60):  # no sweeper runs here
            while "RUNNING" not in {row.state for row in await site.trials()}:
                await asyncio.sleep(0.01)
        (running,) = (row for row in await site.trials() if row.state == "RUNNING")
        assert running.number == 0
        await hub.drain()


async def test_a_study_without_use_for_a_slot_does_not_wake_others_forever(engine: AsyncEngine) -> None:
    """One has a trial that is paused and not promoted, the other one waits for a machine that is not available."""
    paused = await StudySite(engine, make_spec(max_trials=3)).create()
    await paused.connect(slots=1)
    await paused.kick()
    await paused.tell(next(iter(paused.leases.values())), 1, 0.5)
    elsewhere = await StudySite(engine, make_spec(resources={"labels": {"zone": "nowhere"}})).create()
    for site in (paused, elsewhere):
        await site.kick()
    busy = next(lease for lease in paused.leases.values() if lease.number == 1)
    await paused.connect("second", slots=1)
    async with engine.begin() as conn:
        held = update(tables.trial).where(
            tables.trial.c.number == 2, tables.trial.c.study_id == paused.study_id
        )
        await conn.execute(held.values(user_paused=True))
    assert busy.live
    cycles = 0

    async with asyncio.TaskGroup() as tasks:
        hub = Hub(engine, tasks)
        kick = hub.kick

        def counting(study_id: int, why: str = "asked") -> None:
            nonlocal cycles
            cycles += 1
            kick(study_id, why)

        hub.kick = counting  # type: ignore[method-assign]
        waking = tasks.create_task(hub.run_waking())
        hub.wake_waiting_studies()
        await asyncio.sleep(1)
        waking.cancel()
        await hub.drain()
    assert 0 < cycles <= 4


async def test_a_slot_that_becomes_free_wakes_the_study_that_is_next_and_nobody_else(
    engine: AsyncEngine,
) -> None:
    ends = await StudySite(engine, make_spec(max_trials=1, policy={"kind": "run_all"})).create()
    await ends.connect(slots=1)
    (lease,) = await ends.kick()
    behind = [await StudySite(engine, make_spec()).create() for _ in range(3)]
    for site in behind:
        assert await site.kick() == []
    await ends.tell(lease, 9, 0.5)
    assert (await ends.study()).state == "COMPLETED"
    assert ends.last is not None
    assert ends.last.effects.wake == (behind[0].study_id,)
    assert not ends.last.effects.slots_left
    assert [len(await site.kick()) for site in reversed(behind)] == [0, 0, 1]


@pytest.mark.cases(1)
@pytest.mark.parametrize("replicas", [1, 2])
async def test_studies_that_wait_for_a_few_slots_do_not_wake_each_other_needlessly(
    engine: AsyncEngine, replicas: int
) -> None:
    """Each trial's end is one cycle, and about one more places the next one; no sweeper helps. With two replicas
    some cycles look again, because the other replica had locked the slot."""
    sites = [
        await StudySite(engine, make_spec(max_trials=3, policy={"kind": "run_all"})).create()
        for _ in range(30)
    ]
    await sites[0].connect(slots=24)
    cycles = reports = 0
    over = asyncio.Event()

    async def train(order: Assignment, site: StudySite) -> None:
        nonlocal reports
        await asyncio.sleep(0.05)
        hub = hubs[order.lease.number % replicas]
        await hub.submit(site.study_id, Submission(input=site.report(order.lease, 9, 0.5)))
        reports += 1
        if reports == 3 * len(sites):
            over.set()

    def deliver(orders: Iterable[Order]) -> None:
        for order in orders:
            if isinstance(order, Assignment):
                site = next(one for one in sites if one.study_id == order.lease.study_id)
                tasks.create_task(train(order, site))

    async with asyncio.TaskGroup() as tasks:
        hubs = [Hub(engine, tasks) for _ in range(replicas)]
        for hub in hubs:
            hub.deliver_with(deliver)
        run = StudyRunner._transact

        async def counted(self: StudyRunner, submissions: Sequence[Submission]) -> CycleResult:
            nonlocal cycles
            cycles += 1
            return await run(self, submissions)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(StudyRunner, "_transact", counted)
            for place, site in enumerate(sites):
                hubs[place % replicas].kick(site.study_id)
            async with asyncio.timeout(60):
                await over.wait()
        for hub in hubs:
            await hub.drain()
    assert cycles < {1: 2.5, 2: 4}[replicas] * reports


async def test_a_cycle_that_learns_of_free_slots_only_to_judge_a_report_answers_no_wake_up(
    engine: AsyncEngine,
) -> None:
    """It takes a turn in which wake-ups would count as answered (`runner`), but it places nothing."""
    site = await StudySite(engine, make_spec(elastic={"spare": 2}, max_parallel=1)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    assert site.last is not None
    assert site.last.effects.looked
    turns, taken = Turns(), list[bool]()
    turn = Turn(turns, lambda: taken.append(True))
    async with transaction(engine) as conn:
        below = Submission(input=site.report(lease, 0, 0.5))
        result = await run_cycle(conn, site.study_id, [below], None, turn)
    turn.give_up()
    assert taken == [True]
    assert not result.effects.looked
