"""Ephemeral slots on a real database: who announces them, who gets them, and what happens when their owner takes
them back."""

from typing import Any

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace_services.scheduler.core.capacity import TurnCost
from headrace_services.scheduler.core.inputs import Preemption
from headrace_services.scheduler.core.placement import Request
from headrace_services.scheduler.replay.replaying import replay
from headrace_services.scheduler.store import cluster, placement, tables, workers
from headrace_services.scheduler.store.database import transaction

FIRST = 10_000
RUN_ALL = {"kind": "run_all"}


def stage(number: int, *, memory_bytes: int = 8, defect: str = "", kind: str = "CPU") -> workers.Device:
    return workers.Device(
        index=FIRST + number,
        kind=kind,
        model="",
        memory_bytes=memory_bytes,
        uuid=f"stage-{number}",
        defect=defect,
        owner="gpt",
        stage=number,
        duty=0.25,
    )


def own(index: int, kind: str = "CPU") -> workers.Device:
    return workers.Device(index=index, kind=kind, model="", memory_bytes=8, uuid="")


async def greet(site: StudySite, *devices: workers.Device, name: str = "w") -> tuple[int, int]:
    greeting = workers.Greeting(
        name=f"{site.name}-{name}", incarnation="1", devices=devices, labels={}, version="", log_dir="/l"
    )
    async with transaction(site.engine) as conn:
        return await workers.greet(conn, greeting, 3600)


async def beside(engine: AsyncEngine, *devices: workers.Device, **changes: Any) -> StudySite:
    site = await StudySite(engine, make_spec(**{"bubbles": True, **changes})).create()
    await greet(site, *devices)
    return site


async def usage(site: StudySite) -> dict[str, Any]:
    return (await site.study()).standing["usage"]


async def test_trials_of_a_study_that_allows_it_get_them_after_all_others(engine: AsyncEngine) -> None:
    site = await beside(engine, stage(1), own(0))
    alone, there = await site.kick()
    assert (alone.slots, alone.owner_stage) == ((0,), "")
    assert (there.slots, there.owner_stage) == ((FIRST + 1,), "job gpt, stage 1")
    assert list((await site.trial(1)).bubbles) == ["job gpt, stage 1"]
    held = await usage(site)
    assert (held["cpu_slots"], held["bubble_slots"]) == (1, 1)
    (told,) = await site.events("trial_placed")
    assert told.message == "trial 1 placed (bubbles): in bubbles of job gpt, stage 1"
    async with engine.connect() as conn:
        assert (await placement.totals(conn)).cpu_slots == 1
        assert await cluster.connected_slots(conn) == 1
        [worker] = await cluster.workers(conn, [cluster.Key(name=f"{site.name}-w", slots=2)])
    assert [slot.model for slot in worker.slots] == ["", "in bubbles of job gpt, stage 1"]


async def test_a_replay_knows_that_a_promotion_to_the_last_rung_waits_for_a_slot_of_its_own(
    engine: AsyncEngine,
) -> None:
    """Others start in bubbles meanwhile."""
    asha = {"kind": "asha", "eta": 2, "rungs": [1, 2], "variant": "promotion"}
    site = await beside(engine, stage(1), own(0), policy=asha, max_steps=2)
    await site.kick()
    for number, value in ((1, 0.2), (2, 0.3)):
        await site.tell(site.leases[(await site.trial(number)).lease_id], 1, value)
    best, newest = await site.trial(1), await site.trial(3)
    assert (best.state, list(newest.bubbles)) == ("PAUSED", ["job gpt, stage 1"])
    found = replay(site.spec, await site.log())
    assert found.identical, found.differences


async def test_others_never_see_them(engine: AsyncEngine) -> None:
    site = await beside(engine, stage(1), bubbles=False)
    assert await site.kick() == []
    async with engine.connect() as conn:
        assert site.study_id not in await workers.studies_waiting_for_slots(conn)
    allowed = await StudySite(engine, make_spec(bubbles=True)).create()
    async with engine.connect() as conn:
        assert allowed.study_id in await workers.studies_waiting_for_slots(conn)


