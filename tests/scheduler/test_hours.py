"""`until.hours`: which time counts, and that it is counted once, whichever replica counts it."""

from typing import Any

import pytest
from reopened_site import spec_now
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace_services.scheduler.core import hours
from headrace_services.scheduler.core.inputs import (
    AfterEnded,
    ExtendStudy,
    LeaseExpired,
    PauseStudy,
    PlaceNow,
    ReportArrived,
    ResumeStudy,
    Suggest,
    Suggested,
)
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.core.study_status import Progress
from headrace_services.scheduler.replay.replaying import replay
from headrace_services.scheduler.rpc import convert
from headrace_services.scheduler.store import rows, studies
from headrace_services.scheduler.store.database import transaction

RUN_ALL = {"kind": "run_all"}
HOUR = 3600.0


# --- the account ------------------------------------------------------------------------------------


def at(progress: Progress, now_s: float, *, runs: bool, most_gap_s: float = hours.MOST_GAP_S) -> Progress:
    """The account after a cycle."""
    return hours.turned(hours.seen(progress, now_s, most_gap_s), now_s, runs=runs)


def test_time_counts_from_a_start_to_the_last_stop_over_any_number_of_cycles() -> None:
    progress = Progress()
    for now_s, runs in [(100, False), (1000, True), (1010, True), (1030, False), (9000, False), (9000, True)]:
        progress = at(progress, now_s, runs=runs)
    assert hours.left_s(progress, 1) == HOUR - 30
    assert hours.ends_s(progress, 1) == 9000 + HOUR - 30
    progress = at(at(progress, 9040, runs=True), 9050, runs=False)
    assert (hours.left_s(progress, 1), hours.ends_s(progress, 1)) == (HOUR - 80, None)


def test_counting_twice_at_one_moment_counts_once() -> None:
    progress = at(Progress(), 1000, runs=True)
    once = at(progress, 1010, runs=True)
    assert at(once, 1010, runs=True) == once


def test_an_outage_counts_for_a_minute_and_moves_the_end() -> None:
    progress = at(Progress(), 1000, runs=True)
    after = at(progress, 1000 + 8 * HOUR, runs=True)
    assert hours.left_s(after, 2) == 2 * HOUR - hours.MOST_GAP_S
    ends_s = hours.ends_s(after, 2)
    assert ends_s == pytest.approx(1000 + 10 * HOUR - hours.MOST_GAP_S)
    unbroken = at(progress, 1000 + 8 * HOUR, runs=True, most_gap_s=hours.NO_OUTAGES)
    assert hours.left_s(unbroken, 10) == 2 * HOUR


def test_a_clock_that_is_put_back_counts_nothing() -> None:
    progress = at(at(Progress(), 1000, runs=True), 1020, runs=True)
    back = at(progress, 500, runs=True)
    assert hours.left_s(back, 1) == HOUR - 20
    assert hours.left_s(at(back, 530, runs=True), 1) == HOUR - 50


def test_nothing_is_over_before_anything_has_run() -> None:
    assert not hours.are_over(Progress(), 1e-9)
    assert hours.are_over(at(at(Progress(), 0, runs=True), 1, runs=True), 1e-9)


# --- studies ----------------------------------------------------------------------------------------


async def begun(engine: AsyncEngine, **changes: Any) -> StudySite:
    """A study that ends as soon as its hours are used up: its trials get no time to stop."""
    template = {"callable": "train:train", "working_dir": "/tmp", "grace": 0}
    spec = make_spec(**{"until": {"hours": 2}, "policy": RUN_ALL, "template": template} | changes)
    return await StudySite(engine, spec).create()


async def pass_time(site: StudySite, seconds: float, *, away: bool = False) -> None:
    """Let that much time pass. With `away`, no scheduler runs meanwhile: it is one gap between two cycles."""
    moved = ["since_s", "seen_s"] if away else ["since_s"]
    async with site.engine.begin() as conn:
        for name in moved:
            shift = (
                "UPDATE study SET standing = jsonb_set(standing, ARRAY['progress', :name],"
                " to_jsonb((standing #>> ARRAY['progress', :name])::double precision - :seconds))"
                " WHERE id = :id AND standing #>> '{progress,since_s}' IS NOT NULL"
            )
            await conn.execute(text(shift), {"id": site.study_id, "name": name, "seconds": seconds})
        older = "UPDATE study SET create_time = create_time - make_interval(secs => :seconds) WHERE id = :id"
        await conn.execute(text(older), {"id": site.study_id, "seconds": seconds})


