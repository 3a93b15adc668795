"""Heartbeats are written in groups, and none is lost."""

import asyncio
from collections.abc import Sequence

from headrace_services.scheduler.session.heartbeats import Heartbeats
from headrace_services.scheduler.store.heartbeats import Beat, Noted


class HeldHeartbeats(Heartbeats):
    """Heartbeats that do not touch a database, and are written when a test allows it."""

    def __init__(self) -> None:
        super().__init__(None, 60)  # type: ignore[arg-type]
        self.groups: list[list[Beat]] = []
        self.gate = asyncio.Event()

    async def _write(self, beats: Sequence[Beat]) -> dict[Beat, Noted]:
        self.groups.append(list(beats))
        await self.gate.wait()
        return {beat: Noted(mine=True, leases=frozenset(), leaving=()) for beat in beats}


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_heartbeats_that_come_during_a_write_are_the_next_group() -> None:
    heartbeats = HeldHeartbeats()
    writing = asyncio.create_task(heartbeats.run())
    first = Beat(worker_id=1, session=1)
    behind = [Beat(worker_id=2, session=1), Beat(worker_id=1, session=1, trouble="the disk is full")]
    answers = []
    for beat in (first, *behind):
        answers.append(asyncio.create_task(heartbeats.note(beat)))
        await turns()
    assert heartbeats.groups == [[first]]
    heartbeats.gate.set()
    await turns()
    assert heartbeats.groups == [[first], behind]
    assert all(answer.done() for answer in answers)
    writing.cancel()
