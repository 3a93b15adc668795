"""Population-based training in a cycle: an exploit happens completely or not at all, and its checkpoints are kept."""

import math

import psycopg
import pytest
from sqlalchemy import Integer, Text, cast, literal, select
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, make_spec

from headrace.client.convert import trial as client_trial
from headrace.errors import InvalidFieldError
from headrace.spec import StudySpec
from headrace_services.scheduler.core.inputs import Accepted, AddTrials, ReportArrived, RestoredArrived
from headrace_services.scheduler.core.needs import EarlierCheckpoint
from headrace_services.scheduler.core.policies import RungResult, make_policy
from headrace_services.scheduler.core.records import Checkpoint, Decision, Lease
from headrace_services.scheduler.rpc import convert as rpc_convert
from headrace_services.scheduler.store import exploits, tables, trials
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.load import load
from headrace_services.scheduler.store.pipeline import Pipeline, Statement, pipeline

PBT = {"kind": "pbt", "interval": 2, "quantile": 0.25}


def population(members: int = 4, **policy: object) -> StudySpec:
    return make_spec(
        policy={**PBT, **policy},
        max_trials=members,
        max_steps=6,
        space={"x": {"type": "float", "low": 0.01, "high": 100.0, "log": True}},
    )


async def send(
    site: StudySite, lease: Lease, step: int, value: float, *, saves: bool = True, sequence: int | None = None
) -> Decision:
    """Report with a checkpoint of the trial's own."""
    site.sequences[lease.id] += 1
    report = ReportArrived(
        lease_id=lease.id,
        number=lease.number,
        attempt=lease.attempt,
        sequence=sequence or site.sequences[lease.id],
        step=step,
        metrics={"loss": value},
        checkpoint=Checkpoint(uri=f"file:///s/{lease.number}/{lease.attempt}-{step}/", step=step)
        if saves
        else None,
    )
    (outcome,) = await site.step(report)
    assert isinstance(outcome, Accepted)
    assert outcome.decision is not None
    return outcome.decision


async def lineage(site: StudySite) -> dict[int, list[tuple[int, int]]]:
    async with transaction(site.engine) as conn:
        found = await exploits.of_trials(conn, site.study_id, range(10))
    return {number: [(e.rung, e.donor) for e in listed] for number, listed in found.items()}


async def generation(site: StudySite, leases: list[Lease], step: int, values: list[float]) -> list[Decision]:
    return [await send(site, lease, step, value) for lease, value in zip(leases, values, strict=True)]


def newest(site: StudySite) -> list[Lease]:
    """Each trial's last lease, by number."""
    last = {lease.number: lease for lease in sorted(site.leases.values(), key=lambda lease: lease.attempt)}
    return [last[number] for number in sorted(last)]


async def test_the_worst_takes_over_the_best_in_one_step(engine: AsyncEngine) -> None:
    site = await StudySite(engine, population()).create()
    await site.connect(slots=4)
    leases = await site.kick()
    before = {row.number: row.params["x"] for row in await site.trials()}
    for lease, value in zip(reversed(leases), [0.9, 0.3, 0.2], strict=False):
        await send(site, lease, 2, value)
    # the trial that may be the worst waits
    assert {row.number: row.state for row in await site.trials()}[3] == "PAUSED"
    assert await lineage(site) == {}
    assert (await send(site, leases[0], 2, 0.1)).action == "CONTINUE"
    assert await lineage(site) == {3: [(0, 0)]}
    row = (await site.trials())[3]
    assert (row.state, row.attempt) == ("RESUMED", 2)
    assert row.checkpoint["uri"] == "file:///s/0/1-2/"
    assert row.params["x"] != before[3]
    lease = newest(site)[3]
    assert (lease.resume, lease.step) == (Checkpoint(uri="file:///s/0/1-2/", step=2), 2)
    (event,) = await site.events("trial_exploited")
    assert event.detail["exploit"]["donor"] == f"studies/{site.name}/trials/0"


