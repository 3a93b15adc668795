"""Which replica a client uses: the first one in its list, and after a failure the next one.

A client stays with a replica as long as it answers. Channels are opened when they are first used, and stay open,
because another thread may still be using one.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from headrace.errors import DeadlineError, HeadraceError, UnreachableError

Channel = TypeVar("Channel")


class Route(Generic[Channel]):
    """The channels to the replicas of one target, and the one in use. Thread-safe."""

    def __init__(self, replicas: Sequence[str], open_channel: Callable[[str], Channel]) -> None:
        self._replicas = replicas
        self._open = open_channel
        self._opened: dict[str, Channel] = {}
        self._at = 0
        self._failures = 0
        """Consecutive failures since a replica last answered."""
        self._lock = threading.Lock()

    def channel(self) -> Channel:
        """The current channel."""
        with self._lock:
            replica = self._replicas[self._at]
            if replica not in self._opened:
                self._opened[replica] = self._open(replica)
            return self._opened[replica]

    def note(self, channel: Channel, failure: HeadraceError | None) -> None:
        """Take the result of a call on a channel (None: success). Of several calls that fail together, only one
        switches.
        """
        if not isinstance(failure, UnreachableError | DeadlineError):
            self._failures = 0
            return
        with self._lock:
            if self._opened.get(self._replicas[self._at]) is channel:
                self._at = (self._at + 1) % len(self._replicas)
                self._failures += 1

    def lead_to(self, replicas: Sequence[str]) -> None:
        """Use these replicas from now on, starting with the first."""
        with self._lock:
            self._replicas, self._at, self._failures = replicas, 0, 0

    @property
    def has_untried(self) -> bool:
        """Whether the next replica has not failed since any replica last answered, so it can be tried without
        waiting.
        """
        return 0 < self._failures < len(self._replicas)

    def opened(self) -> Iterator[Channel]:
        """The channels to close."""
        yield from tuple(self._opened.values())
