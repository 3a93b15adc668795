"""What a cycle knows of the cluster beyond its own study.

Empty, it means that the study is alone: then the first trial that fits gets the slots. `cluster_view` fills it before
placing; the slow part (`devices`, `running`) only when a trial fits nowhere and slots may have to be kept for it.

Of many other studies it knows the first that wait for slots, until `sharing` asks for the next ones.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace_services.scheduler.core.needs import Line
from headrace_services.scheduler.core.placement import Placement, Reservation, Running, Waiting
from headrace_services.scheduler.core.placement.quotas import Quota
from headrace_services.scheduler.core.placement.shares import Claim, Share, Totals, in_order
from headrace_services.scheduler.core.records import Slot


@dataclass(slots=True)
class ClusterState:
    """The cluster as one study's cycle sees it."""

    passed_over: bool = False
    """Whether there were more free slots, which the cycles of other studies looked at just then."""
    crowded: bool = False
    """Whether there are other active studies on workers."""
    others: dict[int, Share] = field(default_factory=dict)
    """Those that are known, by their ids."""
    known_to: Claim | None = None
    """Up to which claim all that wait are known; None where all of them are that could use any slot."""
    least_s: float | None = None
    """The least virtual time among the others, where the study comes back from being idle."""
    totals: Totals = field(default_factory=lambda: Totals(gpu_milli=0, cpu_slots=0))
    devices: tuple[Slot, ...] | None = None
    """Every device that could serve the study, whoever is on it; None until it was looked at."""
    running: tuple[Running, ...] = ()
    withheld: list[Placement] = field(default_factory=list)
    """Slots that this cycle leaves to other studies."""
    kicks: set[int] = field(default_factory=set)
    """The studies that are to look at what was left to them."""
    blocked: Waiting | None = None
    """The first trial that could run and got no slots."""
    quota: Quota | None = None
    """That of the study's project, where it has one."""
    held_off: int = 0
    """Thousandths of slots of the first trial that could run and that the quota keeps off; 0 for none."""
    has_own: bool | None = None
    """Whether any worker could serve the study with slots that are not ephemeral; None until it was asked."""
    left_ephemeral: set[tuple[int, int]] = field(default_factory=set)
    """Ephemeral slots that this cycle leaves to other studies."""
    wanted_ephemeral_bytes: int | None = None
    """Of a trial that waits and may have an ephemeral slot: the memory that the slot must have at least."""
    moving: int = 0
    """How many trials this cycle lets leave ephemeral slots for slots or seats of their own."""
    idle: tuple[Slot, ...] = ()
    """The slots that members of the study's bundles may spread to: free ones that no trial waits for."""
    spread: int = 0
    """How many members this cycle lets leave their bundles for them."""
    has_idle: bool = False
    """Whether slots that suffice for a further trial of the study are idle: nothing waits for them."""
    nothing_waits: bool = False
    """Whether there are spare slots: free ones that no trial waits for."""

    def meet(self, shares: Iterable[Share]) -> None:
        """Get to know other studies; of those that are known already, what this cycle left to them stays."""
        for share in shares:
            self.others.setdefault(share.study_id, share)

    def extend(self, line: Line) -> None:
        """Get to know the next studies that wait."""
        self.meet(line.shares)
        self.known_to = line.known_to

    def ahead_of(self, own: Claim, now_s: float) -> list[tuple[Claim, Share]]:
        """The studies that want slots and surely go before a claim, with their own claims, the first one first."""
        ordered = in_order(self.others.values(), self.totals, now_s)
        return [(place, other) for place, other in ordered if self.is_ahead(other, place, own)]

    def is_ahead(self, other: Share, place: Claim, own: Claim) -> bool:
        """Whether a study wants slots and surely goes before a claim. `place` is its own."""
        return other.wanted > 0 and place < own and (self.known_to is None or place <= self.known_to)

    def others_may_go_before(self, own: Claim) -> bool:
        """Whether studies that are not known may go before a claim."""
        return self.known_to is not None and self.known_to < own

    @property
    def others_wait(self) -> bool:
        """Whether another study waits for slots."""
        return any(share.wants is not None for share in self.others.values())

    def reservations(self, now_s: float) -> list[Reservation]:
        """What other studies have slots kept for."""
        kept = (share.reservation(now_s) for share in self.others.values())
        return [reservation for reservation in kept if reservation is not None]
