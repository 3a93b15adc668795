"""The last members of bundles spread over idle slots, cycle by cycle on a real database."""

from collections import Counter
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace_services.scheduler.core.capacity import TurnCost
from headrace_services.scheduler.core.inputs import Accepted, StopTrial
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.store import tables

GOES_ON = {"kind": "median", "rungs": [2, 4, 6, 9], "min_peers": 100}
"""A policy that stops nobody, but checks each trial at its rungs."""


async def fused(engine: AsyncEngine, **changes: Any) -> StudySite:
    """A study whose trials all share one slot."""
    site = await StudySite(
        engine, make_spec(**{"policy": GOES_ON, "max_trials": 8, "fuse": {"most": 8}, **changes})
    ).create()
    await site.connect("first", slots=1)
    await site.kick()
    return site


async def live(site: StudySite) -> list[Lease]:
    le = tables.lease
    found = {row.id for row in await site.rows(select(le).where(le.c.study_id == site.study_id, le.c.live))}
    return [lease for lease in site.leases.values() if lease.id in found]


def bundles(leases: list[Lease]) -> dict[int, int]:
    """How many members run on each worker's slot, by the grants."""
    return dict(Counter(lease.grant.id for lease in leases if lease.grant is not None))


async def all_reach(site: StudySite, step: int, *, saved: bool = True, together: bool = True) -> list[str]:
    """Let every member report its rung, in one cycle or one after the other. Returns the actions."""
    reports = [site.report(lease, step, 0.5, saved=saved) for lease in await live(site)]
    said = []
    for some in [reports] if together else [[report] for report in reports]:
        for outcome in await site.step(*some):
            assert isinstance(outcome, Accepted)
            assert outcome.decision is not None
            said.append(outcome.decision.action)
    return said


@pytest.mark.parametrize("together", [True, False])
async def test_members_spread_evenly_over_slots_that_are_idle(engine: AsyncEngine, together: bool) -> None:
    site = await fused(engine)
    await site.connect("idle", slots=2)
    said = await all_reach(site, 2, together=together)
    assert Counter(said) == {"PAUSE": 5, "CONTINUE": 3}
    assert sorted(bundles(await live(site)).values()) == [2, 3, 3]
    assert [trial.state for trial in await site.trials()].count("RESUMED") == 5, "placed in the same step"
    told = [event.message for event in await site.events("trial_moved")]
    assert any("it leaves its bundle of 8: a slot is idle, and no trial waits" in message for message in told)
    assert set(await all_reach(site, 4)) == {"CONTINUE"}, "then they stay"


async def test_with_as_many_slots_as_members_each_has_one_to_itself(engine: AsyncEngine) -> None:
    site = await fused(engine, max_trials=3)
    await site.connect("idle", slots=4)
    await all_reach(site, 2)
    assert sorted(bundles(await live(site)).values()) == [1, 1, 1]
    assert set(await all_reach(site, 4)) == {"CONTINUE"}


async def test_members_stay_while_a_trial_of_the_study_waits_or_is_to_come(engine: AsyncEngine) -> None:
    site = await fused(engine, max_trials=9)
    assert len(await live(site)) == 8
    await site.connect("idle", slots=1)
    assert set(await all_reach(site, 2)) == {"CONTINUE"}
    await site.kick()
    assert sorted(bundles(await live(site)).values()) == [1, 8], "the ninth takes the slot"


async def test_members_stay_where_nothing_is_idle_or_no_more_grants_may_be(engine: AsyncEngine) -> None:
    alone = await fused(engine)
    assert set(await all_reach(alone, 2)) == {"CONTINUE"}
    bound = await fused(engine, max_parallel=1)
    await bound.connect("idle", slots=2)
    assert set(await all_reach(bound, 2)) == {"CONTINUE"}


async def test_members_without_a_checkpoint_stay(engine: AsyncEngine) -> None:
    site = await fused(engine)
    await site.connect("idle", slots=2)
    assert set(await all_reach(site, 2, saved=False)) == {"CONTINUE"}


@pytest.mark.parametrize("closed", [False, True])
async def test_members_move_only_where_a_seat_is_open(engine: AsyncEngine, closed: bool) -> None:
    """Of two full bundles, one has a single member left. If its process was released, nobody may join it."""
    site = await StudySite(engine, make_spec(policy=GOES_ON, max_trials=8, fuse={"most": 4})).create()
    await site.connect("both", slots=2)
    await site.kick()
    full, other = bundles(await live(site))
    left = [lease for lease in await live(site) if lease.grant is not None and lease.grant.id == other]
    for lease in left[2:]:
        await site.step(StopTrial(number=lease.number, reason="enough"))
    if closed:
        await site.step(gone(left[1], "RELEASED"))
    await site.step(StopTrial(number=left[1].number, reason="enough"))
    assert bundles(await live(site)) == {full: 4, other: 1}
    reports = [
        site.report(lease, 2, 0.5) for lease in await live(site) if lease.grant and lease.grant.id == full
    ]
    outcomes = await site.step(*reports)
    said = [one.decision.action for one in outcomes if isinstance(one, Accepted) and one.decision is not None]
    assert Counter(said) == ({"CONTINUE": 4} if closed else {"CONTINUE": 3, "PAUSE": 1})
    assert bundles(await live(site)) == ({full: 4, other: 1} if closed else {full: 3, other: 2})


async def by_memory(engine: AsyncEngine, trials: int) -> StudySite:
    """Each member takes 10 bytes, and eight are worthwhile. The first device holds all eight of them."""
    site = await StudySite(engine, make_spec(policy=GOES_ON, max_trials=trials, fuse="auto")).create()
    await site.connect("large", slots=1, memory_bytes=100)
    first, *_ = await site.kick()
    for count, time_s in ((2, 1.0), (4, 1.1)):
        cost = TurnCost(members=count, turns=10, time_s=10 * time_s, memory_bytes=10 * count)
        await site.step(site.report(first, 1, 0.5, turn=cost))
    assert list(bundles(await live(site)).values()) == [8]
    return site


async def test_no_more_members_leave_than_a_device_of_less_memory_has_room_for(engine: AsyncEngine) -> None:
    site = await by_memory(engine, trials=8)
    await site.connect("small", slots=1, memory_bytes=25)
    assert Counter(await all_reach(site, 2)) == {"CONTINUE": 6, "PAUSE": 2}
    sizes = bundles(await live(site))
    assert sorted(sizes.values()) == [2, 6]
    (small,) = [grant for grant, count in sizes.items() if count == 2]
    gone_on = next(lease for lease in await live(site) if lease.grant is not None and lease.grant.id == small)
    await site.step(StopTrial(number=gone_on.number, reason="enough"))
    assert Counter(await all_reach(site, 4)) == {"CONTINUE": 6, "PAUSE": 1}, "one seat is open there"
    assert sorted(bundles(await live(site)).values()) == [2, 5]


async def test_a_bundle_that_is_full_for_its_device_is_not_shared_with(engine: AsyncEngine) -> None:
    """The large device is full. An even share over all three would keep both members on the small one."""
    site = await by_memory(engine, trials=10)
    await site.connect("small", slots=1, memory_bytes=25)
    pair = await site.kick()
    assert sorted(bundles(await live(site)).values()) == [2, 8]
    await site.connect("idle", slots=1, memory_bytes=25)
    outcomes = await site.step(*(site.report(lease, 2, 0.5) for lease in pair))
    said = [one.decision.action for one in outcomes if isinstance(one, Accepted) and one.decision is not None]
    assert sorted(said) == ["CONTINUE", "PAUSE"]
    assert sorted(bundles(await live(site)).values()) == [1, 1, 8]
