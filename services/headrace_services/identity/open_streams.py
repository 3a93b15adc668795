"""Ends streams whose token was revoked or has expired.

A stream may last for days without any message. So it is ended from the outside, as if its client had disconnected,
within `ASKED_AGAIN_S` of the gate noticing. The gate caches its answers for a few seconds, so asking it is cheap.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from headrace.errors import HeadraceError, PermissionDeniedError, UnauthenticatedError

log = logging.getLogger(__name__)

ASKED_AGAIN_S: Final = 10.0

Ask = Callable[[], Awaitable[object]]
"""Asks the gate. Raises HeadraceError if it refuses."""


class NoLongerLetInError(Exception):
    """The gate would refuse the call now."""

    def __init__(self, why: HeadraceError) -> None:
        super().__init__(str(why))
        self.why = why


@asynccontextmanager
async def until_refused(ask: Ask, every_s: float) -> AsyncIterator[None]:
    """Cancels the block when the gate refuses its call, and raises NoLongerLetInError then.

    While the gate cannot answer, because the database is away, the call continues.
    """
    refused: list[HeadraceError] = []
    watching = asyncio.create_task(_watch(_task(), ask, every_s, refused))
    try:
        yield
    except asyncio.CancelledError:
        if not refused or _task().uncancel():
            raise
        raise NoLongerLetInError(refused[0]) from None
    finally:
        watching.cancel()


async def _watch(task: "asyncio.Task[Any]", ask: Ask, every_s: float, refused: list[HeadraceError]) -> None:
    while True:
        await asyncio.sleep(every_s)
        try:
            await ask()
        except (UnauthenticatedError, PermissionDeniedError) as error:
            refused.append(error)
            task.cancel()
            return
        except Exception as error:  # noqa: BLE001  (whatever it is, the next try may say)
            log.warning("whether a stream's token still works is not known now: %s", error)


def _task() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None
    return task