@pytest.mark.parametrize(("memory_bytes", "seats"), [(1, 0), (2, 1), (5, 2), (8, 4)])
async def test_a_bundle_has_as_many_seats_as_its_stage_has_memory_for(
    engine: AsyncEngine, memory_bytes: int, seats: int
) -> None:
    """A full bundle of four needs 8 bytes."""
    asked = {"gpus": 1, "gpu_memory_bytes": 8}
    site = await beside(
        engine, stage(0, memory_bytes=memory_bytes, kind="GPU"), resources=asked, fuse={"most": 4}
    )
    leases = await site.kick()
    assert len(leases) == seats
    assert {lease.grant.seats for lease in leases if lease.grant} == ({seats} if seats else set())


async def test_what_a_bundle_costs_in_bubbles_says_nothing_of_other_slots(engine: AsyncEngine) -> None:
    """Turns are slow there, and memory runs out early. A bundle on an ordinary slot is as large as ever."""
    site = await beside(engine, stage(0), fuse={"most": 4}, max_trials=4)
    there = await site.kick()
    assert [bool(lease.owner_stage) for lease in there] == [True] * 4
    await site.step(site.report(there[0], 1, 0.5, turn=TurnCost(members=4, turns=9, time_s=900.0)))
    for lease in there:
        await site.step(gone(lease, "LOST", error="its bundle ran out of memory", out_of_memory=4))
    async with transaction(engine) as conn:
        await conn.execute(update(tables.study).values(planned=8).where(tables.study.c.id == site.study_id))
    await greet(site, own(0), name="w2")
    leases = await site.kick()
    seats = {bool(lease.owner_stage): lease.grant.seats for lease in leases if lease.grant}
    assert seats[False] == 4
    assert seats.get(True, 2) == 2


async def test_the_last_rung_runs_there_only_where_nothing_else_ever_could(engine: AsyncEngine) -> None:
    site = await beside(engine, stage(0), policy=RUN_ALL, max_trials=2)
    [lease] = await site.kick()
    assert lease.owner_stage
    await greet(site, own(0), name="w2")
    [other] = await site.kick()
    assert other.owner_stage == ""
    assert (await site.tell(lease, 9, 0.5)).action == "STOP"


async def test_a_member_moves_to_a_slot_of_its_own_at_its_rung(engine: AsyncEngine) -> None:
    site = await beside(
        engine, stage(0), fuse={"most": 2}, max_trials=2, policy={"kind": "median", "rungs": [3, 6, 9]}
    )
    first, second = await site.kick()
    assert first.owner_stage == second.owner_stage == "job gpt, stage 0"
    await greet(site, own(0), name="w2")
    assert (await site.tell(first, 2, 0.5)).action == "CONTINUE", "not before its rung"
    assert (await site.tell(first, 3, 0.5)).action == "PAUSE"
    moved = site.leases[f"{(await site.study()).uid}.0.2"]
    assert (moved.owner_stage, moved.step) == ("", 3), "in the same cycle, from its checkpoint"
    assert (await site.tell(second, 3, 0.4)).action == "PAUSE", "a seat of its own is free"
    joined = site.leases[f"{(await site.study()).uid}.1.2"]
    assert joined.grant is not None
    assert joined.grant.id == moved.id
    assert {row.failures + row.interruptions for row in await site.trials()} == {0}
    held = await usage(site)
    assert (held["cpu_slots"], held["bubble_slots"]) == (1, 0)


async def test_nobody_waits_for_them_or_asks_who_is_there_to_leave(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(bubbles=True, max_trials=2)).create()
    worker_id, _ = await greet(site, stage(0), own(0))
    alone, there = await site.kick()
    assert there.owner_stage
    request = Request.of(site.spec.resources)
    async with engine.connect() as conn:
        assert [run.leases[0].id for run in await placement.running_on(conn, {worker_id})] == [alone.id]
        found = [slot for slot in await placement.devices(conn, request) if slot.worker_id == worker_id]
        assert [slot.index for slot in found] == [0]


