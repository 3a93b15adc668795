"""What a step changed, collected in order and written by the transaction in one go."""

from dataclasses import dataclass, field, fields

from headrace_services.scheduler.records import Event, Exploit, Lease, Report, RungEntry, Slot, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialChange:
    """One move or update of a trial: the copy before it guards the copy after it."""

    before: Trial
    after: Trial
    cursor: int
    """The event that was current when the trial changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RungChange:
    """A new entry at a rung, with the event that recorded it."""

    entry: RungEntry
    cursor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionChange:
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
    events: list[Event] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return any(getattr(self, part.name) for part in fields(self))

    def occupy(self, slots: tuple[Slot, ...], lease: Lease) -> None:
        """Note that `lease` holds `slots` from now on."""
        for slot in slots:
            self.occupied[slot.worker_id, slot.index] = lease.id

    def vacate(self, lease: Lease) -> None:
        """Note that `lease` holds its slots no longer."""
        if lease.worker_id is None:
            return
        for index in lease.slots:
            key = (lease.worker_id, index)
            if self.occupied.get(key) == lease.id:
                del self.occupied[key]
            self.vacated[key] = lease.id
