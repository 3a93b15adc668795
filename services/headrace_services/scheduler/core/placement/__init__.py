"""Placement: which trial runs where, and for which trials slots are reserved. A pure core: values in, values out.

    (devices, running, waiting, measured times) → placements, reservations, which trials must leave

`fit` finds the slots for one request, `reserving` reserves slots for one that fits nowhere yet, and `placer`
combines the two behind the protocol `Placer`. `speeds` learns how fast each trial is on a device type, `shares`
decides which study is next, and `elastic` how much a trial gets. The core's cycle, the simulator and the tests
call the same code; the contract is `tests/placement/test_placement_contract.py`.
"""

from collections.abc import Iterable

from headrace.spec import Resources
from headrace_services.scheduler.core.placement.elastic import (
    SUSPECTED_AFTER,
    accepts_ephemeral,
    is_suspect,
    request_at,
    request_of,
    requests_of,
    sizes_differ,
    spare_slots,
    with_ephemeral,
)
from headrace_services.scheduler.core.placement.fit import can_ever_serve, fit, suits, with_parts, without
from headrace_services.scheduler.core.placement.placer import BestFit, Placer
from headrace_services.scheduler.core.placement.reserving import reserve
from headrace_services.scheduler.core.placement.values import (
    Ask,
    Cluster,
    Key,
    Placement,
    Plan,
    Request,
    Reservation,
    Running,
    Waiting,
)
from headrace_services.scheduler.core.records import Slot


def place(free: Iterable[Slot], request: Resources) -> tuple[Slot, ...] | None:
    """Return the slots for one trial of a study about which nothing else is known, or None if it fits nowhere."""
    found = fit(free, Waiting(key=(0, 0), request=Request.of(request)))
    return found.slots if found else None


__all__ = [
    "SUSPECTED_AFTER",
    "Ask",
    "BestFit",
    "Cluster",
    "Key",
    "Placement",
    "Placer",
    "Plan",
    "Request",
    "Reservation",
    "Running",
    "Waiting",
    "accepts_ephemeral",
    "can_ever_serve",
    "fit",
    "is_suspect",
    "place",
    "request_at",
    "request_of",
    "requests_of",
    "reserve",
    "sizes_differ",
    "spare_slots",
    "suits",
    "with_ephemeral",
    "with_parts",
    "without",
]
