"""How many of a worker's messages are on their way into cycles: a limit for each study, so that none stops the others.

The stream is not read further while a study has its share in flight. That bounds what a worker can queue here. A
study that takes nothing in for `PATIENCE_S` (its cycle hangs on a lock, for example) must not stop the messages of the
worker's other studies. So it falls behind: its further messages are read and left unanswered. Nothing is lost, because
the worker keeps what is not acknowledged. When the study has answered what it took, the worker is asked to
connect anew. It then sends the rest again, in order. The same follows where the database did not take a study's
messages within the attempts that a runner makes.

The stream carries the worker's heartbeats too. So studies that hang delay it once between two heartbeats, however
many they are. After one has used up the patience, another study with a full share falls behind at once.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

SHARE = 64
PATIENCE_S = 2.0


class InFlight:
    """The messages of one session, by study."""

    def __init__(self, caught_up: Callable[[], None]) -> None:
        self._caught_up = caught_up
        self._counts: Counter[int] = Counter()
        self._behind: set[int] = set()
        self._settled = asyncio.Condition()
        self._patience_s = PATIENCE_S

    def heartbeat(self) -> None:
        """A heartbeat was taken: there is time to wait for a study again."""
        self._patience_s = PATIENCE_S

    async def enter(self, study_id: int) -> bool:
        """Wait for room for a message. False where its study is behind, and the message is to be left unanswered."""
        if study_id in self._behind:
            return False
        if self._counts[study_id] >= SHARE:
            try:
                async with asyncio.timeout(self._patience_s), self._settled:
                    await self._settled.wait_for(lambda: self._counts[study_id] < SHARE)
            except TimeoutError:
                self._behind.add(study_id)
                self._patience_s = 0.0
                return False
        self._counts[study_id] += 1
        return True

    def fall_behind(self, study_id: int) -> None:
        """A message of a study stays unanswered: its further ones do too, until the worker connects anew."""
        self._behind.add(study_id)

    async def leave(self, study_id: int) -> None:
        """A message was settled."""
        self._counts[study_id] -= 1
        if not self._counts[study_id]:
            del self._counts[study_id]
            if (
                study_id in self._behind
            ):  # and stays so: what comes now must not overtake what was left unanswered
                self._caught_up()
        async with self._settled:
            self._settled.notify_all()

    async def all_settled(self) -> None:
        """Wait until nothing is in flight."""
        async with self._settled:
            await self._settled.wait_for(lambda: not self._counts)
