"""Turns on slots.

A slot runs one lease at a time, or several that share it in thousandths. The scheduler may assign a slot again
before the old process is gone, since it frees a slot with its decision. So leases queue at their slots in the
order of their Assigns, and a lease's turn comes when it and those before it fit on every slot of its grant. One
global order means that no two gangs can wait for each other.
"""

import asyncio
from collections.abc import Iterable

from headrace.grants import WHOLE


class Slots:
    """The queues of all slots."""

    def __init__(self, count: int) -> None:
        self._lines: dict[int, list[Turn]] = {index: [] for index in range(count)}

    def add(self, index: int) -> None:
        """Adds a slot; one that exists already stays as it is."""
        self._lines.setdefault(index, [])

    def join(self, indices: Iterable[int], milli: int = WHOLE) -> "Turn":
        """Queues at the slots at once; raises `ValueError` for a slot that does not exist."""
        wanted = sorted(set(indices))
        if not wanted:
            raise ValueError("the grant names no slot")
        for index in wanted:
            if index not in self._lines:
                raise ValueError(f"slot {index} does not exist: this worker has {len(self._lines)}")
        turn = Turn(self, wanted, milli)
        for index in wanted:
            self._lines[index].append(turn)
        self._call(wanted)
        return turn

    def _leave(self, turn: "Turn") -> None:
        for index in turn.indices:
            if turn in self._lines[index]:
                self._lines[index].remove(turn)
        self._call(turn.indices)

    def _call(self, indices: Iterable[int]) -> None:
        for turn in {id(turn): turn for index in indices for turn in self._lines[index]}.values():
            if all(self._fits(turn, index) for index in turn.indices):
                turn.called.set()

    def _wanted(self, turn: "Turn") -> bool:
        return any(not other.called.is_set() for index in turn.indices for other in self._lines[index])

    def _fits(self, turn: "Turn", index: int) -> bool:
        line = self._lines[index]
        return sum(other.milli for other in line[: line.index(turn) + 1]) <= WHOLE


class Turn:
    """The place of one grant in the queues: the grant of a lease, or of all leases of a bundle."""

    def __init__(self, slots: Slots, indices: list[int], milli: int) -> None:
        self._slots = slots
        self.milli = milli
        self.indices = indices
        self.called = asyncio.Event()

    @property
    def wanted(self) -> bool:
        """Whether others wait for one of these slots."""
        return self._slots._wanted(self)

    def leave(self) -> None:
        """Hands the slots to the next in the queue; may be repeated."""
        self._slots._leave(self)
