"""How many calls each caller has at once, and how many strangers have together, counted from a call's start to its
end."""

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


class Slot(Protocol):
    """The place of one call."""

    within_s: float
    message_bytes: int

    def reading(self) -> AbstractAsyncContextManager[None]:
        """A context around the reading of its request."""
        ...

    def leave(self) -> None:
        """The call is over; calling this again changes nothing."""
        ...


class StrangersCalls:
    """The calls of strangers. If one loses its place to another, its connection is closed; if somebody else uses
    that connection too, only the call ends."""

    def __init__(self, limits: Strangers, connections: Connections) -> None:
        self.limits = limits
        self._connections = connections
        self._calls = Places(limits.calls)
        self._messages = Places(limits.messages)

    def enter(self, peer: str, end: Callable[[], None]) -> Slot:
        """A call starts; `end` ends it alone."""
        place = self._calls.acquire(peer, lambda: self._give_way(peer, end, "call"))
        return _StrangersCall(self, peer, end, lambda: self._calls.leave(place))

    @asynccontextmanager
    async def reading(self, peer: str, end: Callable[[], None]) -> AsyncIterator[None]:
        """A place among those that are read."""
        place = self._messages.acquire(peer, lambda: self._give_way(peer, end, "message"))
        try:
            yield
        finally:
            self._messages.leave(place)

    def _give_way(self, peer: str, end: Callable[[], None], what: str) -> None:
        REFUSED.labels(what).inc()
        if self._connections.knows(peer):
            end()
        else:
            self._connections.hang_up(peer)


class _StrangersCall:
    def __init__(
        self, calls: StrangersCalls, peer: str, end: Callable[[], None], leave: Callable[[], None]
    ) -> None:
        self.within_s = calls.limits.within_s
        self.message_bytes = calls.limits.message_bytes
        self.leave = leave
        self._calls = calls
        self._peer = peer
        self._end = end

    def reading(self) -> AbstractAsyncContextManager[None]:
        return self._calls.reading(self._peer, self._end)


@dataclass(slots=True)
class _Caller:
    turns: asyncio.Semaphore
    calls: dict["_KnownCall", None] = field(default_factory=dict)
    streams: int = 0


class KnownCallers:
    """The calls of each caller, by a name that only that caller has."""

    def __init__(self, limits: Known) -> None:
        self.limits = limits
        self._callers: dict[str, _Caller] = {}

    def enter(self, name: str, *, is_stream: bool) -> Slot:
        """A call starts. Raises BusyError if the caller has too many."""
        limits = self.limits
        caller = self._callers.get(name)
        if caller is None:
            caller = self._callers[name] = _Caller(asyncio.Semaphore(limits.messages))
        if is_stream and caller.streams >= limits.streams:
            raise _busy("stream", caller.streams)
        if len(caller.calls) >= limits.calls:
            raise _busy("call", limits.calls)
        call = _KnownCall(self, name, caller, is_stream=is_stream, within_s=limits.within_s)
        caller.calls[call] = None
        caller.streams += is_stream
        return call

    def left(self, call: "_KnownCall") -> None:
        """A call is over."""
        caller = call.caller
        if call not in caller.calls:
            return
        del caller.calls[call]
        caller.streams -= call.is_stream
        if not caller.calls:
            del self._callers[call.name]


class _KnownCall:
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
