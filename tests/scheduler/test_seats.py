"""Bundles: several trials in one process, on one grant with several seats, cycle by cycle on a real database."""

from collections import Counter
from typing import Any

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import ASHA, StudySite, gone, make_spec

from headrace_services.scheduler.core import seats
from headrace_services.scheduler.core.capacity import Measured, Profile, TurnCost
from headrace_services.scheduler.core.exits import MAX_LOSSES_IN_ROW
from headrace_services.scheduler.core.inputs import (
    LeaseExpired,
    PauseTrial,
    Preemption,
    ResumeTrial,
    StopTrial,
)
from headrace_services.scheduler.core.records import BundleView, Lease, Trial
from headrace_services.scheduler.rpc import convert as rpc_convert
from headrace_services.scheduler.store import cluster, studies, tables, trials
from headrace_services.scheduler.store import profiles as store_profiles
from headrace_services.scheduler.store.pipeline import pipeline

RUN_ALL = {"kind": "run_all"}
WIDTHS = {
    "x": {"type": "float", "low": 0.0, "high": 1.0},
    "width": {"type": "categorical", "values": [8, 16]},
}


async def fused(engine: AsyncEngine, *, slots: int = 1, most: int = 4, **changes: Any) -> StudySite:
    """A study with bundles, and one worker."""
    fields = {"policy": RUN_ALL, "max_trials": 12, "fuse": {"most": most}, **changes}
    site = await StudySite(engine, make_spec(**fields)).create()
    await site.connect(slots=slots)
    return site


def grant_of(lease: Lease) -> str:
    assert lease.grant is not None
    return lease.grant.id


def members(leases: list[Lease]) -> list[int]:
    """How many leases each grant has, in descending order."""
    return sorted(Counter(map(grant_of, leases)).values(), reverse=True)


async def live(site: StudySite) -> list[Lease]:
    """The live leases."""
    le = tables.lease
    found = {row.id for row in await site.rows(select(le).where(le.c.study_id == site.study_id, le.c.live))}
    return [lease for lease in site.leases.values() if lease.id in found]


async def grants(site: StudySite, *, alive: bool = True) -> list[Any]:
    g = tables.slot_grant
    return await site.rows(select(g).where(g.c.study_id == site.study_id, g.c.live == alive).order_by(g.c.id))


async def test_trials_spread_over_the_slots_and_then_fill_the_emptiest_bundle(engine: AsyncEngine) -> None:
    site = await fused(engine, slots=2, most=3)
    leases = await site.kick()
    assert members(leases) == [3, 3]
    assert grant_of(leases[0]) != grant_of(leases[1]), "slots before seats"
    assert (await site.study()).standing["usage"]["cpu_slots"] == 2, "a grant is charged once"
    assert [grant.seats for grant in await grants(site)] == [3, 3]
    said = [event.message for event in await site.events("trial_placed") if event.number == 3]
    assert said == [f"trial 3 placed (seat): seat 2 of 3 in bundle {grant_of(leases[3])}"]


async def test_a_freed_seat_is_given_on_in_the_same_step_and_the_process_stays(engine: AsyncEngine) -> None:
    site = await fused(engine, most=3)
    first, *_ = await site.kick()
    assert (await site.tell(first, 9, 0.5)).action == "STOP"
    now = await live(site)
    assert members(now) == [3]
    assert {grant_of(lease) for lease in now} == {first.id}
    assert max(lease.number for lease in now) == 3


async def test_the_last_member_leaves_and_the_next_one_continues_in_its_process(engine: AsyncEngine) -> None:
    site = await fused(engine, most=2, max_trials=5, max_parallel=1)
    first, second = await site.kick()
    await site.step(site.report(first, 9, 0.5), site.report(second, 9, 0.5))
    now = await live(site)
    assert {grant_of(lease) for lease in now} == {first.id}, "the grant was revived"
    assert members(now) == [2]
    assert [grant.id for grant in await grants(site)] == [first.id]
    assert await grants(site, alive=False) == []
    (slot,) = await site.rows(select(tables.slot))
    assert slot.grant_id == first.id
    assert (await site.study()).standing["usage"]["cpu_slots"] == 1


