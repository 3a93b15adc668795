"""Grants hold slots, leases speak for trials: one lease per grant today, several on one grant, and parts on
several workers."""

from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace_services.scheduler.core import placing
from headrace_services.scheduler.core.fold import Fold
from headrace_services.scheduler.core.inputs import StopStudy, StopTrial
from headrace_services.scheduler.core.lifecycle import Action
from headrace_services.scheduler.core.needs import FreeSlots, Named
from headrace_services.scheduler.core.placement import Request
from headrace_services.scheduler.core.plan import Effects, Plan
from headrace_services.scheduler.core.records import Grant, Lease, Part
from headrace_services.scheduler.core.state import CycleState
from headrace_services.scheduler.samplers import make_sampler
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.apply import apply
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.load import load, open_study

ONE = {"policy": {"kind": "run_all"}, "max_trials": 4, "max_parallel": 1}


SECOND_LEASE = """INSERT INTO lease (id, study_id, number, attempt, grant_id, worker_id)
    SELECT 'second', study_id, 1, 1, grant_id, worker_id FROM lease WHERE number = 0"""


async def opened(conn: AsyncConnection, site: StudySite, *numbers: int) -> CycleState:
    """A cycle's working copy with these trials."""
    found = await open_study(conn, site.study_id, Named(numbers=frozenset(numbers)))
    assert found.study is not None
    state = CycleState(found.study, Fold.empty(site.spec, make_sampler(site.spec)))
    state.add_rows(found.rows)
    return state


async def written(conn: AsyncConnection, before: CycleState, state: CycleState) -> None:
    """Write what the working copy changed."""
    plan = Plan(
        before=before.study,
        study=state.study,
        changes=state.changes,
        outcomes=(),
        shown={},
        effects=Effects(),
    )
    await apply(conn, plan)


async def bundle(engine: AsyncEngine) -> tuple[StudySite, Lease, Lease]:
    """Two trials that share a grant of one slot."""
    site = await StudySite(engine, make_spec(**ONE, fuse={"most": 2})).create()
    await site.connect(slots=1)
    first, second = await site.kick()
    assert first.grant is not None
    assert second.grant is not None
    assert first.grant.id == second.grant.id == first.id
    return site, first, second


async def usage(site: StudySite) -> Any:
    standing = (await site.study()).standing
    return standing["usage"]["cpu_slots"]


async def holder(site: StudySite) -> str | None:
    (row,) = await site.rows(select(tables.slot.c.grant_id))
    return row.grant_id


async def test_today_each_lease_has_a_grant_of_its_own(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=2)
    leases = await site.kick()
    grants = await site.rows(select(tables.slot_grant).order_by(tables.slot_grant.c.id))
    assert [grant.id for grant in grants] == sorted(lease.id for lease in leases)
    assert all(grant.live and grant.slot_count == 1 for grant in grants)
    await site.step(gone(leases[0], "FINISHED"))
    (ended,) = await site.rows(select(tables.slot_grant).where(~tables.slot_grant.c.live))
    assert ended.id == leases[0].id


async def test_several_leases_on_one_grant_are_charged_once_and_free_the_slot_with_the_last(
    engine: AsyncEngine,
) -> None:
    site, first, second = await bundle(engine)
    assert await usage(site) == 1
    assert (await site.trial(1)).state == "RUNNING"
    assert (await site.tell(second, 1, 0.5)).action == "CONTINUE"
    await site.step(gone(first, "FINISHED"))
    assert await holder(site) == first.id, "the other trial is still on it"
    assert await usage(site) == 1
    *_, third = site.leases.values()
    assert third.grant is not None
    assert third.grant.id == first.id, "the freed seat is given on in the same cycle"
    await site.step(StopTrial(number=3, reason="enough"), gone(second, "FINISHED"), gone(third, "FINISHED"))
    assert await holder(site) is None
    assert await usage(site) == 0
    (ended,) = await site.rows(select(tables.slot_grant))
    assert (ended.id, ended.live) == (first.id, False)


async def test_the_end_of_a_study_ends_a_shared_grant_once(engine: AsyncEngine) -> None:
    site, *_ = await bundle(engine)
    await site.step(StopStudy(reason="enough"))
    assert await holder(site) is None
    assert await usage(site) == 0
    assert not await site.rows(select(tables.slot_grant).where(tables.slot_grant.c.live))


async def test_a_grant_may_have_parts_on_several_workers(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(**ONE)).create()
    workers = [await site.connect(name, slots=2) for name in ("a", "b")]
    async with transaction(engine) as conn:
        before = await opened(conn, site)
        state = await opened(conn, site)
        request = Request(gpu=False)
        free = await load(conn, site.study_id, FreeSlots(request=request, limit=8))
        state.offer_found(free)
        trial = placing.create(state, {"x": 0.5})
        lease = Lease(
            id="gang.0.1",
            study_id=site.study_id,
            number=trial.number,
            attempt=1,
            worker_id=workers[0],
            incarnation="1",
            client_id="",
            ttl_s=None,
            grant=Grant(
                id="gang.0.1",
                study_id=site.study_id,
                parts=tuple(Part(worker_id=worker, incarnation="1", slots=(0, 1)) for worker in workers),
            ),
        )
        state.give(lease, tuple(free))
        state.move(trial.number, Action.LAUNCH, attempt=1, lease_id=lease.id)
        await written(conn, before, state)
    site.leases[lease.id] = lease
    assert await usage(site) == 4
    assert [row.grant_id for row in await site.rows(select(tables.slot))] == ["gang.0.1"] * 4
    async with transaction(engine) as conn:
        found = await opened(conn, site, 0)
    assert found.leases[lease.id].grant == lease.grant
    assert found.leases[lease.id].slots == (0, 1), "those of the worker that speaks"
    assert len(found.slots[lease.id]) == 4
    await site.step(gone(lease, "FINISHED"))
    known = [row.grant_id for row in await site.rows(select(tables.slot))]
    assert known.count("gang.0.1") == 0, "all of it is free with the one lease"
    assert await usage(site) == 1, "the next trial has one slot"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE slot_grant SET slot_count = 0",
        "UPDATE slot_grant SET milli = 500, slot_count = 2",
        "UPDATE slot_grant SET end_time = clock_timestamp()",
        "UPDATE grant_part SET slots = '{}'",
        "UPDATE lease SET grant_id = NULL",
        "UPDATE lease SET worker_id = worker_id + 1000",
        "UPDATE slot_grant SET seats = 0",
        "UPDATE slot_grant SET seats = 2, slot_count = 2",
        "UPDATE slot_grant SET closed = true",
        SECOND_LEASE,
    ],
)
async def test_the_tables_refuse_what_no_grant_can_be(engine: AsyncEngine, change: str) -> None:
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=1)
    await site.kick()
    with pytest.raises(IntegrityError):
        async with engine.begin() as conn:
            await conn.execute(text(change))
