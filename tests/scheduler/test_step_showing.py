"""What an answer shows of a trial in a user's own loop: what the step knows, where that is all of it; else the rows."""

from collections.abc import Generator
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, make_spec

from headrace_services.scheduler.arrivals import (
    Arrival,
    ExitedArrived,
    Outcome,
    ReportArrived,
    Stale,
    Suggest,
    Suggested,
)
from headrace_services.scheduler.records import Lease
from headrace_services.scheduler.step.submissions import Shown, Submission
from headrace_services.scheduler.step.transaction import run_step
from headrace_services.scheduler.store import pipeline, trials
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.trials import TrialView

STOPPING = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "variant": "stopping"}
SUGGEST = Suggest(client_id="c", ttl_s=60.0)


class Loop:
    """A study without workers, whose answers show a trial each."""

    def __init__(self, site: StudySite, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = site
        self.waits = 0
        talk = pipeline._talk

        def counted(driver: pipeline.Driver, asked: pipeline.Pipeline) -> Generator[Any, Any, None]:
            self.waits += 1
            return talk(driver, asked)

        monkeypatch.setattr(pipeline, "_talk", counted)

    async def step(self, *arrivals: Arrival) -> tuple[list[Outcome], list[TrialView]]:
        """Run a step; returns the outcomes, and what the answers to all but reports show."""
        views: list[TrialView] = []

        async def respond(_: Outcome, shown: Shown) -> bytes:
            views.extend(shown.trials[number] for number in sorted(shown.trials))
            return b""

        submissions = [
            Submission(arrival=arrival)
            if isinstance(arrival, ReportArrived)
            else Submission(arrival=arrival, respond=respond, shows=_shows(arrival), early=True)
            for arrival in arrivals
        ]
        self.waits = 0
        async with transaction(self.site.engine) as conn:
            result = await run_step(conn, self.site.study_id, submissions, self.site.cache)
        self.site.cache = result.cache
        outcomes = [settled.outcome for settled in result.settled]
        assert all(not isinstance(outcome, Exception) for outcome in outcomes)
        return outcomes, views  # type: ignore[return-value]  # none of them was refused

    async def ask(self) -> Lease:
        (outcome,), _ = await self.step(SUGGEST)
        assert isinstance(outcome, Suggested)
        assert outcome.lease is not None
        return outcome.lease

    async def row(self, number: int) -> TrialView:
        """The trial as its rows say it."""
        async with transaction(self.site.engine) as conn:
            view = await trials.one(conn, self.site.study_id, number)
        assert view is not None
        return view


def _shows(arrival: Arrival) -> Any:
    if isinstance(arrival, ExitedArrived):
        return lambda _: (arrival.number,)
    return lambda outcome: (outcome.trial.number,) if outcome.trial else ()


def end(lease: Lease, outcome: str = "FINISHED") -> ExitedArrived:
    return ExitedArrived(
        lease_id=lease.id, number=lease.number, epoch=lease.epoch, sequence=None, outcome=outcome
    )


@pytest.fixture
async def loop(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> Loop:
    spec = make_spec(policy=STOPPING, template=None, max_trials=30, max_retries=1)
    loop = Loop(await StudySite(engine, spec).create(), monkeypatch)
    await loop.ask()  # the first step reads what the others know
    return loop


async def test_asking_and_ending_take_two_waits_and_show_what_the_rows_say(loop: Loop) -> None:
    (outcome,), (new,) = await loop.step(SUGGEST)
    assert loop.waits == 2
    assert isinstance(outcome, Suggested)
    assert outcome.lease is not None
    assert new == await loop.row(1)
    await loop.step(loop.site.report(outcome.lease, 1, 0.5))
    _, (ended,) = await loop.step(end(outcome.lease))
    assert loop.waits == 2
    assert [rung.entry.step for rung in ended.rungs] == [1]
    assert ended == await loop.row(1)


@pytest.mark.parametrize("outcome", ["FAILED", "RELEASED"])
async def test_a_trial_that_goes_on_is_shown_as_it_waits(loop: Loop, outcome: str) -> None:
    lease = await loop.ask()
    await loop.step(loop.site.report(lease, 1, 0.5))
    _, (left,) = await loop.step(end(lease, outcome))
    assert loop.waits == 2
    assert left == await loop.row(lease.number)
    assert left.trial.end_time is None


async def test_a_trial_that_goes_from_one_caller_to_the_next_in_one_step_is_shown_as_it_ends(
    loop: Loop,
) -> None:
    lease = await loop.ask()
    await loop.step(loop.site.report(lease, 1, 0.5))
    _, views = await loop.step(end(lease, "RELEASED"), SUGGEST)
    now = await loop.row(lease.number)
    assert now.trial.epoch == 2
    assert views
    assert all(view == now for view in views)


async def test_a_rung_of_the_same_step_is_shown_and_takes_a_third_wait(loop: Loop) -> None:
    lease = await loop.ask()
    await loop.step(loop.site.report(lease, 1, 0.5))
    _, (ended,) = await loop.step(loop.site.report(lease, 3, 0.4), end(lease))
    assert loop.waits == 3
    assert [rung.entry.step for rung in ended.rungs] == [1, 3]
    assert ended == await loop.row(lease.number)


async def test_of_two_ends_in_one_step_the_second_is_answered_of_the_rows(loop: Loop) -> None:
    lease = await loop.ask()
    await loop.step(loop.site.report(lease, 1, 0.5))
    outcomes, views = await loop.step(end(lease), end(lease))
    assert isinstance(outcomes[1], Stale)
    assert loop.waits == 3
    assert [view.trial.number for view in views] == [lease.number] * 2
    assert views[0] == views[1] == await loop.row(lease.number)


async def test_what_another_replica_recorded_is_shown(loop: Loop) -> None:
    lease = await loop.ask()
    here, loop.site.cache = loop.site.cache, None
    await loop.step(loop.site.report(lease, 1, 0.5))
    loop.site.cache = here
    _, (ended,) = await loop.step(end(lease))
    assert [rung.entry.step for rung in ended.rungs] == [1]
    assert ended == await loop.row(lease.number)


async def test_a_trial_that_is_promoted_in_the_step_of_a_stale_end_is_shown_as_promoted(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its end asked for was read before the promotion."""
    spec = make_spec(policy={**STOPPING, "variant": "promotion"}, template=None, max_trials=30)
    loop = Loop(await StudySite(engine, spec).create(), monkeypatch)
    leases = [await loop.ask() for _ in range(3)]
    for place, lease in enumerate(leases):
        await loop.step(loop.site.report(lease, 1, place / 10))
    _, views = await loop.step(end(leases[0]), SUGGEST)
    now = await loop.row(0)
    assert [rung.entry.promoted for rung in now.rungs] == [True]
    assert now.trial.epoch == 2
    assert views
    assert all(view == now for view in views)