async def test_a_seat_of_a_shared_gpu_is_revived_too(engine: AsyncEngine) -> None:
    half = {"gpu_milli": 500, "gpu_memory_bytes": 4}
    fields = {"policy": RUN_ALL, "max_trials": 5, "fuse": {"most": 2}, "max_parallel": 1, "resources": half}
    site = await StudySite(engine, make_spec(**fields)).create()
    await site.connect(slots=1, gpus=1)
    first, second = await site.kick()
    await site.step(site.report(first, 9, 0.5), site.report(second, 9, 0.5))
    assert {grant_of(lease) for lease in await live(site)} == {first.id}
    (slot,) = await site.rows(select(tables.slot))
    assert (slot.shared_milli, slot.shared_memory_bytes) == (500, 4)


async def test_a_bundle_holds_trials_of_one_key_and_others_are_passed_over(engine: AsyncEngine) -> None:
    site = await fused(engine, most=4, space=WIDTHS, fuse={"most": 4, "apart": ["width"]}, max_trials=20)
    leases = await site.kick()
    rows = {row.number: row.params["width"] for row in await site.trials()}
    assert members(leases) == [4]
    assert len({rows[lease.number] for lease in leases}) == 1
    waiting = {rows[n] for n in rows if n not in {lease.number for lease in leases}}
    assert waiting, "trials of the other width wait"
    for lease in leases:
        await site.step(StopTrial(number=lease.number, reason="r"))
    after = await live(site)
    assert members(after) == [4]


async def test_a_bundle_that_dies_is_run_again_in_halves_until_the_cause_is_alone(
    engine: AsyncEngine,
) -> None:
    site = await fused(engine, most=4, max_trials=4)
    killer, sizes = 1, list[int]()
    await site.kick()
    for _ in range(40):
        at_work = await live(site)
        if not at_work:
            break
        (grant,) = {grant_of(lease) for lease in at_work}
        if killer in {lease.number for lease in at_work}:
            sizes.append(len(at_work))
            lost = [gone(lease, "LOST", error="died of SIGKILL") for lease in at_work]
            for one in lost[:-1]:
                await site.step(one)
                assert grant not in {
                    grant_of(lease) for lease in site.leases.values() if lease not in at_work
                }, "nobody joins a process that is gone"
            await site.step(lost[-1])
        else:
            for lease in at_work:
                await site.step(site.report(lease, 9, 0.5))
    assert [row.reason for row in await site.trials()] == ["COMPLETED", "FAILED", "COMPLETED", "COMPLETED"]
    assert sizes[:3] == [4, 2, 1]
    assert set(sizes[2:]) == {1}
    assert len(sizes) == 2 + 4, "alone it is charged as any trial that is killed"
    assert all(row.failures == 0 for row in await site.trials())


async def test_progress_forgets_the_losses_and_a_suspect_joins_only_few(engine: AsyncEngine) -> None:
    site = await fused(engine, slots=2, most=4, max_trials=8)
    leases = await site.kick()
    victims = [lease for lease in leases if grant_of(lease) == leases[0].id]
    await site.step(*(gone(lease, "LOST", error="gone") for lease in victims))
    after = await grants(site)
    assert sorted(grant.seats for grant in after) == [2, 4], "the lost ones begin a bundle of two seats"
    assert all(not grant.closed for grant in after)
    (lost,) = await grants(site, alive=False)
    assert (lost.id, lost.closed) == (leases[0].id, True)
    now = await live(site)
    assert members(now) == [4, 2], "two of the lost ones wait: the full bundle takes none"
    other = next(lease for lease in now if lease.attempt == 1)
    await site.step(StopTrial(number=other.number, reason="r"))
    assert members(await live(site)) == [3, 2], "they may share a process with one other trial only"
    suspect = next(lease for lease in now if lease.attempt == 2)
    await site.tell(suspect, 1, 0.5)
    assert (await site.trial(suspect.number)).losses_in_row == 0


