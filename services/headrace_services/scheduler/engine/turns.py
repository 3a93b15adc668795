"""The cycles of one replica that place trials take turns.

A cycle that looks for free slots locks those that it finds. Another one that looks at the same time would find
none, though they may be left to its study: studies would wake each other and find nothing. So a cycle takes its
turn before it looks, and keeps it until it is committed. Cycles of reports look for no slots and take no turn.

A cycle that waits for a turn already holds a connection. So the cycle whose turn it is never waits for one. A
wake-up is admitted before its cycle starts, only a few at a time: those that wait must neither hold all
connections nor hold up the messages of their study (`runner`).

A cycle in its turn may make the first proposal of this replica, which draws with NumPy. So NumPy is imported
before that.

Replicas do not wait for each other: slots that a cycle of another one has locked are passed over, and checked
again soon (`runner`). A cycle that waits for its turn holds only the lock of its own study, which no other cycle
waits for.
"""

import asyncio
from collections.abc import Callable

from headrace_services.scheduler.settling import DRAWS, imported

LET_IN = 4
"""How many wake-ups are in their studies' cycles at once."""


class Turns:
    """The turns of a replica's cycles."""

    def __init__(self) -> None:
        self.placing = asyncio.Lock()
        self.let_in = asyncio.Semaphore(LET_IN)


class Turn:
    """One cycle's turn."""

    def __init__(self, turns: Turns, taken: Callable[[], None]) -> None:
        """`taken` is called when the turn is taken: the cycle will see everything committed by then."""
        self._turns = turns
        self._call = taken
        self._taken = False

    async def acquire(self) -> None:
        """Wait until no other cycle places. Do nothing if the turn was already taken."""
        await imported(DRAWS)
        if not self._taken:
            await self._turns.placing.acquire()
            self._taken = True
            self._call()

    def give_up(self) -> None:
        """Let the next cycle look. Do nothing if the turn was not taken."""
        if self._taken:
            self._turns.placing.release()
        self._taken = False
