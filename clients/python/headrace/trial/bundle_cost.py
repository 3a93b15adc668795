"""The cost of a bundle's turns by number of members: time, and the most memory that the process held.

Turns with the same members are added up until they are reported. The first of them is fresh: it is reported
separately, or not at all. The memory is a high-water mark, so it belongs to the largest number of members that
the process ever had; for smaller numbers it is not reported.
"""

import resource
import sys
import time
from collections.abc import Sequence

from headrace.trial.runtime import TurnCost


class Stopwatch:
    """Measures the turns of one process."""

    def __init__(self) -> None:
        self._members: tuple[int, ...] = ()
        self._most = self._turns = 0
        self._since = self._time_s = 0.0
        self._fresh = True

    def begin(self, members: Sequence[int]) -> None:
        """A turn of these members starts. Unreported measurements of other members are dropped."""
        if tuple(members) != self._members:
            self._members, self._fresh, self._turns, self._time_s = tuple(members), True, 0, 0.0
        elif self._turns and not self._fresh:  # it was not reported, so its time continues
            self._time_s += time.monotonic() - self._since
        else:
            self._fresh, self._turns, self._time_s = False, 0, 0.0
        self._turns += 1
        self._since = time.monotonic()
        self._most = max(self._most, len(members))

    def told(self) -> TurnCost | None:
        """The cost of the turns since the last call; None if none was measured."""
        if not self._turns:
            return None
        cost = TurnCost(
            members=len(self._members),
            turns=self._turns,
            time_s=self._time_s + time.monotonic() - self._since,
            memory_bytes=held_bytes() if len(self._members) == self._most else 0,
            fresh=self._fresh,
        )
        self._turns, self._time_s = 0, 0.0
        return cost


def held_bytes() -> int:
    """The most memory that the process ever held: on its GPU if it uses one, otherwise on the machine."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_reserved())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