async def test_max_parallel_counts_bundles(engine: AsyncEngine) -> None:
    site = await fused(engine, slots=3, most=2, max_parallel=2)
    leases = await site.kick()
    assert members(leases) == [2, 2]
    await site.step(StopTrial(number=0, reason="r"))
    assert members(await live(site)) == [2, 2], (
        "a seat is filled although there are as many bundles as may be"
    )


async def test_a_member_waits_at_its_rung_alone_and_comes_back_when_promoted(engine: AsyncEngine) -> None:
    site = await fused(engine, most=3, max_trials=4, policy=ASHA)
    first, second, third = await site.kick()
    decision = await site.tell(first, 1, 0.1)
    assert decision.action == "PAUSE"
    assert members(await live(site)) == [3], "the fourth trial takes its seat"
    await site.tell(second, 1, 0.5)
    await site.tell(third, 1, 0.9)
    resumed = await site.trial(0)
    assert (resumed.state, resumed.attempt) == ("RESUMED", 2)
    again = site.leases[resumed.lease_id]
    assert grant_of(again) == first.id
    goes_to = [e.detail["explanation"].get("slot_goes_to") for e in await site.events("decision_made")]
    assert goes_to[0] == f"studies/{site.name}/trials/3"


async def test_a_member_that_fails_of_its_own_is_charged_alone(engine: AsyncEngine) -> None:
    site = await fused(engine, most=3, max_trials=3, max_retries=0)
    first, *others = await site.kick()
    await site.tell(others[0], 1, 0.5)
    await site.step(gone(first, "FAILED", error="ValueError: bad"))
    assert (await site.trial(first.number)).reason == "FAILED"
    assert {lease.id for lease in await live(site)} == {lease.id for lease in others}
    assert [grant.closed for grant in await grants(site)] == [False]


async def test_a_silent_worker_closes_the_bundle(engine: AsyncEngine) -> None:
    site = await fused(engine, most=2, max_trials=3)
    first, _ = await site.kick()
    async with engine.begin() as conn:
        await conn.execute(
            update(tables.worker).values(expires_at=text("clock_timestamp() - interval '1 hour'"))
        )
    await site.step(
        LeaseExpired(lease_id=first.id, number=first.number, attempt=1, sequence=None, why="silence")
    )
    assert [grant.closed for grant in await grants(site)] == [True]
    assert len(await live(site)) == 1


async def test_no_trial_joins_on_a_worker_that_is_away_or_has_restarted(engine: AsyncEngine) -> None:
    site = await fused(engine, most=3, max_trials=8)
    first, *_ = await site.kick()
    await site.connect(slots=1, incarnation="2")
    await site.step(StopTrial(number=first.number, reason="r"))
    assert members(await live(site)) == [2]


async def test_a_held_member_gives_its_seat_and_takes_one_later(engine: AsyncEngine) -> None:
    site = await fused(engine, most=2, max_trials=3, policy=ASHA)
    first, _ = await site.kick()
    await site.step(PauseTrial(number=first.number))
    assert (await site.tell(first, 1, 0.5)).action == "PAUSE"
    assert members(await live(site)) == [2]
    await site.step(ResumeTrial(number=first.number))
    assert (await site.study()).state == "ACTIVE"


@pytest.mark.parametrize(
    ("most", "losses", "allowed", "alone"),
    [(32, 0, 32, 0), (32, 1, 16, 0), (32, 5, 1, 0), (32, 7, 1, 2), (3, 1, 1, 0)],
)
def test_every_loss_halves_the_allowance(most: int, losses: int, allowed: int, alone: int) -> None:
    trial = Trial(study_id=1, number=0, params={"x": 0.5}, milestone=9, losses_in_row=losses)
    assert seats.allowance(most, trial) == allowed
    assert seats.losses_alone(most, losses) == alone
    assert seats.allowance(1, trial) == 1
    assert seats.losses_alone(1, losses) == losses


