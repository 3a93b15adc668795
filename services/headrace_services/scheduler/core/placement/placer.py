"""The placer: one question, asked by the service for one study, and by the simulator and the tests for a whole
cluster.

`plan` goes through the waiting trials in the given order, which is the caller's (policy order within a study,
shares between studies). A trial that fits is placed. A trial that does not fit gets a reservation, if its study
has none yet, and those behind it are placed around the reserved slots. A pure function of its arguments.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace_services.scheduler.core.placement.fit import fit, without
from headrace_services.scheduler.core.placement.reserving import Occupants, holds, reserve
from headrace_services.scheduler.core.placement.values import (
    Ask,
    Cluster,
    Placement,
    Plan,
    Reservation,
    Waiting,
)
from headrace_services.scheduler.core.records import Slot


class Placer(Protocol):
    """Decides which trials run where, for which trials slots are reserved, and which trials must leave."""

    def plan(self, cluster: Cluster, waiting: Sequence[Waiting]) -> Plan:
        """Place what can be placed, in the order of `waiting`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BestFit:
    """Best fit with reservations and backfill. Without `reserve` large trials may starve; that is only for
    comparison."""

    reserve: bool = True
    backfill: bool = True
    """Whether trials behind a waiting one may be placed at all. If not, the slots idle until it fits."""

    def plan(self, cluster: Cluster, waiting: Sequence[Waiting]) -> Plan:
        devices = cluster.devices
        reservations = list(cluster.reservations)
        placements: list[Placement] = []
        asks: list[Ask] = []
        hopeless: set[tuple[object, ...]] = set()
        in_turn: set[tuple[object, ...]] = set()
        occupants = Occupants.of(cluster) if self.reserve else None
        for job in waiting:
            own = next((r for r in reservations if r.key == job.key), None)
            shape = _shape(job)
            placement = None if shape in hopeless else fit(devices, job, reservations)
            if placement is not None:
                placements.append(placement)
                devices = without(devices, placement)
                reservations = [r for r in reservations if r.key != job.key]
                continue
            if shape not in hopeless and fit(devices, job) is None:
                hopeless.add(shape)  # nothing is free for a trial of this shape, whatever the reservations
            if self.reserve and (own is not None or (job.group, shape) not in in_turn):
                found = self._keep(cluster, devices, reservations, own, job, occupants)
                asks += found
                if not found:
                    in_turn.add((job.group, shape))
            if not self.backfill:
                break
        return Plan(placements=tuple(placements), reservations=tuple(reservations), asks=tuple(asks))

    def _keep(
        self,
        cluster: Cluster,
        devices: tuple[Slot, ...],
        reservations: list[Reservation],
        own: Reservation | None,
        job: Waiting,
        occupants: Occupants | None,
    ) -> Sequence[Ask]:
        if own is not None and holds(own, job, devices):
            return ()
        if own is not None:
            reservations.remove(own)
        elif any(r.group == job.group for r in reservations):
            return ()
        found = reserve(
            Cluster(
                devices=devices,
                running=cluster.running,
                reservations=tuple(reservations),
                now_s=cluster.now_s,
            ),
            job,
            occupants,
        )
        if found is None:
            return ()
        reservations.append(found[0])
        return found[1]


def _shape(job: Waiting) -> tuple[object, ...]:
    """What determines whether a trial fits into the free slots."""
    request = job.request
    return (
        request.slots,
        request.milli,
        request.gpu,
        request.memory_bytes,
        request.types,
        tuple(sorted(request.labels.items())),
        request.cores,
        job.priority,
    )
