"""A study that cannot continue is quarantined, and nobody else notices. A fault of the database quarantines
nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace.errors import HeadraceError, InternalError, StudyEndedError
from headrace.spec import StudySpec
from headrace_services.scheduler.core import fold as cache
from headrace_services.scheduler.core.inputs import (
    Accepted,
    Cancellation,
    Input,
    Order,
    PauseStudy,
    PlaceNow,
    ReportArrived,
    Stale,
    StopStudy,
)
from headrace_services.scheduler.core.policies import Policy, make_policy
from headrace_services.scheduler.engine import runner
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.engine.submissions import Submission
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.database import transaction


@asynccontextmanager
async def running(engine: AsyncEngine) -> AsyncIterator[tuple[Hub, list[Order]]]:
    """A hub, and the orders that it sends."""
    orders: list[Order] = []
    async with asyncio.TaskGroup() as tasks:
        hub = Hub(engine, tasks)
        hub.deliver_with(orders.extend)
        yield hub, orders
        await hub.drain()


async def submit(hub: Hub, site: StudySite, one: Input) -> Any:
    """The outcome of an input; an error is returned."""
    try:
        async with asyncio.timeout(60):
            return (await hub.submit(site.study_id, Submission(input=one))).outcome
    except HeadraceError as error:
        return error


async def two_studies(engine: AsyncEngine) -> tuple[StudySite, StudySite, list[Any]]:
    """A study with two trials on a worker, and another study that waits for it; and the leases of the first."""
    bad = await StudySite(engine, make_spec()).create()
    await bad.connect(slots=2)
    leases = await bad.kick()
    assert len(leases) == 2
    other = await StudySite(engine, make_spec()).create()
    return bad, other, leases


def break_policy(monkeypatch: pytest.MonkeyPatch, method: str, which: Callable[[StudySpec], bool]) -> None:
    """Make a method of the policy raise, for some studies."""

    def raising(*_: object, **__: object) -> Any:
        raise ZeroDivisionError("a defect of the policy")

    def make(spec: StudySpec) -> Policy:
        policy = make_policy(spec)
        if which(spec):
            setattr(policy, method, raising)
        return policy

    monkeypatch.setattr(cache, "make_policy", make)


DEFECTS = {
    "no spec": "UPDATE study SET spec = '{\"no\": 1}', uid = 'new-' || uid WHERE id = :study",
    "a standing that is none": "UPDATE study SET standing = '{\"usage\": 7}' WHERE id = :study",
    "a time beyond the calendar": "UPDATE study SET create_time = '20000-01-01' WHERE id = :study",
    "metrics that are none": "UPDATE trial SET metrics = '[1]' WHERE study_id = :study",
    "a checkpoint that is none": "INSERT INTO rung_result (study_id, number, rung, bracket, milestone, step, arrival,"
    " cursor, checkpoint) VALUES (:study, 0, 0, 0, 1, 1, 1, 1, '{\"no\": 1}')",
}


@pytest.mark.parametrize("defect", DEFECTS)
async def test_a_study_whose_rows_cannot_be_read_is_quarantined(engine: AsyncEngine, defect: str) -> None:
    bad, other, leases = await two_studies(engine)
    async with transaction(engine) as conn:
        await conn.execute(text(DEFECTS[defect]), {"study": bad.study_id})
    async with running(engine) as (hub, orders):
        assert isinstance(await submit(hub, bad, bad.report(leases[0], 1, 0.5)), Stale)
        study = (await bad.rows(select(tables.study.c.state, tables.study.c.detail).where(by_id(bad))))[0]
        assert study.state == "FAILED"
        assert "the scheduler cannot" in study.detail
        cancelled = {order.lease.id for order in orders if isinstance(order, Cancellation)}
        assert cancelled == {lease.id for lease in leases}
        # Its slots go to the other study.
        assert isinstance(await submit(hub, other, PlaceNow()), Accepted)
        assert len(await other.rows(live(other))) == 2
        # Every message for it is answered.
        assert isinstance(await submit(hub, bad, gone(leases[1], "LOST")), Stale)
        assert isinstance(await submit(hub, bad, StopStudy(reason="enough")), Accepted)
        assert isinstance(await submit(hub, bad, PauseStudy()), StudyEndedError)
    t = tables.trial
    states = await bad.rows(select(t.c.state, t.c.reason, t.c.end_cursor).where(t.c.study_id == bad.study_id))
    assert {(row.state, row.reason) for row in states} == {("TERMINATED", "CANCELLED")}
    assert await bad.rows(live(bad)) == []


@pytest.mark.parametrize(
    "defect",
    [
        "UPDATE study SET spec = jsonb_set(spec::jsonb, '{resources}', '{\"gpus\": 5000}')::json WHERE id = :study",
        "UPDATE study SET standing = '{\"usage\": 7}' WHERE id = :study",
    ],
)
async def test_a_waiting_study_that_cannot_be_read_stops_no_other_one(
    engine: AsyncEngine, defect: str
) -> None:
    """Others read its demand before they take a slot."""
    sound, waiting, leases = await two_studies(engine)
    async with running(engine) as (hub, _):
        assert isinstance(await submit(hub, waiting, PlaceNow()), Accepted)
    assert (await waiting.study()).standing["wants_slots"]
    async with transaction(engine) as conn:
        await conn.execute(text(defect), {"study": waiting.study_id})
    async with running(engine) as (hub, _):
        assert isinstance(await submit(hub, sound, gone(leases[0], "FINISHED")), Accepted)
        assert (await sound.study()).state == "ACTIVE"
    assert len(await sound.rows(live(sound))) == 2


async def test_a_policy_that_raises_for_one_study(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, other, leases = await two_studies(engine)
    break_policy(monkeypatch, "next_promotion", lambda spec: spec.maximizes())
    maximizing = await StudySite(engine, make_spec(objective={"metric": "loss", "goal": "maximize"})).create()
    async with running(engine) as (hub, _):
        assert isinstance(await submit(hub, maximizing, PlaceNow()), Accepted)
        assert "ZeroDivisionError: a defect of the policy" in (await maximizing.study()).detail
        assert (await maximizing.study()).state == "FAILED"
        assert isinstance(await submit(hub, bad, bad.report(leases[0], 1, 0.5)), Accepted)
        assert isinstance(await submit(hub, other, PlaceNow()), Accepted)
        assert {(await one.study()).state for one in (bad, other)} == {"ACTIVE"}


async def test_a_policy_that_cannot_take_results_ends_its_study_after_a_few(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, _, leases = await two_studies(engine)
    break_policy(monkeypatch, "record", lambda _: True)
    async with running(engine) as (hub, _):
        for turn in range(1, runner.MESSAGES_IN_ROW):
            outcome = await submit(hub, bad, bad.report(leases[0], turn, 0.5))
            assert isinstance(outcome, InternalError)
            assert (await bad.study()).state == "ACTIVE"
        assert isinstance(await submit(hub, bad, bad.report(leases[1], 1, 0.5)), Stale)
        assert (await bad.study()).state == "FAILED"
    assert await bad.rows(live(bad)) == []


async def test_messages_for_a_lease_of_nobody_quarantine_nothing(engine: AsyncEngine) -> None:
    """A worker that names a study whose trials it does not run cannot have it quarantined, whatever it sends."""
    bad, _, leases = await two_studies(engine)
    forged = ReportArrived(
        lease_id="\x00", number=2**80, attempt=1, sequence=1, step=1, metrics={}, checkpoint=None
    )
    async with running(engine) as (hub, _):
        for _turn in range(2 * runner.MESSAGES_IN_ROW):
            assert isinstance(await submit(hub, bad, forged), InternalError)
        assert (await bad.study()).state == "ACTIVE"
        assert isinstance(await submit(hub, bad, bad.report(leases[0], 1, 0.5)), Accepted)


async def test_faults_of_the_database_quarantine_nothing(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, _, leases = await two_studies(engine)
    honest = runner.run_cycle
    faults: list[Exception] = [
        MemoryError(),
        psycopg.OperationalError("the connection is lost"),
        psycopg.errors.QueryCanceled("the statement took too long"),
        psycopg.errors.DiskFull("no space left"),
        *(psycopg.errors.DeadlockDetected("a deadlock") for _ in range(15)),
        ConnectionResetError("the connection is lost"),
    ]

    async def faulty(*arguments: Any) -> Any:
        if faults:
            raise faults.pop(0)
        return await honest(*arguments)

    monkeypatch.setattr(runner, "run_cycle", faulty)
    async with running(engine) as (hub, _):
        assert isinstance(await submit(hub, bad, bad.report(leases[0], 1, 0.5)), Accepted)
        assert (await bad.study()).state == "ACTIVE"
    assert not faults


def by_id(site: StudySite) -> Any:
    return tables.study.c.id == site.study_id


def live(site: StudySite) -> Any:
    return select(tables.lease.c.id).where(tables.lease.c.study_id == site.study_id, tables.lease.c.live)