async def test_views_say_who_shares_a_process(engine: AsyncEngine) -> None:
    site = await fused(engine, most=3, max_trials=3)
    first, *_ = await site.kick()
    async with engine.connect() as conn:
        view = await trials.one(conn, site.study_id, 1)
        (shown,) = await cluster.workers(conn, [cluster.Key(f"{site.name}-w", 1)])
    assert view is not None
    assert view.bundle == BundleView(id=first.id, members=3, seats=3)
    assert [(holder.bundle, holder.bundle_seats) for holder in shown.slots[0].holders] == [(first.id, 3)] * 3
    await site.tell(first, 9, 0.5)
    async with engine.connect() as conn:
        over, stays = [await trials.one(conn, site.study_id, number) for number in (0, 1)]
    assert over is not None
    assert over.bundle is None
    assert stays is not None
    assert stays.bundle == BundleView(id=first.id, members=2, seats=3)


async def test_a_bundle_is_asked_to_leave_as_one_and_takes_nobody_in(engine: AsyncEngine) -> None:
    low = await fused(engine, most=3)
    leases = await low.kick()
    high = await StudySite(engine, make_spec(policy=RUN_ALL, max_trials=1, priority=1)).create()
    assert await high.kick() == []
    told = [order.lease.id for order in high.orders if isinstance(order, Preemption)]
    assert sorted(told) == sorted(lease.id for lease in leases), "each member hears of it"
    assert [row.grant_id for row in await low.rows(select(tables.leave))] == [leases[0].id], (
        "the grant is asked once"
    )
    for left, lease in enumerate(leases, start=1):
        assert (await low.tell(lease, 1, 0.5)).action == "PAUSE"
        assert len(await live(low)) == 3 - left
    (started,) = await high.kick()
    assert started.slots == leases[0].slots
    assert await low.rows(select(tables.leave)) == []
    assert all(row.interruptions == 0 for row in await low.trials())


async def profiles(site: StudySite) -> list[Any]:
    b = tables.bundle_profile
    return await site.rows(select(b).where(b.c.study_id == site.study_id).order_by(b.c.digest))


async def test_a_bundle_out_of_memory_halves_the_next_ones_and_charges_nobody(engine: AsyncEngine) -> None:
    site = await fused(engine, most=8, max_trials=12)
    leases = await site.kick()
    assert members(leases) == [8]
    saved = leases[0]
    await site.tell(saved, 1, 0.5)
    words = "its bundle of 8 trials ran out of memory: MemoryError"
    for lease in leases:
        await site.step(gone(lease, "LOST", error=words, out_of_memory=8))
    after = await live(site)
    assert members(after) == [4], "the next bundle starts right"
    assert [grant.seats for grant in await grants(site)] == [4]
    assert [(row.device, row.most) for row in await profiles(site)] == [("", 4)]
    rows = {row.number: row for row in await site.trials()}
    assert all((row.failures, row.losses_in_row) == (0, 0) for row in rows.values()), "nobody is charged"
    assert next(one for one in after if one.number == saved.number).step == 1, (
        "it resumes from its checkpoint"
    )
    notes = [event.message for event in await site.events("note")]
    assert len(notes) == 1, "one lesson, however many tell of it"
    assert "hold up to 4 trials from now on: half of those with whom a process ran out of memory" in notes[0]
    site.fold = None  # another replica
    for lease in after:
        await site.step(gone(lease, "LOST", error=words, out_of_memory=4))
    assert [grant.seats for grant in await grants(site)] == [2]


async def test_under_auto_a_trial_is_alone_after_as_many_losses_as_it_has_company(
    engine: AsyncEngine,
) -> None:
    """Its bundle has 1,024 seats, of which two are open at first."""
    site = await fused(engine, fuse="auto", max_trials=1)
    await site.kick()
    losses = 0
    while at_work := await live(site):
        losses += 1
        await site.step(gone(at_work[0], "LOST", error="its worker is gone"))
    assert (await site.trial(0)).reason == "FAILED"
    assert losses == 1 + MAX_LOSSES_IN_ROW


