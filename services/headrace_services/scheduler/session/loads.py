"""What workers measure of their devices, collected and written down every few seconds.

Heartbeats carry it, and nobody decides anything by it: so it is no part of their commit. What a replica has not written
when it dies is lost, and what the database does not take is dropped.
"""

import asyncio
import logging
import random
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.v1 import worker_pb2
from headrace_services.scheduler.store import loads
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.loads import Measured

log = logging.getLogger(__name__)

EVERY_S = 10.0


@dataclass(slots=True)
class _Sum:
    """The samples of one device since the last time."""

    samples: int = 0
    utilization: float = 0.0
    memory_used_bytes: int = 0


class Loads:
    """Collects the measurements of this replica's workers."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._sums: dict[tuple[int, int], _Sum] = {}

    def note(self, worker_id: int, telemetry: Iterable[worker_pb2.DeviceTelemetry]) -> None:
        """Take in what a heartbeat says; its bounds were checked."""
        for one in telemetry:
            total = self._sums.setdefault((worker_id, one.index), _Sum())
            total.samples += 1
            total.utilization += one.utilization
            total.memory_used_bytes = max(total.memory_used_bytes, one.memory_used_bytes)

    async def run(self) -> None:
        """Write down every few seconds, with jitter, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S * random.uniform(0.8, 1.2))  # noqa: S311  # jitter
            await self.flush()

    async def flush(self) -> None:
        """Write down what was collected."""
        sums, self._sums = self._sums, {}
        measured = [
            Measured(
                worker_id=worker_id,
                index=index,
                samples=total.samples,
                utilization=total.utilization / total.samples,
                memory_used_bytes=total.memory_used_bytes,
            )
            for (worker_id, index), total in sorted(sums.items())  # in one order, lest two replicas deadlock
        ]
        if not measured:
            return
        try:
            async with transaction(self._engine) as conn:
                await loads.add(conn, measured)
        except Exception as error:  # noqa: BLE001  # the next ones are written all the same
            log.warning("the loads of %s devices were not written down: %s", len(measured), error)
