"""Cycles of one replica that place trials take turns.

A cycle that looks for free slots locks those that it finds. Another one that looked meanwhile would find none, though
they may be left to its study: studies would wake each other and find nothing. So a cycle takes its turn before it
looks, and keeps it until it is committed. Cycles of reports look for no slot and take no turn.

Whoever waits for a turn holds a connection already. So the cycle whose turn it is never waits for one. Cycles that do
nothing but place are let in few at a time: they must not hold all connections while they wait.

Replicas do not wait for each other: what a cycle of another one has locked is passed over, and looked at again soon
(`runner`). A cycle that waits for its turn holds the lock of its own study alone, which no other cycle waits for.
"""

import asyncio

LET_IN = 4
"""So many cycles that do nothing but place hold a connection at once."""


class Turns:
    """The turns of a replica's cycles."""

    def __init__(self) -> None:
        self.placing = asyncio.Lock()
        self.let_in = asyncio.Semaphore(LET_IN)


class Turn:
    """One cycle's turn."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._is_in = self._taken = False

    async def come_in(self) -> None:
        """Wait until a cycle that does nothing but place may take a connection."""
        await self._turns.let_in.acquire()
        self._is_in = True

    async def take(self) -> None:
        """Wait until no other cycle places; nothing where the turn was taken already."""
        if not self._taken:
            await self._turns.placing.acquire()
            self._taken = True

    def give_up(self) -> None:
        """Let the next ones in. Nothing where nothing was taken."""
        if self._taken:
            self._turns.placing.release()
        if self._is_in:
            self._turns.let_in.release()
        self._is_in = self._taken = False
