"""Calls that wait for a process of a pool. Callers take turns, so nobody waits for all calls of another caller. If
there are several processes, no caller has all of them at once, so nobody waits for the end of another caller's
long calls."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.errors import TooLargeError
from headrace_services.sandbox.limits import Limits

_Item = TypeVar("_Item")


class Queue(Generic[_Item]):
    """The places of the waiting calls."""

    def __init__(self, limits: Limits, processes: int) -> None:
        self._limits = limits
        self._at_once = max(1, processes - 1)
        self._served = Counter[str]()
        self._callers: dict[asyncio.Future[_Item], str] = {}
        self._last: str | None = None

    def __bool__(self) -> bool:
        return bool(self._callers)

    def join(self, caller: str) -> asyncio.Future[_Item]:
        """A place at the end of the queue. Raises TooLargeError if too many are waiting."""
        mine = sum(who == caller for who in self._callers.values())
        if mine >= self._limits.each:
            raise busy(f"{mine} calls of this caller already wait for such an answer")
        if len(self._callers) >= self._limits.waiting:
            raise busy(f"{len(self._callers)} calls already wait for such an answer")
        place: asyncio.Future[_Item] = asyncio.get_running_loop().create_future()
        self._callers[place] = caller
        return place

    def leave(self, place: asyncio.Future[_Item]) -> None:
        """The call no longer waits."""
        self._callers.pop(place, None)

    def next(self) -> asyncio.Future[_Item] | None:
        """Remove the place whose turn it is: the first one of a caller other than the last one, if there is any.

        The other calls of its caller move behind everybody else's. It has a process until `ended`.
        """
        place = self._pop(lambda caller: self._served[caller] < self._at_once)
        if place is not None and self._last is not None:
            self._served[self._last] += 1
        return place

    def ended(self, caller: str) -> None:
        """A call no longer needs its process."""
        self._served[caller] -= 1
        if not self._served[caller]:
            del self._served[caller]

    def fail(self, error: BaseException) -> None:
        """No process is available: the call whose turn it is gets the error."""
        if (place := self._pop(lambda _: True)) is not None:
            place.set_exception(error)

    def _pop(self, may: Callable[[str], bool]) -> asyncio.Future[_Item] | None:
        waiting = [
            place
            for place, caller in self._callers.items()
            if not place.done() and may(caller)  # a finished one has gone away
        ]
        if not waiting:
            return None
        place = next((place for place in waiting if self._callers[place] != self._last), waiting[0])
        self._last = self._callers.pop(place)
        for other in waiting:
            if self._callers.get(other) == self._last:
                self._callers[other] = self._callers.pop(other)
        return place


def busy(why: str) -> TooLargeError:
    """The error for a call for which no process has time."""
    return TooLargeError(why, remedy="Try again in a moment.")
