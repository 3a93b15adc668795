"""Seats whose worker ended and was not seen connected: they rest before they are filled again.

A wrong image, store or address makes each worker fail within seconds. Without a rest, each turn would request all of
them again. The first rest is short, since a worker may have been connected between two turns. Each further one in a
row is twice as long.

This is the only memory of a loop. It lasts as long as the process, and decides only when a seat is filled, never
whether: a loop that has forgotten, or another one, requests a worker too early, and no more than `--max`.

A worker that connects and gets no trial is no such case. It leaves after `--idle-exit`, which is its own rest.
"""

import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from headrace.launch.engine import Member

FIRST_S: Final = 15.0
LONGEST_S: Final = 600.0


class Rests:
    """What one loop has seen of each seat."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._connected: dict[int, bool] = {}
        """The seats that were taken in the last turn, and whether a worker of theirs has ever been connected."""
        self._until: dict[int, float] = {}
        self._rest_s: dict[int, float] = {}
        """How long each seat rests next."""

    def after(self, members: Iterable[Member], connected: Collection[str]) -> frozenset[int]:
        """The seats that rest, given what exists now."""
        now, before, self._connected = self._clock(), self._connected, {}
        for member in members:
            came = before.get(member.seat, False) or member.worker in connected
            self._connected[member.seat] = self._connected.get(member.seat, False) or came
        for seat, came in before.items():
            if came:
                self._rest_s.pop(seat, None)
            elif seat not in self._connected:
                rest_s = self._rest_s.get(seat, FIRST_S)
                self._until[seat], self._rest_s[seat] = now + rest_s, min(2 * rest_s, LONGEST_S)
        self._until = {seat: until for seat, until in self._until.items() if until > now}
        return frozenset(self._until) - self._connected.keys()

    def submitted(self, seats: Iterable[int]) -> None:
        """Workers were requested. If the next turn shows none, they have ended."""
        for seat in seats:
            self._connected[seat] = False
