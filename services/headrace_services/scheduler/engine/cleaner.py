"""Deletes what is of no use any more: answers to old requests, workers that are gone for long, code that
no study needs.

Each deletion takes at most `AT_ONCE` rows, in a transaction of its own. So none reaches the statement timeout, and
nothing waits for them: leases expire elsewhere (`sweeper`). What fails is logged and tried again in the next round.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from headrace_services.scheduler.store import code, requests, workers
from headrace_services.scheduler.store.database import transaction

log = logging.getLogger(__name__)

EVERY_S = 600.0
AT_ONCE = 500

Forget = Callable[[AsyncConnection, int], Awaitable[int]]
"""Deletes at most so many rows. Returns how many."""
_KINDS: dict[str, Forget] = {
    "old requests": requests.forget_old,
    "workers that are gone": workers.forget_gone,
    "code that no study needs": code.forget_unneeded,
}


class Cleaner:
    """One a replica; several at once do no harm."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def run(self) -> None:
        """Clean every ten minutes, with jitter, until cancelled."""
        while True:
            await self.clean()
            await asyncio.sleep(EVERY_S * random.uniform(0.8, 1.2))  # noqa: S311  # jitter

    async def clean(self) -> None:
        """Delete everything that can go."""
        for what, forget in _KINDS.items():
            try:
                while await self._some(forget) >= AT_ONCE:
                    pass
            except Exception:
                log.warning("could not delete %s; the next round tries again", what, exc_info=True)

    async def _some(self, forget: Forget) -> int:
        async with transaction(self._engine) as conn:
            return await forget(conn, AT_ONCE)
