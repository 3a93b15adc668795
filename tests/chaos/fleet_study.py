"""Studies for the fleet, and polling without fixed sleeps."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from sim_fleet import Fleet

from headrace.client import AsyncStudy, Client
from headrace.client.model import StudyInfo, StudyState
from headrace.spec import StudySpec
from headrace_services.scheduler.replay.replaying import Replayed, replay_study

T = TypeVar("T")
TICK_S = 0.02
DEADLINE_S = 1200.0
ENDLESS = 100_000


def fleet_spec(*, trials: int = ENDLESS, **changes: Any) -> StudySpec:
    """ASHA over three rungs, with a program that no simulated worker starts.

    A study that must last as long as the faults do must not complete earlier: leave `trials` out, and end it with
    `stopped`.
    """
    fields: dict[str, Any] = {
        "objective": {"metric": "score", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "sampler": {"kind": "random"},
        "policy": {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "variant": "promotion"},
        "template": {"callable": "nothing:runs", "working_dir": "/"},
        "max_trials": trials,
        "max_steps": 9,
        "seed": 1,
    }
    return StudySpec.model_validate({**fields, **changes})


async def waiting_for(holds: Callable[[], T | None], what: str, deadline_s: float = 60.0) -> T:
    """Poll until something holds, and return it."""
    try:
        async with asyncio.timeout(deadline_s):
            while not (found := holds()):
                await asyncio.sleep(TICK_S)
            return found
    except TimeoutError:
        raise AssertionError(f"{what}: not within {deadline_s:g} s") from None


async def finished(study: AsyncStudy, deadline_s: float) -> StudyInfo:
    """Wait for a study's end."""
    async with asyncio.timeout(deadline_s):
        while (info := await study.status()).state is StudyState.ACTIVE:
            await asyncio.sleep(0.25)
    return info


async def stopped(study: AsyncStudy, fleet: Fleet) -> StudyInfo:
    """End a study in the middle of its work, and wait until the fleet has nothing more to send."""
    fleet.note_stop()
    await study.stop()
    info = await finished(study, DEADLINE_S)
    await waiting_for(
        lambda: all(worker.at_rest for worker in fleet.workers), "the last acknowledgements", 120
    )
    return info


def replayed(address: str, study: str) -> Replayed:
    """Replay a study's log; call it in a thread."""
    with Client(address, timeout_s=60, connect_timeout_s=60) as client:
        return replay_study(client, study)
