"""What a bundle's turns cost by number of members: time, and the most memory that the process held.

Turns with the same members are summed up until they are told. Memory is a high-water mark. So it belongs to the most
members that the process ever had: with fewer members nothing is told of it.
"""

import resource
import sys
import time

from headrace.trial.runtime import TurnCost


class Stopwatch:
    """Measures the turns of one process."""

    def __init__(self) -> None:
        self._members = self._most = self._turns = 0
        self._since = self._time_s = 0.0

    def begin(self, members: int) -> None:
        """A turn of so many members begins. What was not told of others is dropped."""
        if members != self._members:
            self._members, self._turns, self._time_s = members, 0, 0.0
        elif self._turns:  # it was not reported, and its time runs on
            self._time_s += time.monotonic() - self._since
        self._turns += 1
        self._since = time.monotonic()
        self._most = max(self._most, members)

    def told(self) -> TurnCost | None:
        """What the turns cost since the last call; None where none was measured."""
        if not self._turns:
            return None
        cost = TurnCost(
            members=self._members,
            turns=self._turns,
            time_s=self._time_s + time.monotonic() - self._since,
            memory_bytes=held_bytes() if self._members == self._most else 0,
        )
        self._turns, self._time_s = 0, 0.0
        return cost


def held_bytes() -> int:
    """The most memory that the process ever held: on its GPU where it uses one, else of the machine."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_reserved())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
