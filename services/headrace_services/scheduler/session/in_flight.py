"""How many of a worker's messages are in cycles: a limit for each study, so that no study blocks the others.

The stream is not read further while a study has its share in flight. That bounds what a worker can queue here. A
study that accepts nothing for `PATIENCE_S` (its cycle hangs on a lock, for example) must not block the messages of
the worker's other studies. So it falls behind: its further messages are read and left unanswered. Nothing is lost,
because the worker keeps what is not acknowledged. Once the study has answered what it accepted, the worker is
asked to reconnect. It then sends the rest again, in order. The same happens if the database did not accept a
study's messages within the attempts that a runner makes.

The stream carries the worker's heartbeats too. So studies that hang delay it only once between two heartbeats,
however many they are. After one has used up the patience, another study with a full share falls behind at once.
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
        """A heartbeat was accepted: there is time to wait for a study again."""
        self._patience_s = PATIENCE_S

    async def enter(self, study_id: int) -> bool:
        """Wait for room for a message. Returns False if its study is behind, and the message must be left
        unanswered."""
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
        """A message of a study is left unanswered: so are its further ones, until the worker reconnects."""
        self._behind.add(study_id)

    async def leave(self, study_id: int) -> None:
        """A message was settled."""
        self._counts[study_id] -= 1
        if not self._counts[study_id]:
            del self._counts[study_id]
            if (
                study_id in self._behind
            ):  # and stays so: a later message must not overtake those left unanswered
                self._caught_up()
        async with self._settled:
            self._settled.notify_all()

    async def all_settled(self) -> None:
        """Wait until nothing is in flight."""
        async with self._settled:
            await self._settled.wait_for(lambda: not self._counts)
