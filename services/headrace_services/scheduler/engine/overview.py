"""Counts what the cluster has, now and then, for metrics. A scrape reads no row; this does, at its own pace.

While the database is away the numbers stay as they are, and their time says how old they are.
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
    """One a replica that shows metrics; all replicas show the same."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def run(self) -> None:
        """Count every quarter of a minute, with jitter, until cancelled."""
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