async def used_s(site: StudySite) -> float:
    progress = rows.standing((await site.study()).standing).progress
    return progress.spent_s + progress.running_s


async def state(site: StudySite) -> str:
    await site.step(PlaceNow())
    return str((await site.study()).state)


async def test_a_study_that_never_had_a_slot_does_not_fail_by_time(engine: AsyncEngine) -> None:
    site = await begun(engine)
    await site.kick()
    await pass_time(site, 100 * HOUR)
    assert await state(site) == "ACTIVE"
    assert await used_s(site) == 0
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await pass_time(site, 1.5 * HOUR)
    assert (await site.tell(lease, 1, 0.5)).action == "CONTINUE"
    await pass_time(site, HOUR)
    assert await state(site) == "COMPLETED"
    assert (await site.study()).detail == "its trials have run for 2 hours (until: 2 hours)"
    found = replay(await spec_now(site), await site.log())
    assert found.identical, found.differences


async def test_a_study_that_has_run_for_its_hours_without_a_value_fails(engine: AsyncEngine) -> None:
    site = await begun(engine)
    await site.connect(slots=1)
    await site.kick()
    await pass_time(site, 2 * HOUR)
    assert await state(site) == "FAILED"
    assert "no trial has a usable value" in (await site.study()).detail


async def test_a_study_that_is_paused_over_night_is_not_over_in_the_morning(engine: AsyncEngine) -> None:
    site = await begun(engine, policy={"kind": "asha", "rungs": [1, 3, 9]})
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.step(PauseStudy())
    await pass_time(site, 0.5 * HOUR)  # it trains up to its rung
    assert (await site.tell(lease, 1, 0.5)).action == "PAUSE"
    await pass_time(site, 12 * HOUR)
    assert await state(site) == "PAUSED"
    await site.step(ResumeStudy(), PlaceNow())
    assert 0.5 * HOUR <= await used_s(site) < 0.5 * HOUR + 60


async def test_an_outage_of_all_schedulers_does_not_use_the_hours_up(engine: AsyncEngine) -> None:
    site = await begun(engine)
    await site.connect(slots=1)
    (lease,) = await site.kick()
    for _ in range(3):
        await pass_time(site, 24 * HOUR, away=True)
        site.fold = None  # another scheduler starts
        assert await state(site) == "ACTIVE"
    assert 3 * hours.MOST_GAP_S <= await used_s(site) < 4 * hours.MOST_GAP_S
    await site.tell(lease, 1, 0.5)


async def test_time_without_a_trial_on_a_worker_does_not_count(engine: AsyncEngine) -> None:
    site = await begun(engine, max_trials=1)
    await site.connect(slots=1)
    (lease,) = await site.kick()
    async with engine.begin() as conn:
        await conn.execute(text("UPDATE worker SET expires_at = '2000-01-01', connected = false"))
    lost = LeaseExpired(lease_id=lease.id, number=0, attempt=1, sequence=None, why="silence")
    await site.step(lost)
    await pass_time(site, 10 * HOUR)
    assert await state(site) == "ACTIVE"
    assert await used_s(site) < 60


async def test_one_trial_that_runs_is_enough_and_several_count_once(engine: AsyncEngine) -> None:
    site = await begun(engine)
    await site.connect(slots=2)
    first, _ = await site.kick()
    await pass_time(site, 0.25 * HOUR)
    await site.step(gone(first, "FAILED"), PlaceNow())
    await pass_time(site, 0.25 * HOUR)
    assert await state(site) == "ACTIVE"
    assert 0.5 * HOUR <= await used_s(site) < 0.5 * HOUR + 60


