"""Quotas of projects on a real Postgres: what cycles read and lock, races between replicas, and what people see."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from one_study import OneStudy, connect, query
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace_services.scheduler.core.inputs import Preemption
from headrace_services.scheduler.engine import cycle
from headrace_services.scheduler.rpc.waiting import waits_for
from headrace_services.scheduler.store import cluster, quotas, studies, trials
from headrace_services.scheduler.store.database import open_engine, transaction


@pytest_asyncio.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """An engine on a fresh database."""
    opened = open_engine(database_url, pool_size=8)
    yield opened
    await opened.dispose()


async def limit(engine: AsyncEngine, project: str, slots: int | None) -> None:
    async with transaction(engine) as conn:
        await quotas.make(conn, project)
        await quotas.limit(conn, project, slots=slots, studies=None, code_mib=None)


async def held(engine: AsyncEngine, project: str) -> float:
    async with transaction(engine) as conn:
        found = await quotas.project(conn, project)
    assert found is not None
    (counted,) = await query(
        engine,
        "SELECT coalesce(sum(slot_count * milli), 0) FROM slot_grant g JOIN study s ON s.id = g.study_id"
        " WHERE g.live AND g.bubbles = '' AND s.project = :p",
        p=project,
    )
    assert found.held_milli == counted[0], "the studies' accounts and the grants agree"
    return found.held_milli / 1000


async def waiting(study: OneStudy, number: int) -> str:
    async with transaction(study.engine) as conn:
        record = await studies.get(conn, study.id)
        view = await trials.one(conn, study.id, number)
        assert record is not None
        assert view is not None
        return (await waits_for(conn, record, [view.trial])).get(number, "")


async def test_a_quota_holds_over_the_studies_of_a_project_and_hands_its_room_on(engine: AsyncEngine) -> None:
    await connect(engine, "w", 4)
    await limit(engine, "vision", 2)
    first = await OneStudy(engine, "first", "vision").create()
    second = await OneStudy(engine, "second", "vision").create()
    other = await OneStudy(engine, "first").create()
    leases = await first.kick()
    assert len(leases) == 2
    assert await second.kick() == []
    standing = await second.standing()
    assert (standing["wants_slots"], standing["held_off"]) == (0, 1000), "it waits for no slot"
    assert len(await other.kick()) == 2, "the rest is for other projects"
    await first.tell(leases[0], 8)
    assert first.last is not None
    assert second.id in first.last.effects.wake
    assert await held(engine, "vision") == 1, "the room is left to the one that has had none"
    assert len(await second.kick()) == 1
    assert await held(engine, "vision") == 2
    assert (await second.standing())["held_off"] == 1000


async def test_replicas_that_place_at_once_never_give_out_more(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cycles of a project decide at the same time, each on slots of its own, and commit after both have
    decided."""
    both, apply = asyncio.Barrier(2), cycle.apply

    async def apply_together(*arguments: Any) -> None:
        await both.wait()
        await apply(*arguments)

    await limit(engine, "vision", 1)
    looking = []
    for zone in "ab":
        await connect(engine, f"w{zone}", 1)
        labels = f"UPDATE worker SET labels = jsonb_build_object('zone', '{zone}') WHERE name = 'w{zone}'"
        async with engine.begin() as conn:
            await conn.execute(text(labels))
        study = OneStudy(engine, zone, "vision")
        looking.append(await study.create(resources={"gpus": 1, "labels": {"zone": zone}}))
    monkeypatch.setattr(cycle, "apply", apply_together)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        found = [tasks.create_task(study.kick()) for study in looking]
    monkeypatch.undo()
    assert sorted(len(task.result()) for task in found) == [0, 1]
    assert await held(engine, "vision") == 1
    (passed_over,) = [one.last for one, task in zip(looking, found, strict=True) if not task.result()]
    assert passed_over is not None
    assert passed_over.effects.look_again


async def test_a_project_that_is_locked_elsewhere_is_looked_at_again(engine: AsyncEngine) -> None:
    await connect(engine, "w", 2)
    await limit(engine, "vision", 2)
    study = await OneStudy(engine, "s", "vision").create()
    async with engine.begin() as frozen:
        await frozen.execute(text("SELECT 1 FROM project WHERE name = 'vision' FOR NO KEY UPDATE"))
        async with asyncio.timeout(5):
            assert await study.kick() == [], "and it waits for nobody"
        assert study.last is not None
        assert study.last.effects.look_again
    assert len(await study.kick()) == 2


