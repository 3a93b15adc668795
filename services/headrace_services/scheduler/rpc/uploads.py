"""The uploads of code in progress: how many there may be, and how slow.

An upload holds a place from its first bytes until it is stored. So a client that opens one and sends nothing
blocks no other. Nor does one that stalls or trickles for long: once it has its place, it may take `SILENCE_S` plus
the time that the bytes sent so far take at `PACE_BYTES` a second.

A project has only a few places, so that other projects find one.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from headrace.errors import BusyError, DeadlineError
from headrace.v1 import code_pb2 as pb

PLACES: Final = 8
"""Each may fill a temporary file of 150 MB."""
PLACES_EACH: Final = 2
"""Places for one project."""
OPEN_EACH: Final = 16
"""Uploads of a project, including those that wait for a place."""
SILENCE_S: Final = 30.0
PACE_BYTES: Final = 32 << 10
"""At this pace a message of 1 MiB takes as long as the allowed silence."""


@dataclass(slots=True)
class _Project:
    places: asyncio.Semaphore
    open: int = 0


class Uploads:
    """The uploads to one replica."""

    def __init__(self, *, silence_s: float = SILENCE_S) -> None:
        self._silence_s = silence_s
        self._places = asyncio.Semaphore(PLACES)
        self._projects: dict[str, _Project] = {}

    @asynccontextmanager
    async def opened(
        self, project: str, messages: AsyncIterator[pb.PutCodeRequest]
    ) -> AsyncIterator["Upload"]:
        """Open an upload of a project. Raises BusyError if it has too many."""
        here = self._projects.setdefault(project, _Project(asyncio.Semaphore(PLACES_EACH)))
        if here.open >= OPEN_EACH:
            raise BusyError(f"project '{project}' already has {here.open} code uploads open")
        here.open += 1
        try:
            yield Upload(messages, self._silence_s, here.places, self._places)
        finally:
            here.open -= 1
            if not here.open:
                del self._projects[project]


class Upload:
    """One upload."""

    def __init__(
        self,
        messages: AsyncIterator[pb.PutCodeRequest],
        silence_s: float,
        *places: asyncio.Semaphore,
    ) -> None:
        self._messages = messages
        self._silence_s = silence_s
        self._of_project, self._of_all = places
        self._received = 0
        self._since = asyncio.get_running_loop().time()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place, and hold it."""
        async with self._of_project, self._of_all:
            self._since = asyncio.get_running_loop().time()
            yield

    async def next(self) -> pb.PutCodeRequest | None:
        """The next message; None if there are no more. Raises DeadlineError if it takes too long."""
        until = self._since + self._silence_s + self._received / PACE_BYTES
        try:
            async with asyncio.timeout_at(until):
                message = await anext(self._messages, None)
        except TimeoutError:
            raise DeadlineError(
                f"the upload was silent for {self._silence_s:g} s, or slower than {PACE_BYTES >> 10} KiB a second"
            ) from None
        if message is not None:
            self._received += len(message.data)
        return message