async def test_a_client_that_holds_a_trial_counts_until_its_lease_runs_out(engine: AsyncEngine) -> None:
    site = await begun(engine, template=None)
    (asked,) = await site.step(Suggest(client_id="c", ttl_s=60))
    assert isinstance(asked, Suggested)
    lease = asked.lease
    assert lease is not None
    await pass_time(site, 0.5 * HOUR)
    async with engine.begin() as conn:
        await conn.execute(text("UPDATE lease SET expires_at = '2000-01-01'"))
    await site.step(LeaseExpired(lease_id=lease.id, number=0, attempt=1, sequence=None, why="silence"))
    await pass_time(site, 10 * HOUR)  # nobody has the trial
    assert await state(site) == "ACTIVE"
    await site.step(late(lease))
    await pass_time(site, HOUR)
    await site.step(PlaceNow())
    assert 1.5 * HOUR <= await used_s(site) < 1.5 * HOUR + 60


def late(lease: Lease) -> ReportArrived:
    return ReportArrived(
        lease_id=lease.id, number=0, attempt=1, sequence=None, step=1, metrics={"loss": 0.5}, checkpoint=None
    )


async def test_a_study_that_waits_for_another_one_has_all_its_hours(engine: AsyncEngine) -> None:
    site = await begun(engine)
    async with engine.begin() as conn:
        await conn.execute(text("UPDATE study SET after = 'first' WHERE id = :id"), {"id": site.study_id})
    await site.connect(slots=1)
    await pass_time(site, 100 * HOUR)
    assert await state(site) == "ACTIVE"
    await site.step(AfterEnded(study="first"))
    assert await used_s(site) < 60
    assert await state(site) == "ACTIVE"


async def test_an_extension_counts_from_0_also_while_trials_run(engine: AsyncEngine) -> None:
    site = await begun(engine)
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.tell(lease, 1, 0.5)
    await pass_time(site, 1.9 * HOUR)
    await site.step(ExtendStudy(trials=1, steps=None))
    assert await used_s(site) < 60
    await pass_time(site, 2 * HOUR)
    assert await state(site) == "COMPLETED"
    await site.step(ExtendStudy(trials=1, steps=None))
    assert await state(site) == "ACTIVE"


async def test_a_replica_finds_whose_hours_are_to_be_counted_and_whose_are_over(engine: AsyncEngine) -> None:
    async def found(site: StudySite) -> bool:
        async with transaction(engine) as conn:
            return site.study_id in await studies.to_count(conn)

    site = await begun(engine)
    await site.kick()
    await pass_time(site, 100 * HOUR)
    assert not await found(site), "nothing runs"
    await site.connect(slots=1)
    await site.kick()
    assert not await found(site), "a cycle has just counted"
    await pass_time(site, hours.COUNT_EVERY_S, away=True)
    assert await found(site)
    await site.kick()
    assert not await found(site)
    await pass_time(site, 2 * HOUR)
    assert await found(site), "they are over"
    await site.kick()
    assert not await found(site)


async def test_the_end_is_shown_as_a_date_only_while_a_trial_runs(engine: AsyncEngine) -> None:
    async def shown(site: StudySite) -> Any:
        async with transaction(engine) as conn:
            study = await studies.get(conn, site.study_id)
        assert study is not None
        return convert.study(study, studies.Figures()).status.until

    site = await begun(engine, max_trials=1)
    await site.connect(slots=1)
    assert not (await shown(site)).HasField("deadline")
    assert (await shown(site)).time_left.seconds == 2 * HOUR
    (lease,) = await site.kick()
    await pass_time(site, HOUR)
    await site.tell(lease, 1, 0.5)
    now = await shown(site)
    ends_s = now.deadline.seconds - (await site.study()).create_time.timestamp()
    assert ends_s == pytest.approx(2 * HOUR, abs=60)
    assert now.time_left.seconds == pytest.approx(HOUR, abs=60)
    async with engine.begin() as conn:
        await conn.execute(text("UPDATE worker SET expires_at = '2000-01-01', connected = false"))
    await site.step(LeaseExpired(lease_id=lease.id, number=0, attempt=1, sequence=None, why="silence"))
    assert not (await shown(site)).HasField("deadline")
    assert (await shown(site)).time_left.seconds == pytest.approx(HOUR, abs=60)