async def test_a_lowered_quota_stops_nothing_and_says_so(engine: AsyncEngine) -> None:
    await connect(engine, "w", 3)
    await limit(engine, "vision", 3)
    study = await OneStudy(engine, "digits", "vision").create()
    leases = await study.kick()
    assert len(leases) == 3
    await limit(engine, "vision", 1)
    decision = await study.tell(leases[0], 2)
    assert decision.action == "CONTINUE"
    await study.tell(leases[0], 8)
    assert await held(engine, "vision") == 2
    assert await waiting(study, 3) == (
        "room for 1 slot in its project's quota: project 'vision' may hold 1 slot at once, and study digits holds 2"
    )
    await limit(engine, "vision", 0)
    assert await waiting(study, 3) == (
        "a larger quota: project 'vision' may hold 0 slots at once, and it takes 1 slot"
    )
    await limit(engine, "vision", None)
    assert len(await study.kick()) == 1


async def test_a_quota_that_grows_brings_no_credit_for_before(engine: AsyncEngine) -> None:
    """What the others had shows neither in its own project's studies, which had no more, nor in itself."""
    await connect(engine, "w", 4)
    await limit(engine, "vision", 1)
    first, late, other = [
        await OneStudy(engine, name, project).create()
        for name, project in (("first", "vision"), ("late", "vision"), ("other", "speech"))
    ]
    await first.kick()
    assert await late.kick() == []
    assert len(await other.kick()) == 3
    used = "jsonb_set(standing, '{usage,gpu_s}', '4000') WHERE id = :i"
    async with engine.begin() as conn:
        await conn.execute(text(f"UPDATE study SET standing = {used}"), {"i": other.id})
    assert await late.kick() == []
    assert (await late.standing())["usage"]["credit_s"] < 1, "the quota is as it was"
    await limit(engine, "vision", 3)
    await late.kick()
    assert (await late.standing())["usage"]["credit_s"] >= 1000, "4,000 s on 4 GPUs"


async def test_a_gang_counts_whole_and_nobody_overtakes_it(engine: AsyncEngine) -> None:
    await connect(engine, "w", 8)
    await limit(engine, "vision", 4)
    small = await OneStudy(engine, "small", "vision").create(max_trials=3)
    leases = await small.kick()
    assert len(leases) == 3
    gang = await OneStudy(engine, "gang", "vision").create(resources={"gpus": 4})
    late = await OneStudy(engine, "late", "vision").create(weight=0.01)
    assert await gang.kick() == []
    assert await query(engine, "SELECT * FROM leave") == [], "a quota asks nobody to leave"
    assert (await gang.standing())["reserved"] is None, "no slots are kept that it may not have"
    for lease in leases[:2]:
        await small.tell(lease, 8)
        assert await gang.kick() == []
    await small.tell(leases[2], 8)
    (lease,) = await gang.kick()
    assert len(lease.slots) == 4
    assert await late.kick() == []
    assert await held(engine, "vision") == 4


async def test_names_of_other_projects_are_told_to_nobody(engine: AsyncEngine) -> None:
    await connect(engine, "w", 1)
    low = await OneStudy(engine, "secret-low", "vision").create()
    (lease,) = await low.kick()
    high = await OneStudy(engine, "secret-high", "speech").create(priority=1)
    assert await high.kick() == []
    assert high.last is not None
    (order,) = [one for one in high.last.effects.orders if isinstance(one, Preemption)]
    assert order.reason == "a study of another project needs its slots"
    assert (await low.tell(lease, 1)).action == "PAUSE"
    ((message, detail),) = await query(
        engine, "SELECT message, detail FROM event WHERE kind = 'trial_preempted'"
    )
    assert "secret-high" not in f"{message} {detail}"
    assert len(await high.kick()) == 1
    async with transaction(engine) as conn:
        keys = await cluster.workers_after(conn, name="", limit=10)
        (seen,) = await cluster.workers(conn, keys, project="vision")
        shares, _ = await cluster.shares(conn, "vision")
        (own,) = await cluster.workers(conn, keys, project="speech")
    assert [(one.study, one.number, one.milli) for one in seen.slots[0].holders] == [("", 0, 1000)]
    assert {share.study for share in shares} == {"", "secret-low"}
    assert [one.study for one in own.slots[0].holders] == ["secret-high"]