async def test_each_keeps_its_own_best_and_shows_it_with_the_parameters_that_it_had(
    engine: AsyncEngine,
) -> None:
    """A trial that copies has not reached the donor's value, and its new parameters have no result yet."""
    site = await StudySite(engine, population()).create()
    await site.connect(slots=4)
    leases = await site.kick()
    before = {row.number: row.params["x"] for row in await site.trials()}
    await generation(site, leases, 2, [0.1, 0.2, 0.3, 0.9])
    async with transaction(engine) as conn:
        view = await trials.one(conn, site.study_id, 3)
    assert view is not None
    shown = client_trial(rpc_convert.trial(site.name, view, site.spec))
    assert (shown.best_value, shown.best_step) == (0.9, 2)
    assert shown.params == {"x": before[3]}
    assert shown.last_params["x"] != before[3]
    await send(site, newest(site)[3], 4, 0.05)
    async with transaction(engine) as conn:
        view = await trials.one(conn, site.study_id, 3)
    assert view is not None
    later = client_trial(rpc_convert.trial(site.name, view, site.spec))
    assert (later.best_value, later.params) == (0.05, shown.last_params)


async def test_mutation_is_of_the_donors_parameters(engine: AsyncEngine) -> None:
    site = await StudySite(engine, population(resample_probability=0.0)).create()
    await site.connect(slots=4)
    leases = await site.kick()
    before = {row.number: row.params["x"] for row in await site.trials()}
    await generation(site, leases, 2, [0.3, 0.1, 0.2, 0.9])
    mutated = (await site.trials())[3].params["x"]
    assert any(mutated == min(max(before[1] * factor, 0.01), 100.0) for factor in (1.2, 0.8))


async def test_a_report_that_comes_again_copies_nothing_again(engine: AsyncEngine) -> None:
    site = await StudySite(engine, population()).create()
    await site.connect(slots=4)
    leases = await site.kick()
    await generation(site, leases, 2, [0.1, 0.2, 0.3, 0.9])
    params = (await site.trials())[3].params
    site.fold = None  # another replica
    again = await send(site, leases[3], 2, 0.9, sequence=1)
    assert again.action == "PAUSE"
    assert await lineage(site) == {3: [(0, 0)]}
    assert (await site.trials())[3].params == params


async def test_the_database_refuses_a_second_exploit_at_a_rung(engine: AsyncEngine) -> None:
    site = await StudySite(engine, population()).create()
    await site.connect(slots=4)
    await generation(site, await site.kick(), 2, [0.1, 0.2, 0.3, 0.9])
    async with transaction(engine) as conn:
        (exploit,) = (await exploits.of_trials(conn, site.study_id, [3]))[3]
    with pytest.raises(psycopg.IntegrityError, match="exploit_pk"):
        async with transaction(engine) as conn, pipeline(conn) as sent:
            exploits.append(sent, site.study_id, [(exploit, 99)])


async def test_a_rolled_back_step_leaves_neither_half(engine: AsyncEngine) -> None:
    site = await StudySite(engine, population()).create()
    await site.connect(slots=4)
    leases = await site.kick()
    await generation(site, leases[:3], 2, [0.1, 0.2, 0.3])
    before = (await site.trials())[3]
    with pytest.MonkeyPatch.context() as patch:

        def dies(sent: Pipeline, *_: object) -> None:
            """Fails in the database, after everything before the exploit is written there."""
            sent.run(
                Statement(
                    lambda: select(cast(literal("killed between the clone and the mutation", Text), Integer))
                )
            )

        patch.setattr(exploits, "append", dies)
        with pytest.raises(psycopg.DataError, match="killed"):
            await send(site, leases[3], 2, 0.9)
    assert (await site.trials())[3] == before
    assert await lineage(site) == {}
    site.fold = None
    assert (await send(site, leases[3], 2, 0.9, sequence=1)).action == "PAUSE"
    assert await lineage(site) == {3: [(0, 0)]}


