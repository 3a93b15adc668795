"""What a step changed, collected in order and written by the transaction in one go."""

from dataclasses import dataclass, field

from msgspec import Struct

from headrace.spec.resources import WHOLE
from headrace_services.scheduler.records import Event, Exploit, Lease, Report, RungEntry, Slot, Trial


class TrialChange(Struct, frozen=True, kw_only=True):
    """One move or update of a trial: the copy before it guards the copy after it."""

    before: Trial
    after: Trial
    cursor: int
    """The event that was current when the trial changed."""


class RungChange(Struct, frozen=True, kw_only=True):
    """A new entry at a rung, with the event that recorded it."""

    entry: RungEntry
    cursor: int


class PromotionChange(Struct, frozen=True, kw_only=True):
    """An entry that its trial has gone past."""

    number: int
    rung: int
    cursor: int


@dataclass(slots=True)
class Changes:
    """Everything to write, in the order in which it came about."""

    created: list[Trial] = field(default_factory=list)
    trials: list[TrialChange] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    rungs: list[RungChange] = field(default_factory=list)
    promotions: list[PromotionChange] = field(default_factory=list)
    exploits: list[tuple[Exploit, int]] = field(default_factory=list)
    """Each with the event that tells of it."""
    granted: dict[str, Lease] = field(default_factory=dict)
    updated: dict[str, Lease] = field(default_factory=dict)
    occupied: dict[tuple[int, int], str] = field(default_factory=dict)
    vacated: dict[tuple[int, int], str] = field(default_factory=dict)
    shared: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """By how much the shared thousandths and memory of a slot change."""
    asks: dict[str, bool] = field(default_factory=dict)
    """Leases, of any study, that are to end for this one: at their next rung, or (True) report."""
    withdraw_asks: bool = False
    """Whether what this study asked of others before is void."""
    events: list[Event] = field(default_factory=list)

    @property
    def has_rows(self) -> bool:
        """Whether any row of the study's trials changed."""
        return bool(
            self.created or self.trials or self.granted or self.updated or self.reports or self.events
        )

    def occupy(self, slots: tuple[Slot, ...], lease: Lease) -> None:
        """Note that `lease` holds `slots` from now on."""
        for slot in slots:
            if lease.milli < WHOLE:
                self._share((slot.worker_id, slot.index), lease.milli, lease.memory_bytes)
            else:
                self.occupied[slot.worker_id, slot.index] = lease.id

    def vacate(self, lease: Lease) -> None:
        """Note that `lease` holds its slots no longer."""
        if lease.worker_id is None:
            return
        for index in lease.slots:
            key = (lease.worker_id, index)
            if lease.milli < WHOLE:
                self._share(key, -lease.milli, -lease.memory_bytes)
                continue
            if self.occupied.get(key) == lease.id:
                del self.occupied[key]
            self.vacated[key] = lease.id

    def _share(self, key: tuple[int, int], milli: int, memory_bytes: int) -> None:
        before = self.shared.get(key, (0, 0))
        self.shared[key] = (before[0] + milli, before[1] + memory_bytes)
