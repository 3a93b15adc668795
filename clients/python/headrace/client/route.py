"""Which replica a client talks to: the first one of its list, and after a failure there the next one.

A client stays with a replica for as long as that answers. Channels are opened when their turn comes, and stay open:
another thread may still be at work on one.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from headrace.errors import DeadlineError, HeadraceError, UnreachableError

Channel = TypeVar("Channel")


class Route(Generic[Channel]):
    """The channels to the replicas of one target, and the one in use. Threads may share it."""

    def __init__(self, replicas: Sequence[str], open_channel: Callable[[str], Channel]) -> None:
        self._replicas = replicas
        self._open = open_channel
        self._opened: dict[str, Channel] = {}
        self._at = 0
        self._failures = 0
        """In a row, since anybody answered."""
        self._lock = threading.Lock()

    def channel(self) -> Channel:
        """The channel to use now."""
        with self._lock:
            replica = self._replicas[self._at]
            if replica not in self._opened:
                self._opened[replica] = self._open(replica)
            return self._opened[replica]

    def note(self, channel: Channel, failure: HeadraceError | None) -> None:
        """Learns how a call on a channel went (None: well). Of several that fail together, one moves on."""
        if not isinstance(failure, UnreachableError | DeadlineError):
            self._failures = 0
            return
        with self._lock:
            if self._opened.get(self._replicas[self._at]) is channel:
                self._at = (self._at + 1) % len(self._replicas)
                self._failures += 1

    def lead_to(self, replicas: Sequence[str]) -> None:
        """Talks to these replicas from now on, the first one first."""
        with self._lock:
            self._replicas, self._at, self._failures = replicas, 0, 0

    @property
    def has_untried(self) -> bool:
        """Whether the next replica has not failed since anybody answered: no reason to wait before it is tried."""
        return 0 < self._failures < len(self._replicas)

    def opened(self) -> Iterator[Channel]:
        """The channels to close."""
        yield from tuple(self._opened.values())