async def test_a_lone_member_out_of_memory_is_put_alone_and_teaches_nothing(engine: AsyncEngine) -> None:
    site = await fused(engine, most=8, max_trials=1, max_retries=0)
    (lease,) = await site.kick()
    await site.step(gone(lease, "LOST", error="its bundle of 1 trial ran out of memory", out_of_memory=1))
    (again,) = await live(site)
    assert again.grant is not None
    assert again.grant.seats == 1, "now it is an ordinary trial"
    assert await profiles(site) == []
    await site.step(gone(again, "FAILED", error="MemoryError"))
    assert (await site.trial(0)).reason == "FAILED"


async def test_auto_starts_small_grows_while_it_pays_and_stops_at_the_knee(engine: AsyncEngine) -> None:
    site = await fused(engine, fuse="auto", max_trials=40)
    leases = await site.kick()
    assert members(leases) == [2]
    times = {2: 1.0, 4: 1.1, 8: 2.3}
    for step, (count, grown) in enumerate(((2, 4), (4, 8), (8, 8)), start=1):
        first, *_ = await live(site)
        cost = TurnCost(
            members=count, turns=10, time_s=10 * times[count], first_step_s=3.0 * count, later_step_s=0.1
        )
        await site.step(site.report(first, step, 0.5, turn=cost))
        assert members(await live(site)) == [grown], "the bundle that runs takes further trials in"
    assert len(await grants(site)) == 1
    for lease in (await live(site))[:5]:
        await site.step(site.report(lease, 9, 0.5))
    assert members(await live(site)) == [4], "beyond the knee nobody joins"
    (row,) = await profiles(site)
    assert {members: known["turns"] for members, known in row.steady.items()} == {"2": 10, "4": 10, "8": 10}
    assert row.most is None
    notes = [event.message for event in await site.events("note")]
    assert [note.partition(" hold up to ")[2].split()[0] for note in notes] == ["4", "8", "4"]
    async with engine.connect() as conn:
        study = await studies.get(conn, site.study_id)
        assert study is not None
        figures = (await studies.figures(conn, [study], whole=True))[site.study_id]
    shown = rpc_convert.study(study, figures).status.bundle_sizes
    assert [(one.trials, one.reason) for one in shown] == [
        (4, "4 do 3.64 steps a second, and 8 do 3.48: more gain little")
    ]
    assert [(turn.members, turn.turn_s) for turn in shown[0].turns] == [(2, 1.0), (4, 1.1), (8, 2.3)]
    assert (shown[0].first_step_trials, shown[0].first_step_s, shown[0].later_step_s) == (8, 24.0, 0.1)


async def test_each_key_has_a_profile_of_its_own(engine: AsyncEngine) -> None:
    site = await fused(engine, slots=2, space=WIDTHS, fuse={"most": 4, "apart": ["width"]}, max_trials=20)
    leases = await site.kick()
    first = leases[0]
    crowd = [lease for lease in leases if grant_of(lease) == grant_of(first)]
    for lease in crowd:
        await site.step(gone(lease, "LOST", error="out of memory", out_of_memory=4))
    assert first.grant is not None
    assert [(row.key, row.most) for row in await profiles(site)] == [(first.grant.key, 2)]
    sizes = {grant.key: grant.seats for grant in await grants(site)}
    assert sizes == {key: (2 if key == first.grant.key else 4) for key in sizes}


async def test_a_lesson_of_memory_that_was_not_read_again_stays(engine: AsyncEngine) -> None:
    """A study with very many keys does not read all of its profiles."""
    site = await fused(engine)
    for most, steady in ((4, {}), (None, {2: Measured(turns=1, time_s=1.0)}), (8, {})):
        async with engine.begin() as conn, pipeline(conn) as sent:
            unread = Profile(device="cpu", key="[1]", steady=steady, most=most)
            store_profiles.write(sent, site.study_id, [unread])
    (row,) = await profiles(site)
    assert (row.most, row.steady) == (4, {})
