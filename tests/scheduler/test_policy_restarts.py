"""Every policy on a real database: studies complete, and lost or outdated caches change no decision."""

import random
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, make_spec

from headrace.client import convert_events
from headrace_services.scheduler.core.inputs import (
    AddTrials,
    ExitedArrived,
    ReportArrived,
    RestoredArrived,
    StopTrial,
)
from headrace_services.scheduler.core.records import Checkpoint, Event, Lease
from headrace_services.scheduler.replay.replaying import replay
from headrace_services.scheduler.rpc.convert import event as event_message
from headrace_services.scheduler.store.history import StoredEvent

POLICIES: dict[str, dict[str, Any]] = {
    "successive_halving": {"kind": "successive_halving", "rungs": [1, 3, 9], "cohort": 5},
    "hyperband": {"kind": "hyperband"},
    "pasha": {"kind": "pasha", "eta": 2},
    "median": {"kind": "median", "interval": 3, "min_peers": 2},
    "vizier": {"kind": "median", "variant": "vizier", "interval": 3, "min_peers": 2},
    "priced_asha": {"kind": "asha", "rungs": [1, 3, 9], "price_pauses": True},
}


async def play(
    engine: AsyncEngine, policy: dict[str, Any], keep: str, most: int
) -> tuple[StudySite, list[tuple[str, str]]]:
    """Play a study with failures, a cancelled trial and an added one to its end. Returns the site and the log.

    `keep` says what happens to the cache between cycles: it is `kept` or `lost`, or two caches take `turns`.
    """
    fuse = {"most": most} if most > 1 else None
    site = await StudySite(engine, make_spec(policy=policy, max_trials=8, fuse=fuse)).create()
    if keep == "kept":  # the other plays use the same machine
        await site.connect(slots=2)
    rng = random.Random(3)
    caches: list[Any] = [None, None]
    added = stopped = False
    for turn in range(300):
        if keep == "lost":
            site.fold = None
        elif keep == "turns":
            caches[(turn + 1) % 2], site.fold = site.fold, caches[turn % 2]
        await site.kick()
        if (await site.study()).state != "ACTIVE":
            break
        if turn == 9 and not stopped:
            stopped = True
            paused = [row.number for row in await site.trials() if row.state == "PAUSED"]
            if paused:
                await site.step(StopTrial(number=paused[-1], reason=""))
        if turn == 14 and not added:
            added = True
            await site.step(AddTrials(params=({"x": 0.5},)))
        running = [site.leases[row.lease_id] for row in await site.trials() if row.lease_id]
        await move(site, rng.choice(running), rng)
    uid = (await site.study()).uid  # a bundle's name starts with it
    log = [(event.kind, event.message.replace(uid, "uid")) for event in await site.events()]
    return site, log


async def move(site: StudySite, lease: Lease, rng: random.Random) -> None:
    """Send one message of a lease's holder."""
    row = await site.trial(lease.number)
    if row.state == "RESUMED":
        site.sequences[lease.id] += 1
        restored = RestoredArrived(
            lease_id=lease.id,
            number=lease.number,
            attempt=lease.attempt,
            sequence=site.sequences[lease.id],
            read_time_s=1.0,
        )
        await site.step(restored)
    if rng.random() < 0.06:
        site.sequences[lease.id] += 1
        await site.step(
            ExitedArrived(
                lease_id=lease.id,
                number=lease.number,
                attempt=lease.attempt,
                sequence=site.sequences[lease.id],
                outcome="FAILED",
            )
        )
        return
    value = ((lease.number * 7) % 11) / 11 + 1 / row.milestone + rng.choice([0.0, 0.01])
    site.sequences[lease.id] += 1
    report = ReportArrived(
        lease_id=lease.id,
        number=lease.number,
        attempt=lease.attempt,
        sequence=site.sequences[lease.id],
        step=row.milestone,
        metrics={"loss": value},
        checkpoint=Checkpoint(
            uri=f"file:///{lease.number}/{row.milestone}",
            step=row.milestone,
            size_bytes=10**9,
            write_time_s=lease.number % 3,
        ),
        train_time_s=1.0 + lease.number % 4,
    )
    await site.step(report)


@pytest.mark.cases(3)
@pytest.mark.parametrize("most", [1, 4], ids=["alone", "in bundles"])
@pytest.mark.parametrize("kind", POLICIES)
async def test_lost_and_lagging_caches_change_no_decision(engine: AsyncEngine, kind: str, most: int) -> None:
    """ray 30838 on a database: the scheduler restarts after every cycle, or two schedulers take turns."""
    site, kept = await play(engine, POLICIES[kind], "kept", most)
    assert (await site.study()).state == "COMPLETED"
    assert {row.state for row in await site.trials()} == {"TERMINATED"}
    assert any(name == "proposals_ended" for name, _ in kept)
    assert any("seat 2 of 4 in bundle" in message for _, message in kept) == (most == 4)
    assert sum(name == "decision_made" for name, _ in kept) >= 6
    for keep in ("lost", "turns"):
        _, other = await play(engine, POLICIES[kind], keep, most)
        assert other == kept
    replayed = replay(site.spec, [logged(row) for row in await site.events()])
    assert replayed.differences == ()
    assert not replayed.reworded
    assert replayed.decisions >= 6


def logged(row: Any) -> Any:
    """An event's row as a client sees it."""
    stored = StoredEvent(
        cursor=row.cursor,
        time=row.time,
        event=Event(number=row.number, kind=row.kind, message=row.message, detail=row.detail),
    )
    return convert_events.event(event_message(stored))


async def test_ray_30265_the_last_result_of_a_cohort_starts_the_others_too(engine: AsyncEngine) -> None:
    """ray 30265: slots idle beside trials that may continue. The last one continues itself and frees no slot for
    them."""
    policy = {"kind": "successive_halving", "rungs": [1, 9], "cohort": 6}
    site = await StudySite(engine, make_spec(policy=policy, max_trials=6)).create()
    await site.connect(slots=6)
    leases = {lease.number: lease for lease in await site.kick()}
    for number in range(5):
        assert (await site.tell(leases[number], 1, float(number))).action == "PAUSE"
    decision = await site.tell(leases[5], 1, 0.5)
    assert (decision.action, decision.next_milestone) == ("CONTINUE", 9)
    assert (await site.trial(0)).state == "RESUMED"
    assert (await site.trial(1)).state == "PAUSED"
