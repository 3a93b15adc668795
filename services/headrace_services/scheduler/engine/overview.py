"""Count the cluster's contents from time to time, for metrics. A scrape reads no rows; this does, at its own pace.

While the database is unavailable the numbers stay as they are, and their timestamp shows how old they are.
"""

import asyncio
import logging
import random
import time

from sqlalchemy.ext.asyncio import AsyncEngine

from headrace_services.scheduler import measures
from headrace_services.scheduler.store import overview
from headrace_services.scheduler.store.database import transaction

log = logging.getLogger(__name__)

EVERY_S = 15.0


class OverviewGauges:
    """One on each replica that serves metrics; all replicas show the same numbers."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def run(self) -> None:
        """Count every 15 seconds, with jitter, until cancelled."""
        while True:
            try:
                await self.refresh()
            except Exception as error:  # noqa: BLE001  # whatever it is, metrics alone are older for it
                log.warning("the cluster could not be counted for the metrics: %s", error)
            await asyncio.sleep(EVERY_S * random.uniform(0.8, 1.2))  # noqa: S311  # jitter

    async def refresh(self) -> None:
        """Count once."""
        async with transaction(self._engine) as conn:
            found = await overview.overview(conn)
        for gauge, counts in (
            (measures.SLOTS, found.slots),
            (measures.STUDIES, found.studies),
            (measures.TRIALS, found.trials),
        ):
            for state, count in counts.items():
                gauge.labels(state).set(count)
        measures.SAMPLED.set(time.time())
