"""The measurements that workers make of their devices, collected and written every few seconds.

Heartbeats carry them. No decision depends on them, so they are not part of the heartbeats' commit. Measurements
that a replica has not written when it dies are lost, and those that the database does not accept are dropped.
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
    known: int = 0
    """How many of them have a utilization."""
    utilization: float = 0.0
    memory_used_bytes: int = 0


class Loads:
    """Collects the measurements of this replica's workers."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._sums: dict[tuple[int, int], _Sum] = {}

    def note(self, worker_id: int, telemetry: Iterable[worker_pb2.DeviceTelemetry]) -> None:
        """Add the measurements of a heartbeat; its bounds were checked."""
        for one in telemetry:
            total = self._sums.setdefault((worker_id, one.index), _Sum())
            total.samples += 1
            if one.HasField("utilization"):
                total.known += 1
                total.utilization += one.utilization
            total.memory_used_bytes = max(total.memory_used_bytes, one.memory_used_bytes)

    async def run(self) -> None:
        """Write every few seconds, with jitter, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S * random.uniform(0.8, 1.2))  # noqa: S311  # jitter
            await self.flush()

    async def flush(self) -> None:
        """Write what was collected."""
        sums, self._sums = self._sums, {}
        measured = [
            Measured(
                worker_id=worker_id,
                index=index,
                samples=total.samples,
                utilization=total.utilization / total.known if total.known else None,
                memory_used_bytes=total.memory_used_bytes,
            )
            # in a fixed order, so that two replicas do not deadlock
            for (worker_id, index), total in sorted(sums.items())
        ]
        if not measured:
            return
        try:
            async with transaction(self._engine) as conn:
                await loads.add(conn, measured)
        except Exception as error:  # noqa: BLE001  # the next ones are written all the same
            log.warning("the loads of %s devices were not written down: %s", len(measured), error)
