"""Several studies' cycles on a real Postgres: parts of devices, slots left to others, reservations, preemption."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from one_study import GIB, OneStudy, connect, query
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.spec import Resources
from headrace_services.scheduler.core.changes import Changes
from headrace_services.scheduler.core.inputs import (
    ExitedArrived,
    PauseStudy,
    Preemption,
    ResumeStudy,
    StopStudy,
)
from headrace_services.scheduler.core.needs import Surroundings
from headrace_services.scheduler.core.placement import Request
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.core.study_status import Leaving
from headrace_services.scheduler.rpc.waiting import waits_for
from headrace_services.scheduler.store import heartbeats, placement, rows, studies, tables
from headrace_services.scheduler.store.database import open_engine, transaction
from headrace_services.scheduler.store.load import load
from headrace_services.scheduler.store.pipeline import pipeline


@pytest_asyncio.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """An engine on a fresh database."""
    opened = open_engine(database_url, pool_size=4)
    yield opened
    await opened.dispose()


async def test_quarters_share_a_gpu_and_a_fifth_one_waits(engine: AsyncEngine) -> None:
    await connect(engine, "w", 1)
    study = await OneStudy(engine, "quarters").create(resources={"gpu_milli": 250})
    leases = await study.kick()
    assert [(lease.slots, lease.milli, lease.memory_bytes) for lease in leases] == [((0,), 250, 20 * GIB)] * 4
    assert await query(engine, "SELECT grant_id, shared_milli, shared_memory_bytes FROM slot") == [
        (None, 1000, 80 * GIB)
    ]
    assert (await study.standing())["wants_slots"] == 1
    await study.tell(leases[0], 8)
    assert await query(engine, "SELECT shared_milli FROM slot") == [(1000,)]
    assert len(await query(engine, "SELECT id FROM lease WHERE live")) == 4
    await study.step(StopStudy(reason="enough"))
    assert await query(engine, "SELECT shared_milli, shared_memory_bytes FROM slot") == [(0, 0)]
    assert (await study.standing())["usage"]["gpu_milli"] == 0


async def test_the_database_refuses_to_give_a_device_out_twice(engine: AsyncEngine) -> None:
    await connect(engine, "w", 1)
    study = await OneStudy(engine, "whole").create()
    (lease,) = await study.kick()
    for change in ("shared_milli = 1", "shared_milli = 1001", "shared_memory_bytes = -1"):
        with pytest.raises(IntegrityError):
            async with engine.begin() as conn:
                await conn.execute(text(f"UPDATE slot SET {change}"))
    with pytest.raises(IntegrityError):
        async with engine.begin() as conn:
            await conn.execute(text("UPDATE slot_grant SET milli = 250, slot_count = 2"))
    assert lease.milli == 1000


async def test_two_studies_with_one_free_slot_leave_it_to_the_one_with_the_greater_claim(
    engine: AsyncEngine,
) -> None:
    await connect(engine, "w", 4)
    heavy = await OneStudy(engine, "heavy").create(weight=3)
    light = await OneStudy(engine, "light").create(weight=1)
    leases = await heavy.kick()
    assert len(leases) == 4
    assert await light.kick() == []
    await heavy.tell(leases[0], 8)
    assert heavy.last is not None
    assert heavy.last.effects.wake == (light.id,), "the slot is left to the other study, which is told so"
    assert len(await light.kick()) == 1
    await heavy.tell(leases[1], 8)
    assert heavy.last.effects.wake == (), "three to one is its share"
    assert len(await query(engine, "SELECT id FROM lease WHERE live AND study_id = :s", s=heavy.id)) == 3


async def test_an_ask_tell_study_does_not_count_as_a_competitor(engine: AsyncEngine) -> None:
    """It takes no slots."""
    await OneStudy(engine, "asked").create(template=None)
    alone = await OneStudy(engine, "alone").create()
    question = Surroundings(request=Request.of(Resources()), limit=1, now_s=0.0, waiting=9)
    async with transaction(engine) as conn:
        assert not (await load(conn, alone.id, question)).crowded
    await OneStudy(engine, "working").create()
    async with transaction(engine) as conn:
        assert (await load(conn, alone.id, question)).crowded


async def test_a_study_that_does_not_answer_does_not_hold_slots_up_forever(engine: AsyncEngine) -> None:
    await connect(engine, "w", 2)
    working = await OneStudy(engine, "working").create()
    silent = await OneStudy(engine, "silent").create()
    leases = await working.kick()
    await silent.kick()
    await working.tell(leases[0], 8)
    assert len(await query(engine, "SELECT id FROM lease WHERE live")) == 1, "it is left to the silent one"
    async with engine.begin() as conn:
        left_to = f"jsonb_set(standing, '{{left_to,{silent.id}}}', '1')"
        await conn.execute(text(f"UPDATE study SET standing = {left_to} WHERE id = {working.id}"))
        await conn.execute(text("UPDATE study SET standing = jsonb_set(standing, '{looked_s}', '0')"))
    assert len(await working.kick()) == 1, "a minute later it is taken back"


async def test_slots_are_kept_for_a_gang_and_those_who_run_there_leave_at_their_rung(
    engine: AsyncEngine,
) -> None:
    worker_id = await connect(engine, "w", 2)
    small = await OneStudy(engine, "small").create()
    first, second = await small.kick()
    await small.tell(first, 1)  # now its speed is known
    gang = await OneStudy(engine, "gang").create(resources={"gpus": 2})
    assert await gang.kick() == []
    reserved = (await gang.standing())["reserved"]
    assert (reserved["number"], reserved["worker_id"], reserved["slots"]) == (0, worker_id, [0, 1])
    assert len(await query(engine, "SELECT grant_id FROM leave WHERE NOT at_report")) == 2
    (event,) = await query(engine, "SELECT message FROM event WHERE kind = 'slots_reserved'")
    assert event[0] == (
        "trial 0 fits nowhere yet: 2 slots of w are reserved for it, free in 2 s by measured times"
    )
    assert (await small.tell(first, 2)).action == "PAUSE"
    assert await query(engine, "SELECT grant_id FROM slot WHERE index = 0") == [(None,)], (
        "nobody else gets it"
    )
    assert (await small.tell(second, 2)).action == "PAUSE"
    (lease,) = await gang.kick()
    assert lease.slots == (0, 1)
    assert (await gang.standing())["reserved"] is None
    assert await query(engine, "SELECT * FROM leave") == []
    rows = await query(engine, "SELECT state, step FROM trial WHERE number < 2 AND study_id = :s", s=small.id)
    assert rows == [("PAUSED", 2), ("PAUSED", 2)]


async def test_a_study_that_no_worker_can_ever_serve_asks_nobody_to_leave(engine: AsyncEngine) -> None:
    """Not even a study that has more than its share."""
    await connect(engine, "w", 2)
    small = await OneStudy(engine, "small").create()
    first, second = await small.kick()
    for lease in (first, second):
        await small.tell(lease, 1)
    gang = await OneStudy(engine, "gang").create(resources={"gpus": 4})
    assert await gang.kick() == []
    async with engine.begin() as conn:  # an hour passes
        hour = "jsonb_set(standing, '{usage,at_s}', to_jsonb((standing->'usage'->>'at_s')::float - 3600))"
        await conn.execute(text(f"UPDATE study SET standing = {hour} WHERE id = :s"), {"s": small.id})
    gang.fold = None  # another replica checks
    assert await gang.kick() == []
    assert await query(engine, "SELECT * FROM leave") == []
    assert (await small.tell(first, 2)).action == "CONTINUE"


async def test_a_higher_priority_asks_for_a_slot_at_the_next_report_with_a_checkpoint(
    engine: AsyncEngine,
) -> None:
    worker_id = await connect(engine, "w", 1)
    low = await OneStudy(engine, "low").create()
    (lease,) = await low.kick()
    high = await OneStudy(engine, "high").create(priority=1)
    assert await high.kick() == []
    assert high.last is not None
    (order,) = [order for order in high.last.effects.orders if isinstance(order, Preemption)]
    assert (order.worker_id, order.lease.id) == (worker_id, lease.id)
    async with engine.connect() as conn:
        beat = heartbeats.Beat(worker_id=worker_id, session=1)
        ((again, why),) = (await heartbeats.note(conn, [beat], 60))[beat].leaving
    assert (again.id, why) == (lease.id, "study 'high' needs its slots")
    assert (await low.tell(lease, 1, saved=False)).action == "CONTINUE", "never without a checkpoint"
    assert (await low.tell(lease, 1)).action == "PAUSE"


async def test_a_trial_asked_to_leave_at_the_next_report_is_not_given_until_the_rung(
    engine: AsyncEngine,
) -> None:
    """Another study, whose cycle started before that, asks it to leave at the rung."""
    await connect(engine, "w", 1)
    low = await OneStudy(engine, "low").create()
    (lease,) = await low.kick()
    assert lease.grant is not None
    await (await OneStudy(engine, "high").create(priority=1)).kick()
    other = await OneStudy(engine, "other").create()
    asked = Leaving(for_study_id=other.id, at_report=False, why="study 'other' needs its slots")
    async with transaction(engine) as conn, pipeline(conn) as sent:
        placement.tell_others(sent, other.id, Changes(asks={lease.grant.id: asked}))
    decision = await low.tell(lease, 1)
    assert (decision.action, decision.reason) == ("PAUSE", "study 'high' needs its slots")


async def test_it_leaves_with_progress_and_a_checkpoint_and_is_not_charged(engine: AsyncEngine) -> None:
    await connect(engine, "w", 1)
    low = await OneStudy(engine, "low").create()
    (lease,) = await low.kick()
    high = await OneStudy(engine, "high").create(priority=1, max_trials=1)
    await high.kick()
    decision = await low.tell(lease, 1)
    assert (decision.action, decision.reason) == ("PAUSE", "study 'high' needs its slots")
    (granted,) = await high.kick()
    (row,) = await query(
        engine,
        "SELECT state, step, milestone, interruptions FROM trial WHERE study_id = :s AND number = :n",
        s=low.id,
        n=lease.number,
    )
    assert row == ("PAUSED", 1, 2, 0)
    await high.tell(granted, 8)
    (resumed,) = await low.kick()
    assert (resumed.number, resumed.attempt, resumed.step) == (lease.number, 2, 1)
    assert resumed.resume is not None


async def test_a_grant_grows_at_a_rung_in_one_step(engine: AsyncEngine) -> None:
    await connect(engine, "w", 2)
    study = await OneStudy(engine, "elastic").create(
        elastic={"grants": [{"from_step": 2, "slots": 2}]}, max_trials=1
    )
    (lease,) = await study.kick()
    assert lease.slots == (0,)
    decision = await study.tell(lease, 2)
    assert decision.action == "PAUSE"
    assert "its grant changes from 1 to 2 slots at step 2" in decision.reason
    larger = next(lease for lease in study.leases.values() if lease.attempt == 2)
    assert larger.slots == (0, 1)
    assert (await study.tell(larger, 4)).action == "CONTINUE"


async def test_without_a_checkpoint_a_grant_stays_as_it_is(engine: AsyncEngine) -> None:
    await connect(engine, "w", 2)
    study = await OneStudy(engine, "unsaved").create(
        elastic={"grants": [{"from_step": 2, "slots": 2}]}, max_trials=1
    )
    (lease,) = await study.kick()
    assert (await study.tell(lease, 2, saved=False)).action == "CONTINUE"


async def test_a_trial_that_starts_over_begins_with_its_first_grant(engine: AsyncEngine) -> None:
    await connect(engine, "w", 2)
    study = await OneStudy(engine, "over").create(
        elastic={"grants": [{"from_step": 2, "slots": 2}]}, max_trials=1
    )
    (lease,) = await study.kick()
    assert (await study.tell(lease, 2, saved=False)).action == "CONTINUE"
    name = {"lease_id": lease.id, "number": lease.number, "attempt": lease.attempt}
    await study.step(ExitedArrived(**name, sequence=1000, outcome="LOST", error="killed by SIGKILL"))
    again = next(lease for lease in study.leases.values() if lease.attempt == 2)
    assert (again.step, again.slots) == (0, (0,))


async def test_a_finalist_takes_spare_slots_while_nothing_waits(engine: AsyncEngine) -> None:
    await connect(engine, "w", 4)
    study = await OneStudy(engine, "spare").create(elastic={"spare": 3}, max_trials=1)
    (lease,) = await study.kick()
    assert (await study.tell(lease, 2)).action == "CONTINUE"
    decision = await study.tell(lease, 4)
    assert decision.action == "PAUSE"
    assert "2 spare slots are free" in decision.reason
    larger = next(lease for lease in study.leases.values() if lease.attempt == 2)
    assert larger.slots == (0, 1, 2)


async def test_a_grant_grows_from_a_share_over_a_larger_one_to_whole_gpus(engine: AsyncEngine) -> None:
    await connect(engine, "w", 2, cpus=8)
    study = await OneStudy(engine, "shares").create(
        resources={"gpu_milli": 250, "cpus": 1},
        elastic={"grants": [{"from_step": 2, "gpu_milli": 500}, {"from_step": 4, "slots": 2}]},
        max_trials=1,
    )
    (lease,) = await study.kick()
    assert (lease.slots, lease.milli, lease.memory_bytes) == ((0,), 250, 20 * GIB)
    held = [(await study.standing())["usage"]["gpu_milli"]]
    decision = await study.tell(lease, 2)
    assert "its grant changes from 0.25 to 0.5 slots at step 2" in decision.reason
    half = next(lease for lease in study.leases.values() if lease.attempt == 2)
    assert (half.slots, half.milli, half.memory_bytes) == ((0,), 500, 40 * GIB)
    assert await query(engine, "SELECT shared_milli, shared_memory_bytes FROM slot WHERE index = 0") == [
        (500, 40 * GIB)
    ]
    held.append((await study.standing())["usage"]["gpu_milli"])
    assert "from 0.5 to 2 slots at step 4" in (await study.tell(half, 4)).reason
    two = next(lease for lease in study.leases.values() if lease.attempt == 3)
    assert (two.slots, two.milli, two.memory_bytes) == ((0, 1), 1000, 0)
    assert await query(engine, "SELECT DISTINCT grant_id, shared_milli FROM slot") == [(two.id, 0)]
    held.append((await study.standing())["usage"]["gpu_milli"])
    await study.tell(two, 8)
    assert [*held, (await study.standing())["usage"]["gpu_milli"]] == [250, 500, 2000, 0]
    assert set((await study.standing())["speeds"]) == {"H200 /250", "H200 /500", "H200 x2"}


async def test_a_trial_on_a_share_gets_its_whole_gpu_though_others_share_it(engine: AsyncEngine) -> None:
    await connect(engine, "w", 1)
    study = await OneStudy(engine, "crowd").create(
        resources={"gpu_milli": 250}, elastic={"grants": [{"from_step": 2, "slots": 1}]}, max_trials=4
    )
    leases = await study.kick()
    assert [lease.milli for lease in leases] == [250] * 4
    assert (await study.tell(leases[0], 2)).action == "PAUSE"
    reserved = (await study.standing())["reserved"]
    assert (reserved["number"], reserved["slots"], reserved["milli"]) == (0, [0], 1000)
    async with transaction(engine) as conn:
        row = await studies.get(conn, study.id)
        assert row is not None
        found = await conn.execute(select(tables.trial).where(tables.trial.c.number == 0))
        told = await waits_for(conn, row, [rows.trial(one) for one in found])
    assert told == {0: "1 GPU to be free (from step 2 on it requires this)"}
    for lease in leases[1:]:
        assert (await study.tell(lease, 2)).action in ("PAUSE", "STOP")
    whole = [lease for lease in study.leases.values() if lease.attempt == 2]
    assert [(lease.number, lease.milli) for lease in whole] == [(0, 1000)]
    assert await query(engine, "SELECT grant_id, shared_milli FROM slot") == [(whole[0].id, 0)]


async def test_a_finalist_on_a_share_takes_spare_whole_gpus_or_what_its_table_says(
    engine: AsyncEngine,
) -> None:
    await connect(engine, "w", 2)
    elastic = {"grants": [{"from_step": 4, "slots": 1}], "spare": 2}
    study = await OneStudy(engine, "spare").create(
        resources={"gpu_milli": 250}, elastic=elastic, max_trials=1
    )
    (lease,) = await study.kick()
    assert (await study.tell(lease, 2)).action == "CONTINUE"
    assert "2 spare slots are free: it continues with 2 to 8 steps" in (await study.tell(lease, 4)).reason
    two = next(lease for lease in study.leases.values() if lease.attempt == 2)
    assert (two.slots, two.milli) == ((0, 1), 1000)
    assert (await study.tell(two, 8)).action == "STOP"
    other = await OneStudy(engine, "other").create(max_trials=1)
    await other.kick()  # one of the two GPUs is no longer free
    again = await OneStudy(engine, "again").create(
        resources={"gpu_milli": 250}, elastic=elastic, max_trials=1
    )
    (lease,) = await again.kick()
    await again.tell(lease, 2)
    assert (await again.tell(lease, 4)).action == "PAUSE"
    one = next(lease for lease in again.leases.values() if lease.attempt == 2)
    assert (one.slots, one.milli) == ((1,), 1000)


async def test_spare_gpus_are_seen_behind_those_that_are_shared(engine: AsyncEngine) -> None:
    await connect(engine, "w", 3)
    beside = await OneStudy(engine, "beside").create(resources={"gpu_milli": 250}, max_trials=1)
    assert [lease.slots for lease in await beside.kick()] == [(0,)]
    study = await OneStudy(engine, "finalist").create(
        resources={"gpu_milli": 250}, elastic={"spare": 1}, max_trials=1
    )
    (lease,) = await study.kick()
    assert (lease.slots, lease.milli) == ((0,), 250)
    await study.tell(lease, 2)
    assert "1 spare slot is free: it continues with 1 to 8 steps" in (await study.tell(lease, 4)).reason
    whole = next(lease for lease in study.leases.values() if lease.attempt == 2)
    assert (whole.slots, whole.milli) == ((1,), 1000)


async def test_an_elastic_gang_does_not_keep_small_trials_off_and_is_not_starved_by_them(
    engine: AsyncEngine,
) -> None:
    await connect(engine, "w", 2)
    study = await OneStudy(engine, "mixed").create(
        elastic={"grants": [{"from_step": 2, "slots": 2}]}, max_trials=4
    )
    first, second = await study.kick()
    assert (await study.tell(first, 2)).action == "PAUSE"
    reserved = (await study.standing())["reserved"]
    assert (reserved["number"], reserved["slots"]) == (first.number, [0, 1])
    assert (await study.tell(second, 2)).action == "PAUSE"
    grown = [lease for lease in study.leases.values() if len(lease.slots) == 2]
    assert [lease.number for lease in grown] == [first.number]


async def test_speed_is_learnt_by_device_type_and_survives_in_the_rows(engine: AsyncEngine) -> None:
    await connect(engine, "fast", 1, model="H200")
    await connect(engine, "slow", 1, model="L4")
    study = await OneStudy(engine, "speeds").create()
    by_model = {lease.model: lease for lease in await study.kick()}
    await study.tell(by_model["H200"], 2, train_time_s=1.0)
    await study.tell(by_model["L4"], 2, train_time_s=8.0)
    speeds = (await study.standing())["speeds"]
    assert speeds == {"H200": [2.0, 1.0], "L4": [2.0, 8.0]}
    rows = await query(engine, "SELECT number, speeds FROM trial WHERE speeds <> '{}' ORDER BY number")
    assert [row[1] for row in rows] == [{"H200": [2.0, 1.0]}, {"L4": [2.0, 8.0]}]


async def test_a_gang_takes_the_slots_that_are_joined_best_says_so_and_learns_what_that_is_worth(
    engine: AsyncEngine,
) -> None:
    await connect(engine, "w", 4, island=2)

    async def single(name: str) -> tuple[OneStudy, Lease]:
        study = await OneStudy(engine, name).create(max_trials=1, policy={"kind": "run_all"})
        (lease,) = await study.kick()
        return study, lease

    first, on_0 = await single("first")
    gangs = await OneStudy(engine, "gangs").create(resources={"gpus": 2}, max_trials=3, max_parallel=1)
    (joined,) = await gangs.kick()
    assert (on_0.slots, joined.slots, joined.model) == ((0,), (2, 3), "H200 (NVLink)")
    second, on_1 = await single("second")
    assert on_1.slots == (1,)
    await gangs.step(PauseStudy())
    await gangs.tell(joined, 8, train_time_s=8.0)
    _, on_2 = await single("third")
    await first.tell(on_0, 8)
    await gangs.step(ResumeStudy())
    apart = next(lease for lease in gangs.leases.values() if lease.number == 1)
    assert (on_2.slots, apart.slots, apart.model) == ((2,), (0, 3), "H200 (across NUMA nodes)")
    await second.tell(on_1, 8)
    await gangs.tell(apart, 8, train_time_s=16.0)
    assert (await gangs.standing())["speeds"] == {
        "H200 (NVLink) x2": [8.0, 8.0],
        "H200 (across NUMA nodes) x2": [8.0, 16.0],
    }
    assert next(lease for lease in gangs.leases.values() if lease.number == 2).slots == (0, 1)
    told = await query(engine, "SELECT message FROM event WHERE kind = 'trial_placed' ORDER BY cursor")
    assert [message for (message,) in told] == [
        "trial 0 placed (best_fit): slots 2, 3 are joined by NVLink",
        "trial 1 placed (best_fit): slots 0, 3 are joined by the machine alone, across NUMA nodes",
        (
            "trial 2 placed (best_fit): slots 0, 1 are joined by NVLink (measured: 1 s a step with NVLink, "
            "2 s a step with the machine alone, across NUMA nodes)"
        ),
    ]


async def test_usage_adds_up_over_restarts(engine: AsyncEngine) -> None:
    await connect(engine, "w", 2)
    study = await OneStudy(engine, "used").create()
    for lease in await study.kick():
        study.fold = None  # another replica continues
        await study.tell(lease, 8)
    usage = (await study.standing())["usage"]
    held = await query(
        engine,
        "SELECT sum(extract(epoch FROM coalesce(end_time, to_timestamp(:at)) - grant_time)) FROM lease",
        at=usage["at_s"],
    )
    # A cycle uses the time at its start; its rows have the time of their writing.
    assert usage["gpu_s"] == pytest.approx(float(held[0][0]), abs=0.5, rel=0.2)
    assert usage["gpu_milli"] == 2000


async def test_cores_come_with_the_slots(engine: AsyncEngine) -> None:
    await connect(engine, "thin", 2, cpus=8)
    study = await OneStudy(engine, "cores").create(resources={"gpus": 1, "cpus": 8})
    assert await study.kick() == []
    await connect(engine, "thick", 2, cpus=32)
    leases = await study.kick()
    assert len(leases) == 2
    assert {lease.worker_id for lease in leases} == {2}


async def test_what_is_free_is_found_by_type_and_memory(engine: AsyncEngine) -> None:
    await connect(engine, "a", 2, model="NVIDIA H200_x")
    await connect(engine, "b", 2, model="NVIDIA A100")
    study = await OneStudy(engine, "types").create(resources={"gpus": 1, "gpu_types": ["h200_x"]})
    assert {lease.model for lease in await study.kick()} == {"NVIDIA H200_x"}
    async with engine.connect() as conn:
        assert await placement.totals(conn) == placement.Totals(gpu_milli=4000, cpu_slots=0)
    async with engine.connect() as conn:
        rows = (
            await conn.execute(select(tables.slot.c.worker_id).where(tables.slot.c.grant_id.is_(None)))
        ).all()
    assert [row[0] for row in rows] == [2, 2]
