"""Cycles of one replica that place trials take turns.

A cycle that looks for free slots locks those that it finds. Another one that looked meanwhile would find none, though
they may be left to its study: studies would wake each other and find nothing. So a cycle takes its turn before it
looks, and keeps it until it is committed. Cycles of reports look for no slot and take no turn.

Whoever waits for a turn holds a connection already. So the cycle whose turn it is never waits for one. A wake-up is let
in before its cycle begins, few at a time: those that wait must neither hold all connections nor hold up the messages of
their study (`runner`).

Behind the look may be the first proposal of this replica, which draws with NumPy: that is imported before.

Replicas do not wait for each other: what a cycle of another one has locked is passed over, and looked at again soon
(`runner`). A cycle that waits for its turn holds the lock of its own study alone, which no other cycle waits for.
"""

import asyncio
from collections.abc import Callable

from headrace_services.scheduler.settling import DRAWS, imported

LET_IN = 4
"""So many wake-ups are in their studies' cycles at once."""


class Turns:
    """The turns of a replica's cycles."""

    def __init__(self) -> None:
        self.placing = asyncio.Lock()
        self.let_in = asyncio.Semaphore(LET_IN)


class Turn:
    """One cycle's turn."""

    def __init__(self, turns: Turns, taken: Callable[[], None]) -> None:
        """`taken` is called when the turn is taken: what is committed by then, the cycle will see."""
        self._turns = turns
        self._call = taken
        self._taken = False

    async def acquire(self) -> None:
        """Wait until no other cycle places; nothing where the turn was taken already."""
        await imported(DRAWS)
        if not self._taken:
            await self._turns.placing.acquire()
            self._taken = True
            self._call()

    def give_up(self) -> None:
        """Let the next one look. Nothing where nothing was taken."""
        if self._taken:
            self._turns.placing.release()
        self._taken = False