async def take_back_by_heartbeat(site: StudySite, worker_id: int, session: int) -> None:
    async with transaction(site.engine) as conn:
        await workers.note_defects(conn, worker_id, session, {FIRST: "job gpt has ended"})


async def take_back_by_hello(site: StudySite, worker_id: int, session: int) -> None:
    assert (await greet(site)) == (worker_id, session + 1)


@pytest.mark.parametrize("take_back", [take_back_by_heartbeat, take_back_by_hello])
async def test_a_slot_that_is_taken_back_is_left_at_the_next_report_and_nobody_is_charged(
    engine: AsyncEngine, take_back: Any
) -> None:
    site = await StudySite(engine, make_spec(bubbles=True, max_trials=1)).create()
    worker_id, session = await greet(site, stage(0))
    [lease] = await site.kick()
    await take_back(site, worker_id, session)
    [asked] = await site.rows(select(tables.leave).where(tables.leave.c.study_id == site.study_id))
    assert (asked.grant_id, asked.for_study_id, asked.at_report) == (lease.id, None, True)
    assert (await site.tell(lease, 1, 0.9, saved=False)).action == "CONTINUE", "not without a checkpoint"
    site.fold = None
    decision = await site.tell(lease, 2, 0.8)
    assert (decision.action, decision.reason.partition(":")[0]) == (
        "PAUSE",
        "the bubbles that it runs in are gone",
    )
    trial = await site.trial(0)
    assert (trial.state, trial.milestone, trial.failures, trial.losses_in_row) == ("PAUSED", 3, 0, 0)
    assert await site.rows(select(tables.leave).where(tables.leave.c.study_id == site.study_id)) == []
    assert await site.kick() == [], "it is not offered any more"


async def test_what_was_asked_before_is_asked_again_of_a_worker_that_comes_back(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(bubbles=True, max_trials=1)).create()
    await greet(site, stage(0))
    [lease] = await site.kick()
    await greet(site, stage(0, defect="job gpt has ended"))
    await greet(site, stage(0, defect="job gpt has ended"))
    [asked] = await site.rows(select(tables.leave).where(tables.leave.c.study_id == site.study_id))
    assert asked.why.endswith("are gone: job gpt has ended")
    assert lease.id == asked.grant_id
    assert not [order for order in site.orders if isinstance(order, Preemption)]


@pytest.mark.parametrize(
    ("changes", "constraint"),
    [
        ({"shared_milli": 500}, "slot_ephemeral"),
        ({"stage": None}, "slot_owner"),
        ({"owner": ""}, "slot_owner"),
        ({"duty": 1.5}, "slot_duty"),
    ],
)
async def test_postgres_holds_what_an_ephemeral_slot_is(
    engine: AsyncEngine, changes: dict[str, Any], constraint: str
) -> None:
    site = await beside(engine, stage(0, kind="GPU"))
    wrong = update(tables.slot).where(tables.slot.c.index == FIRST).values(**changes)
    with pytest.raises(IntegrityError, match=constraint):
        async with engine.begin() as conn:
            await conn.execute(wrong)
    assert site.study_id


async def test_postgres_holds_that_a_grant_in_bubbles_is_one_slot(engine: AsyncEngine) -> None:
    site = await beside(engine, stage(0))
    [lease] = await site.kick()
    g = tables.slot_grant
    with pytest.raises(IntegrityError, match="slot_grant_bubbles"):
        async with engine.begin() as conn:
            await conn.execute(update(g).where(g.c.id == lease.id).values(slot_count=2))
    (count,) = await site.rows(select(func.count()).select_from(g).where(g.c.bubbles != ""))
    assert count[0] >= 1
