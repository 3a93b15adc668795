"""Run cycles for studies whose hours must be counted or are used up (`core/hours.py`), or that are closing and
whose trials have had their time to leave (`core/closing.py`). One on each replica."""

import asyncio
import logging
import random

from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.engine.looks import Looks
from headrace_services.scheduler.store import studies
from headrace_services.scheduler.store.database import transaction

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0


class Budgets:
    """Several at once are harmless: the study's row records up to when its hours are counted."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._looks = Looks(log, "studies whose hours are to be counted")

    async def run(self) -> None:
        """Check every two seconds, with jitter, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S * random.uniform(0.8, 1.2))  # noqa: S311  # jitter
            with self._looks.look():
                await self.look()

    async def look(self) -> None:
        """Check once, and run a cycle for each study that is found."""
        async with transaction(self._hub.engine) as conn:
            found = await studies.to_count(conn)
        for study_id in found:
            self._hub.kick(study_id, "its time is counted")
