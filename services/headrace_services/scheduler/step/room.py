"""What a step knows of the cluster beyond its own study.

Empty, it means that the study is alone: then the first trial that fits gets the slots. Filled by the transaction, or
by the simulator, before placing; the slow part (`devices`, `running`) only when a trial fits nowhere and slots may
have to be kept for it.
"""

from dataclasses import dataclass, field

from headrace_services.scheduler.records import Slot
from headrace_services.scheduler.step.placement import Placement, Reservation, Running, Waiting
from headrace_services.scheduler.step.placement.shares import Share, Totals


@dataclass(slots=True)
class Room:
    """The cluster as one study's step sees it."""

    others: tuple[Share, ...] = ()
    """The other active studies that run on workers."""
    names: dict[int, str] = field(default_factory=dict)
    totals: Totals = field(default_factory=lambda: Totals(gpu_milli=0, cpu_slots=0))
    devices: tuple[Slot, ...] | None = None
    """Every device that could serve the study, whoever is on it; None until it was looked at."""
    running: tuple[Running, ...] = ()
    withheld: list[Placement] = field(default_factory=list)
    """Slots that this step leaves to other studies."""
    kicks: set[int] = field(default_factory=set)
    """The studies that are to look at what was left to them."""
    blocked: Waiting | None = None
    """The first trial that could run and got no slots."""
    nothing_waits: bool = False
    """Whether there are spare slots: free ones that no trial waits for."""

    def reservations(self, now_s: float) -> list[Reservation]:
        """What other studies have slots kept for."""
        kept = (share.reservation(now_s) for share in self.others)
        return [reservation for reservation in kept if reservation is not None]
