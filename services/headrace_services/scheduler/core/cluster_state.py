"""What a cycle knows about the cluster beyond its own study.

If it is empty, the study is alone, and the first trial that fits gets the slots. `cluster_view` fills it before
placing. The slow parts (`devices`, `running`) are filled only when a trial fits nowhere and slots may have to be
reserved for it.

Of many other studies it holds only the first that wait for slots, until `sharing` asks for the next ones.
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
    """Whether there were more free slots, which cycles of other studies were considering at that moment."""
    crowded: bool = False
    """Whether there are other active studies on workers."""
    others: dict[int, Share] = field(default_factory=dict)
    """The other studies that are known, by id."""
    known_to: Claim | None = None
    """All waiting studies up to this claim are known; None if all are that could use any slot."""
    least_s: float | None = None
    """The lowest virtual time among the other studies, if this study returns from being idle."""
    totals: Totals = field(default_factory=lambda: Totals(gpu_milli=0, cpu_slots=0))
    devices: tuple[Slot, ...] | None = None
    """Every device that could serve the study, occupied or not; None until it was read."""
    running: tuple[Running, ...] = ()
    withheld: list[Placement] = field(default_factory=list)
    """Slots that this cycle leaves to other studies."""
    kicks: set[int] = field(default_factory=set)
    """The studies that are to check what was left to them."""
    blocked: Waiting | None = None
    """The first runnable trial that got no slots."""
    quota: Quota | None = None
    """The quota of the study's project, if it has one."""
    held_off: int = 0
    """The thousandths of slots that the first runnable trial held off by the quota needs; 0 if there is none."""
    has_own: bool | None = None
    """Whether any worker could serve the study with slots that are not ephemeral; None until it was checked."""
    left_ephemeral: set[tuple[int, int]] = field(default_factory=set)
    """Ephemeral slots that this cycle leaves to other studies."""
    wanted_ephemeral_bytes: int | None = None
    """The least memory that an ephemeral slot must have for a trial that waits and may use one."""
    moving: int = 0
    """How many trials may leave ephemeral slots in this cycle, for ordinary slots or seats."""
    idle: tuple[Slot, ...] = ()
    """The slots that members of the study's bundles may spread to: free ones that no trial waits for."""
    spread: int = 0
    """How many members may leave their bundles for these slots in this cycle."""
    has_idle: bool = False
    """Whether enough slots for a further trial of the study are idle: nothing waits for them."""
    nothing_waits: bool = False
    """Whether there are spare slots: free ones that no trial waits for."""

    def meet(self, shares: Iterable[Share]) -> None:
        """Add other studies. Those that are known already keep what this cycle left to them."""
        for share in shares:
            self.others.setdefault(share.study_id, share)

    def extend(self, line: Line) -> None:
        """Add the next studies that wait."""
        self.meet(line.shares)
        self.known_to = line.known_to

    def ahead_of(self, own: Claim, now_s: float) -> list[tuple[Claim, Share]]:
        """The studies that need slots and certainly go before a claim, with their own claims, in order."""
        ordered = in_order(self.others.values(), self.totals, now_s)
        return [(place, other) for place, other in ordered if self.is_ahead(other, place, own)]

    def is_ahead(self, other: Share, place: Claim, own: Claim) -> bool:
        """Whether a study needs slots and certainly goes before the claim `own`. `place` is its own claim."""
        return other.wanted > 0 and place < own and (self.known_to is None or place <= self.known_to)

    def others_may_go_before(self, own: Claim) -> bool:
        """Whether unknown studies may go before a claim."""
        return self.known_to is not None and self.known_to < own

    @property
    def others_wait(self) -> bool:
        """Whether another study waits for slots."""
        return any(share.wants is not None for share in self.others.values())

    def reservations(self, now_s: float) -> list[Reservation]:
        """The reservations of other studies."""
        kept = (share.reservation(now_s) for share in self.others.values())
        return [reservation for reservation in kept if reservation is not None]
