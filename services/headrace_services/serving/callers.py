"""What each caller has at once, and what strangers have together: counted from a call's beginning to its end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from headrace.errors import BusyError
from headrace_services.serving.connections import Connections
from headrace_services.serving.limits import MESSAGE_BYTES, Known, Strangers
from headrace_services.serving.measures import REFUSED
from headrace_services.serving.places import Places


class Stay(Protocol):
    """One call of somebody."""

    within_s: float
    message_bytes: int

    def reading(self) -> AbstractAsyncContextManager[None]:
        """Around the reading of its request."""
        ...

    def leave(self) -> None:
        """It is over; again this changes nothing."""
        ...


class StrangersCalls:
    """The calls of strangers. One that loses its place to another one loses its connection."""

    def __init__(self, limits: Strangers, connections: Connections) -> None:
        self.limits = limits
        self._connections = connections
        self._calls = Places(limits.calls)
        self._messages = Places(limits.messages)

    def enter(self, peer: str) -> Stay:
        """A call begins."""
        place = self._calls.take(peer, lambda: self._end(peer, "call"))
        return _Strange(self, peer, lambda: self._calls.leave(place))

    @asynccontextmanager
    async def reading(self, peer: str) -> AsyncIterator[None]:
        """A place of those that are read."""
        place = self._messages.take(peer, lambda: self._end(peer, "message"))
        try:
            yield
        finally:
            self._messages.leave(place)

    def _end(self, peer: str, what: str) -> None:
        REFUSED.labels(what).inc()
        self._connections.hang_up(peer)


class _Strange:
    """A stranger's call."""

    def __init__(self, calls: StrangersCalls, peer: str, leave: Callable[[], None]) -> None:
        self.within_s = calls.limits.within_s
        self.message_bytes = calls.limits.message_bytes
        self.leave = leave
        self._calls = calls
        self._peer = peer

    def reading(self) -> AbstractAsyncContextManager[None]:
        return self._calls.reading(self._peer)


@dataclass(slots=True)
class _Caller:
    turns: asyncio.Semaphore
    calls: dict["_Familiar", None] = field(default_factory=dict)
    streams: int = 0


class KnownCallers:
    """The calls of each caller, by a name that only it has."""

    def __init__(self, limits: Known) -> None:
        self._limits = limits
        self._callers: dict[str, _Caller] = {}

    def enter(self, name: str, *, is_stream: bool) -> Stay:
        """A call begins. Raises BusyError where the caller has too many."""
        limits = self._limits
        caller = self._callers.get(name)
        if caller is None:
            caller = self._callers[name] = _Caller(asyncio.Semaphore(limits.messages))
        if is_stream and caller.streams >= limits.streams:
            raise _busy("stream", caller.streams)
        if len(caller.calls) >= limits.calls:
            raise _busy("call", limits.calls)
        stay = _Familiar(self, name, caller, is_stream=is_stream, within_s=limits.within_s)
        caller.calls[stay] = None
        caller.streams += is_stream
        return stay

    def left(self, stay: "_Familiar") -> None:
        """A call is over."""
        caller = stay.caller
        if stay not in caller.calls:
            return
        del caller.calls[stay]
        caller.streams -= stay.is_stream
        if not caller.calls:
            del self._callers[stay.name]


class _Familiar:
    """A call of a caller that is known."""

    message_bytes = MESSAGE_BYTES

    def __init__(
        self, callers: KnownCallers, name: str, caller: _Caller, *, is_stream: bool, within_s: float
    ) -> None:
        self.name = name
        self.caller = caller
        self.is_stream = is_stream
        self.within_s = within_s
        self._callers = callers

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        async with self.caller.turns:
            yield

    def leave(self) -> None:
        self._callers.left(self)


def _busy(what: str, count: int) -> BusyError:
    REFUSED.labels(f"own {what}").inc()
    return BusyError(f"this caller has {count} {what}s open at this server already, and may have no more")
