"""Replaying a study's log gives the decisions in it, and any altered decision is detected."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, make_spec

from headrace.client.events import (
    Action,
    DecisionMade,
    Event,
    RungRecorded,
    TrialCreated,
    TrialMoved,
)
from headrace.spec.fuse import Fuse
from headrace_services.scheduler.core.inputs import PauseStudy, ResumeStudy
from headrace_services.scheduler.replay.replaying import replay

POLICIES = [
    {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "variant": "promotion"},
    {"kind": "asha", "eta": 2, "rungs": [1, 3, 9], "variant": "stopping"},
    {"kind": "asha", "eta": 3, "min_steps": 1, "brackets": 2, "variant": "promotion"},
]


async def played(engine: AsyncEngine, policy: dict[str, object]) -> StudySite:
    """A study that two interleaved replicas ran to its end: every other cycle starts with an empty cache."""
    random = Random(7)
    site = await StudySite(engine, make_spec(policy=policy, max_trials=12)).create()
    await site.connect(slots=4)
    await site.kick()
    steps = dict.fromkeys(site.leases, 0)
    turn = 0
    while (await site.study()).state == "ACTIVE":
        turn += 1
        if turn % 2:
            site.fold = None
        if turn == 10:
            await site.step(PauseStudy())
            await site.step(ResumeStudy())
        for lease_id, lease in list(site.leases.items()):
            if lease_id not in steps:
                steps[lease_id] = lease.step
        live = {row.lease_id for row in await site.trials() if row.lease_id}
        lease = site.leases[random.choice(sorted(live))]
        steps[lease.id] += random.choice((1, 1, 3))
        value = float("nan") if random.random() < 0.1 else random.choice((0.5, random.random()))
        await site.tell(lease, min(steps[lease.id], 9), value)
    return site


@pytest.mark.cases(1)
@pytest.mark.parametrize("policy", POLICIES)
async def test_every_decision_is_the_same(engine: AsyncEngine, policy: dict[str, object]) -> None:
    site = await played(engine, policy)
    found = replay(site.spec, await site.log())
    assert found.identical, found.differences
    assert not found.reworded
    assert found.decisions >= 8
    assert found.starts == 12


def _first(events: list[Event], kind: type, which: Callable[[Event], bool] = lambda _: True) -> int:
    return next(i for i, event in enumerate(events) if isinstance(event.detail, kind) and which(event))


async def test_an_altered_log_shows(engine: AsyncEngine) -> None:
    site = await played(engine, POLICIES[0])
    events = await site.log()

    def altered(at: int, **changes: object) -> list[Event]:
        detail = events[at].detail
        assert detail is not None
        return [*events[:at], replace(events[at], detail=replace(detail, **changes)), *events[at + 1 :]]  # type: ignore[arg-type]

    pause = _first(events, DecisionMade, lambda e: e.detail.action is Action.PAUSE)
    promotion = _first(events, DecisionMade, lambda e: e.detail.action is Action.CONTINUE)
    result = _first(events, RungRecorded, lambda e: e.detail.result.value not in (None, 0.5))
    better = replace(events[result].detail.result, value=-1.0)
    other_rank = replace(events[promotion].detail.explanation, rank=99)
    for log in (
        altered(pause, action=Action.CONTINUE),
        altered(promotion, action=Action.STOP),
        altered(promotion, explanation=other_rank),
        altered(result, result=better),
    ):
        assert not replay(site.spec, log).identical
    in_other_words = replace(events[pause].detail.explanation, sentence="it waits")
    found = replay(site.spec, altered(pause, explanation=in_other_words))
    assert (found.identical, found.reworded) == (True, 1)
    with pytest.raises(ValueError, match="gap"):
        replay(site.spec, [*events[:5], *events[6:]])


@pytest.mark.parametrize(("widths", "identical"), [((64, 32), True), ((64, 64), False)])
async def test_a_promoted_trial_may_wait_while_others_take_seats_that_it_cannot_have(
    engine: AsyncEngine, widths: tuple[int, int], identical: bool
) -> None:
    """Bundles have one width, and a trial is started before another one is promoted."""
    site = await played(engine, POLICIES[0])
    events = await site.log()

    def starts(event: Event) -> bool:
        return isinstance(event.detail, TrialMoved) and event.detail.action == "launch"

    made = {event.trial: i for i, event in enumerate(events) if isinstance(event.detail, TrialCreated)}
    promoted, started = next(
        (i, j)
        for i, event in enumerate(events)
        if isinstance(event.detail, DecisionMade) and event.detail.action is Action.CONTINUE
        for j in range(i + 1, len(events))
        if starts(events[j]) and events[j].detail.attempt == 1 and made[events[j].trial] < i
    )
    for trial, width in zip((events[promoted].trial, events[started].trial), widths, strict=True):
        at = made[trial]
        params = {**events[at].detail.params, "width": width}
        events[at] = replace(events[at], detail=replace(events[at].detail, params=params))
    events.insert(promoted, events.pop(started))
    log = [replace(event, cursor=i) for i, event in enumerate(events, 1)]
    fused = site.spec.model_copy(update={"fuse": Fuse(most=4, apart=("width",))})
    assert replay(fused, log).identical is identical
