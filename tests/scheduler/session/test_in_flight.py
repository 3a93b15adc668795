"""How long studies that accept nothing may hold up a worker's stream."""

import asyncio

import pytest

from headrace_services.scheduler.session import in_flight
from headrace_services.scheduler.session.in_flight import InFlight

PATIENCE_S = 0.2
HUNG = range(1, 8)


async def filled(monkeypatch: pytest.MonkeyPatch) -> InFlight:
    """Seven studies, each with its full share in flight."""
    monkeypatch.setattr(in_flight, "SHARE", 1)
    monkeypatch.setattr(in_flight, "PATIENCE_S", PATIENCE_S)
    messages = InFlight(caught_up=lambda: None)
    for study in HUNG:
        assert await messages.enter(study)
    return messages


async def test_all_hung_studies_together_hold_the_stream_up_once_between_two_heartbeats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages, loop = await filled(monkeypatch), asyncio.get_running_loop()
    began = loop.time()
    for study in HUNG:
        assert not await messages.enter(study)
    assert loop.time() - began < 2 * PATIENCE_S


async def test_after_a_heartbeat_a_study_is_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = await filled(monkeypatch)
    assert not await messages.enter(1)
    messages.heartbeat()
    entering = asyncio.ensure_future(messages.enter(2))
    await asyncio.sleep(0)
    await messages.leave(2)
    assert await entering
    assert not await messages.enter(1), "it stays behind"


async def test_room_that_comes_in_time_costs_no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = await filled(monkeypatch)
    for study in HUNG:
        entering = asyncio.ensure_future(messages.enter(study))
        await asyncio.sleep(0)
        await messages.leave(study)
        assert await entering
