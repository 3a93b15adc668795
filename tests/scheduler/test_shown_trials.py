"""What an answer shows of a trial: the plan's result, which is what the rows contain afterwards."""

from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, make_spec

from headrace_services.scheduler.core.inputs import (
    ExitedArrived,
    Input,
    Outcome,
    Stale,
    Suggest,
    Suggested,
)
from headrace_services.scheduler.core.records import Lease, TrialView
from headrace_services.scheduler.engine.cycle import run_cycle
from headrace_services.scheduler.engine.submissions import Shown, Submission
from headrace_services.scheduler.store import pipeline, trials
from headrace_services.scheduler.store.database import transaction

STOPPING = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "variant": "stopping"}
SUGGEST = Suggest(client_id="c", ttl_s=60.0)


class Loop:
    """A study without workers, whose answers show one trial each."""

    def __init__(self, site: StudySite, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = site
        self.waits = 0
        send = pipeline.send

        async def counted(driver: Any, asked: pipeline.Pipeline) -> None:
            self.waits += 1
            await send(driver, asked)

        monkeypatch.setattr(pipeline, "send", counted)

    async def step(self, *inputs: Input) -> tuple[list[Outcome], list[TrialView]]:
        """Run a cycle; returns the outcomes, and what the answers may show, by number."""
        views: dict[int, TrialView] = {}

        def render(_: Outcome, shown: Shown) -> bytes:
            views.update(shown.trials)
            return b""

        submissions = [Submission(input=one, render=render) for one in inputs]
        self.waits = 0
        async with transaction(self.site.engine) as conn:
            result = await run_cycle(conn, self.site.study_id, submissions, self.site.fold)
        self.site.fold = result.fold
        outcomes = [settled.outcome for settled in result.settled]
        assert all(not isinstance(outcome, Exception) for outcome in outcomes)
        return outcomes, [views[number] for number in sorted(views)]  # type: ignore[return-value]  # none was refused

    async def ask(self) -> Lease:
        (outcome,), _ = await self.step(SUGGEST)
        assert isinstance(outcome, Suggested)
        assert outcome.lease is not None
        return outcome.lease

    async def row(self, number: int) -> TrialView:
        """The trial as its rows show it."""
        async with transaction(self.site.engine) as conn:
            view = await trials.one(conn, self.site.study_id, number)
        assert view is not None
        return view


def end(lease: Lease, outcome: str = "FINISHED") -> ExitedArrived:
    return ExitedArrived(
        lease_id=lease.id, number=lease.number, attempt=lease.attempt, sequence=None, outcome=outcome
    )


@pytest.fixture
async def loop(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> Loop:
    spec = make_spec(policy=STOPPING, template=None, max_trials=30, max_retries=1)
    loop = Loop(await StudySite(engine, spec).create(), monkeypatch)
    await loop.ask()  # the first cycle reads what the others already know
    return loop


async def test_asking_and_ending_take_three_waits_and_show_what_the_rows_say(loop: Loop) -> None:
    (outcome,), (new,) = await loop.step(SUGGEST)
    assert loop.waits == 3
    assert isinstance(outcome, Suggested)
    assert outcome.lease is not None
    assert new == await loop.row(1)
    await loop.step(loop.site.report(outcome.lease, 1, 0.5))
    _, (ended,) = await loop.step(end(outcome.lease))
    assert loop.waits == 3
    assert [rung.entry.step for rung in ended.rungs] == [1]
    assert ended == await loop.row(1)


@pytest.mark.parametrize("outcome", ["FAILED", "RELEASED"])
async def test_a_trial_that_continues_is_shown_as_it_waits(loop: Loop, outcome: str) -> None:
    lease = await loop.ask()
    await loop.step(loop.site.report(lease, 1, 0.5))
    _, (left,) = await loop.step(end(lease, outcome))
    assert left == await loop.row(lease.number)
    assert left.trial.end_time is None


async def test_a_trial_that_goes_from_one_caller_to_the_next_in_one_step_is_shown_as_it_ends(
    loop: Loop,
) -> None:
    lease = await loop.ask()
    await loop.step(loop.site.report(lease, 1, 0.5))
    _, views = await loop.step(end(lease, "RELEASED"), SUGGEST)
    now = await loop.row(lease.number)
    assert now.trial.attempt == 2
    assert views
    assert all(view == now for view in views)


async def test_a_rung_of_the_same_cycle_is_shown(loop: Loop) -> None:
    lease = await loop.ask()
    await loop.step(loop.site.report(lease, 1, 0.5))
    _, (ended,) = await loop.step(loop.site.report(lease, 3, 0.4), end(lease))
    assert loop.waits == 3
    assert [rung.entry.step for rung in ended.rungs] == [1, 3]
    assert ended == await loop.row(lease.number)


async def test_of_two_ends_in_one_cycle_the_second_shows_the_same(loop: Loop) -> None:
    lease = await loop.ask()
    await loop.step(loop.site.report(lease, 1, 0.5))
    outcomes, views = await loop.step(end(lease), end(lease))
    assert outcomes[1] == Stale(over=True)
    assert views == [await loop.row(lease.number)]


async def test_what_another_replica_recorded_is_shown(loop: Loop) -> None:
    lease = await loop.ask()
    here, loop.site.fold = loop.site.fold, None
    await loop.step(loop.site.report(lease, 1, 0.5))
    loop.site.fold = here
    _, (ended,) = await loop.step(end(lease))
    assert [rung.entry.step for rung in ended.rungs] == [1]
    assert ended == await loop.row(lease.number)


async def test_a_trial_that_is_promoted_in_the_step_of_a_stale_end_is_shown_as_promoted(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its end requested was read before the promotion."""
    spec = make_spec(policy={**STOPPING, "variant": "promotion"}, template=None, max_trials=30)
    loop = Loop(await StudySite(engine, spec).create(), monkeypatch)
    leases = [await loop.ask() for _ in range(3)]
    for place, lease in enumerate(leases):
        await loop.step(loop.site.report(lease, 1, place / 10))
    _, views = await loop.step(end(leases[0]), SUGGEST)
    now = await loop.row(0)
    assert [rung.entry.promoted for rung in now.rungs] == [True]
    assert now.trial.attempt == 2
    assert views
    assert all(view == now for view in views)
