"""Commands, several studies, gangs, and the same decisions with any cache, on a real Postgres."""

import re

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace.errors import StudyEndedError, TrialEndedError, TrialNotFoundError
from headrace_services.scheduler.core.inputs import (
    AddTrials,
    Assignment,
    Cancellation,
    PauseStudy,
    PauseTrial,
    PlaceNow,
    ResumeStudy,
    ResumeTrial,
    StopStudy,
    StopTrial,
    Suggest,
    Suggested,
)
from headrace_services.scheduler.store import load, tables, unseen

RUN_ALL = {"kind": "run_all"}


async def test_a_paused_study_starts_nothing_and_a_resumed_one_continues(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy=RUN_ALL, max_trials=2)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.step(PauseStudy())
    await site.step(gone(lease, "LOST"))
    assert await site.kick() == []
    await site.step(ResumeStudy())
    assert len(site.leases) == 2


async def test_a_paused_study_pauses_trials_at_their_next_rung(engine: AsyncEngine) -> None:
    policy = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "variant": "stopping"}
    site = await StudySite(engine, make_spec(policy=policy)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.step(PauseStudy())
    assert (await site.tell(lease, 1, 0.5)).action == "PAUSE"
    trial = await site.trial(0)
    assert (trial.state, trial.milestone) == ("PAUSED", 3)
    await site.step(ResumeStudy())
    assert (await site.trial(0)).state == "RESUMED"


async def test_a_held_trial_stays_paused_and_keeps_the_study_open(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_trials=1)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.step(PauseTrial(number=0))
    assert (await site.tell(lease, 1, 0.5)).action == "PAUSE"
    await site.kick()
    assert (await site.study()).state == "ACTIVE"
    await site.step(ResumeTrial(number=0))
    again = list(site.leases.values())[-1]  # alone in its study, it trains to the end
    assert (await site.tell(again, 9, 0.5)).action == "STOP"
    assert (await site.study()).state == "COMPLETED"


async def test_held_trials_are_counted_only_where_the_study_may_be_complete(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []
    count = load._user_paused_count
    monkeypatch.setattr(
        load, "_user_paused_count", lambda conn, study_id: counted.append(study_id) or count(conn, study_id)
    )
    site = await StudySite(engine, make_spec(max_trials=2)).create()
    await site.connect(slots=1)
    (first,) = await site.kick()
    await site.tell(first, 9, 0.5)
    assert counted == []
    (_, second) = site.leases.values()
    await site.tell(second, 9, 0.5)
    assert counted == [site.study_id]
    assert (await site.study()).state == "COMPLETED"


async def test_stopping_a_trial_cancels_its_process_and_frees_its_slot(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    site.orders.clear()
    await site.step(StopTrial(number=0, reason="enough"))
    assert [type(order) for order in site.orders] == [Cancellation, Assignment]
    assert site.orders[0].lease.id == lease.id
    trial = await site.trial(0)
    assert (trial.reason, trial.detail) == ("CANCELLED", "enough")


async def test_stopping_a_study_ends_everything_katib_2061(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=2)
    await site.kick()
    await site.step(StopStudy(reason="enough"))
    await site.step(StopStudy(reason="again"))
    assert (await site.study()).detail == "enough"
    assert {(row.state, row.reason) for row in await site.trials()} == {("TERMINATED", "CANCELLED")}
    taken = await site.rows(select(tables.slot).where(tables.slot.c.grant_id.is_not(None)))
    assert taken == []


async def test_commands_that_cannot_be_carried_out_change_nothing(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_trials=2)).create()
    await site.kick()
    await site.step(StopTrial(number=0, reason=""))
    before = (await site.study()).cursor
    outcomes = await site.step(StopTrial(number=0, reason=""), PauseTrial(number=99))
    assert [type(outcome) for outcome in outcomes] == [TrialEndedError, TrialNotFoundError]
    assert f"`headrace why {site.name} 0`" in str(outcomes[0])
    assert "`headrace resume` is for paused trials" in str(outcomes[0])
    assert "study.add_trials()" in str(outcomes[0])
    assert (await site.study()).cursor == before
    await site.step(StopStudy(reason=""))
    outcomes = await site.step(PauseStudy(), ResumeStudy(), AddTrials(params=({"x": 0.5},)))
    assert [type(outcome) for outcome in outcomes] == [StudyEndedError] * 3


async def test_added_and_enqueued_configurations_come_beside_the_sampler_s(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(enqueued=[{"x": 0.25}], max_trials=2)).create()
    await site.step(AddTrials(params=({"x": 0.75},)), PlaceNow())
    values = [row.params["x"] for row in await site.trials()]
    assert {0.25, 0.75} <= set(values)
    assert len(values) == 3


async def test_a_grid_that_is_used_up_ends_the_study(engine: AsyncEngine) -> None:
    space = {"x": {"type": "categorical", "values": ["a", "b"]}}
    spec = make_spec(space=space, sampler={"kind": "grid"}, policy=RUN_ALL, max_trials=10)
    site = await StudySite(engine, spec).create()
    await site.connect(slots=2)
    for lease in await site.kick():
        await site.tell(lease, 9, 0.5)
    assert [row.params["x"] for row in await site.trials()] == ["a", "b"]
    assert (await site.study()).state == "COMPLETED"


async def test_max_parallel_bounds_what_runs(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_parallel=2)).create()
    await site.connect(slots=5)
    assert len(await site.kick()) == 2


async def test_two_studies_never_share_a_slot(engine: AsyncEngine) -> None:
    one = await StudySite(engine, make_spec()).create()
    two = await StudySite(engine, make_spec()).create()
    await one.connect(slots=3)
    assert len(await one.kick()) == 3
    assert await two.kick() == []
    (lease, *_) = one.leases.values()
    await one.step(PauseStudy())
    await one.step(gone(lease, "LOST"))
    assert one.last is not None
    assert one.last.effects.wake == (two.study_id,)
    assert len(await two.kick()) == 1


async def test_a_gang_takes_its_slots_on_one_worker_or_none(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(resources={"gpus": 2})).create()
    await site.connect("a", slots=1, gpus=1)
    await site.connect("b", slots=1, gpus=1)
    assert await site.kick() == []
    await site.connect("c", slots=5, gpus=5)
    leases = await site.kick()
    assert [lease.slots for lease in leases] == [(0, 1), (2, 3)]


async def test_ask_and_tell_without_any_worker(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(template=None, max_trials=1, policy=RUN_ALL)).create()
    await site.connect(slots=1)
    ask = Suggest(client_id="me", ttl_s=60)
    (first,) = await site.step(ask)
    (second,) = await site.step(ask)
    assert isinstance(first, Suggested)
    assert first.lease is not None
    assert second == Suggested(trial=None, lease=None, done=False)
    assert (await site.tell(first.lease, 9, 0.5)).action == "STOP"
    (third,) = await site.step(ask)
    assert third == Suggested(trial=None, lease=None, done=True)
    assert (await site.study()).state == "COMPLETED"


async def drive(site: StudySite, *, warm: bool) -> list[str]:
    """Run a study on one slot to its end with made-up values, and return its log."""
    await site.connect(slots=1)
    await site.kick()
    reached: dict[str, int] = {}
    while (await site.study()).state == "ACTIVE":
        lease = list(site.leases.values())[-1]
        step = next(level for level in (1, 3, 9) if level > reached.get(lease.id, lease.step))
        reached[lease.id] = step
        await site.tell(lease, step, ((lease.number * 7919) % 101) / step)
        if not warm:
            site.fold = None
    return [re.sub(r"study-\d+-w", "w", event.message) for event in await site.events()]


@pytest.mark.cases(1)
@pytest.mark.parametrize("at_once", [1, 2, 512])
async def test_a_cold_cache_decides_like_a_warm_one(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(unseen, "AT_ONCE", at_once)
    spec = make_spec(max_trials=12, max_parallel=1)
    warm = await drive(await StudySite(engine, spec).create(), warm=True)
    cold = await drive(await StudySite(engine, spec).create(), warm=False)
    assert warm == cold
    assert sum("promoted to 9 steps" in line for line in warm) >= 1


async def test_the_same_seed_on_one_slot_gives_the_same_trials_and_decisions(engine: AsyncEngine) -> None:
    logs = [
        await drive(await StudySite(engine, make_spec(seed=seed, max_parallel=1)).create(), warm=True)
        for seed in (3, 3, 4)
    ]
    assert logs[0] == logs[1] != logs[2]