async def test_a_donor_without_a_durable_checkpoint_is_passed_over_ray_27170(engine: AsyncEngine) -> None:
    site = await StudySite(engine, population(members=8)).create()
    await site.connect(slots=8)
    leases = await site.kick()
    for lease, value in zip(leases[:7], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], strict=True):
        await send(site, lease, 2, value, saves=lease.number != 0)
    await send(site, leases[7], 2, 0.9)
    assert (await lineage(site))[7] == [(0, 1)]


async def test_without_any_donor_a_member_continues_with_its_own_state(engine: AsyncEngine) -> None:
    site = await StudySite(engine, population()).create()
    await site.connect(slots=4)
    leases = await site.kick()
    for lease, value in zip(leases, [0.1, 0.2, 0.3, 0.9], strict=True):
        await send(site, lease, 2, value, saves=False)
    assert await lineage(site) == {}
    assert {row.state for row in await site.trials()} == {"RUNNING"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
async def test_a_diverged_member_copies_the_best_when_all_are_there(
    engine: AsyncEngine, value: float
) -> None:
    site = await StudySite(engine, population()).create()
    await site.connect(slots=4)
    leases = await site.kick()
    assert (await send(site, leases[1], 2, value)).action == "PAUSE"
    for lease, other in ((leases[0], 0.5), (leases[2], 0.3)):
        await send(site, lease, 2, other)
    assert await lineage(site) == {}
    await send(site, leases[3], 2, 0.1)
    assert await lineage(site) == {1: [(0, 3)]}


async def test_four_members_on_two_slots_are_compared_as_a_whole(engine: AsyncEngine) -> None:
    """The first two to arrive at a rung are the worst and the best. The worst waits for those without a slot so
    far."""
    site = await StudySite(engine, population()).create()
    await site.connect(slots=2)
    await site.kick()
    values = {0: 0.9, 1: 0.1, 2: 0.3, 3: 0.2}
    for _ in range(20):
        for row in [row for row in await site.trials() if row.state in ("RUNNING", "RESUMED")]:
            now = (await site.trials())[row.number]
            if (now.state, now.attempt) == (row.state, row.attempt):
                await send(site, newest(site)[row.number], now.milestone, values[row.number])
    assert {row.state for row in await site.trials()} == {"TERMINATED"}
    assert await lineage(site) == {0: [(0, 1), (1, 1)]}


async def test_what_others_stand_on_stays_pinned_until_they_have_saved(engine: AsyncEngine) -> None:
    site = await StudySite(engine, population()).create()
    await site.connect(slots=4)
    leases = await site.kick()
    await generation(site, leases, 2, [0.1, 0.2, 0.3, 0.9])
    lent = "file:///s/0/1-2/"
    assert lent in (await send(site, newest(site)[0], 4, 0.1)).pinned
    copy = newest(site)[3]
    await site.step(
        RestoredArrived(
            lease_id=copy.id, number=3, attempt=copy.attempt, sequence=site.sequences[copy.id] + 1
        )
    )
    site.sequences[copy.id] += 1
    for number, value in [(1, 0.2), (2, 0.3), (3, 0.15)]:
        await send(site, newest(site)[number], 4, value)
    site.fold = None  # found again in the rows
    last = await send(site, newest(site)[0], 6, 0.1)
    assert last.action == "STOP"
    assert lent not in last.pinned
    assert "file:///s/0/2-4/" in last.pinned


async def test_on_one_slot_the_population_stays_together(engine: AsyncEngine) -> None:
    site = await StudySite(engine, population()).create()
    await site.connect(slots=1)
    await site.kick()
    seen = []
    values = {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.9}
    for step in (2, 4, 6):
        for _ in range(4):
            async with transaction(engine) as conn:
                live = (await conn.execute(select(tables.lease).where(tables.lease.c.live))).all()
            held = [row for row in live if row.study_id == site.study_id]
            lease = site.leases[held[0].id]
            seen.append((lease.number, step))
            await send(site, lease, step, values[lease.number])
    assert [number for number, step in seen if step == 2] == [0, 1, 2, 3]
    assert sorted(number for number, step in seen if step == 4) == [0, 1, 2, 3]
    assert {row.state for row in await site.trials()} == {"TERMINATED"}
    assert (await site.study()).state == "COMPLETED"


async def test_a_rebuilt_cache_decides_alike(engine: AsyncEngine) -> None:
    values = [[0.4, 0.3, 0.2, 0.9, 0.5, 0.6, 0.7, 0.8], [0.2, 0.4, 0.9, 0.1, 0.3, 0.8, 0.5, 0.6]]
    stories = []
    for forgetful in (False, True):
        site = await StudySite(engine, population(members=8)).create()
        await site.connect(slots=8)
        await site.kick()
        for step, generation_values in zip((2, 4), values, strict=True):
            for lease, value in zip(newest(site), generation_values, strict=True):
                if forgetful:
                    site.fold = None
                await send(site, lease, step, value)
        stories.append(([row.params for row in await site.trials()], await lineage(site)))
    assert stories[0] == stories[1]
    assert len(stories[0][1]) >= 2


async def test_nobody_joins_a_population_that_trains(engine: AsyncEngine) -> None:
    site = await StudySite(engine, population()).create()
    (outcome,) = await site.step(AddTrials(params=({"x": 1.0},)))
    assert isinstance(outcome, InvalidFieldError)
    assert "population" in str(outcome)


def test_checkpoints_stay_pinned_until_the_population_is_whole() -> None:
    policy = make_policy(population(members=4))
    for trial in range(3):
        policy.joined(trial, 0, {"x": 1.0})
    for trial in range(3):
        for rung in range(2):
            milestone = policy.ladder(0)[rung]
            saved = Checkpoint(uri=f"{trial}/{rung}", step=milestone)
            policy.record(
                RungResult(
                    trial=trial,
                    bracket=0,
                    rung=rung,
                    milestone=milestone,
                    step=milestone,
                    value=float(trial),
                    arrival=trial + 1,
                    checkpoint=saved,
                )
            )
    assert policy.pinned(0) == {"0/0", "0/1"}  # the fourth one will be compared at rung 0
    policy.joined(3, 0, {"x": 1.0})
    policy.withdraw(3)
    assert policy.pinned(0) == {"0/1"}


async def test_a_copied_checkpoint_that_is_damaged_is_replaced_along_the_line_that_it_is_of(
    engine: AsyncEngine,
) -> None:
    """Trial 3 copied trial 0 at step 2. What it had saved before belongs to a configuration that it no longer has."""
    site = await StudySite(engine, population()).create()
    await site.connect(slots=4)
    leases = await site.kick()
    await send(site, leases[0], 1, 0.5)
    for lease, value in zip(leases, [0.1, 0.2, 0.3, 0.9], strict=True):
        await send(site, lease, 2, value)
    lease = newest(site)[3]
    await send(site, lease, 3, 0.08)
    stored = frozenset({"file:///s/3/2-3/", "file:///s/3/1-2/", "file:///s/0/1-1/"})
    for owner, step, found in [
        (3, 5, "file:///s/3/2-3/"),  # its own, since it copied
        (3, 3, "file:///s/0/1-2/"),  # what it copied, wherever that is
        (0, 2, "file:///s/0/1-1/"),  # what the other one had before that
        (0, 1, None),
    ]:
        async with transaction(engine) as conn:
            need = EarlierCheckpoint(owner=owner, step=step, stored=stored)
            before = await load(conn, site.study_id, need)
        assert (before and before.uri) == found
