"""Writes to a stream that are never cut off.

A stream's first write also sends its headers. If it is cancelled, and the call's status is sent next, gRPC sends the
headers again, fails, and drops the status: the call stays open, and the other side waits for ever. So a cancelled write
is finished first.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

Message = TypeVar("Message")
_PATIENCE_S = 1.0
"""A client that does not read is not waited for longer: the end of its connection ends the call."""


def uncut(write: Callable[[Message], object]) -> Callable[[Message], Awaitable[None]]:
    """A stream's `write`, which is a coroutine function; if it is cancelled, the write ends before the cancellation
    passes."""

    async def finished(message: Message) -> None:
        writing = asyncio.ensure_future(write(message))  # type: ignore[call-overload]  # the stubs lack its type
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait({writing}, timeout=_PATIENCE_S)
            if writing.done() and not writing.cancelled():
                writing.exception()  # nobody waits for it any more
            raise

    return finished
