"""Calls that wait for a process of a pool. Callers take turns, so nobody waits for all calls of another caller."""

import asyncio
from typing import Generic, TypeVar

from headrace.errors import TooLargeError
from headrace_services.apart.limits import Limits

_Item = TypeVar("_Item")


class Queue(Generic[_Item]):
    """The places of the calls that wait."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._callers: dict[asyncio.Future[_Item], str] = {}
        self._last: str | None = None

    def __bool__(self) -> bool:
        return bool(self._callers)

    def join(self, caller: str) -> asyncio.Future[_Item]:
        """A place at the end of the queue. Raises TooLargeError where too many wait."""
        mine = sum(who == caller for who in self._callers.values())
        if mine >= self._limits.each:
            raise busy(f"{mine} calls of this caller wait for such an answer already")
        if len(self._callers) >= self._limits.waiting:
            raise busy(f"{len(self._callers)} calls wait for such an answer already")
        place: asyncio.Future[_Item] = asyncio.get_running_loop().create_future()
        self._callers[place] = caller
        return place

    def leave(self, place: asyncio.Future[_Item]) -> None:
        """The call waits no more."""
        self._callers.pop(place, None)

    def next(self) -> asyncio.Future[_Item] | None:
        """Take the place out whose turn it is: the first one of another caller than the last time, if there is any.

        The other calls of its caller go behind everybody else's.
        """
        waiting = [place for place in self._callers if not place.done()]  # else the caller has gone away
        if not waiting:
            return None
        place = next((place for place in waiting if self._callers[place] != self._last), waiting[0])
        self._last = self._callers.pop(place)
        for other in waiting:
            if self._callers.get(other) == self._last:
                self._callers[other] = self._callers.pop(other)
        return place


def busy(why: str) -> TooLargeError:
    """The refusal of a call for which no process has time."""
    return TooLargeError(why, remedy="Try again in a moment.")
