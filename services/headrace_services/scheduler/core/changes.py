"""What a cycle changed, in order. One transaction writes all of it."""

from dataclasses import dataclass, field

from msgspec import Struct

from headrace.spec.resources import WHOLE
from headrace_services.scheduler.core.capacity import Profile
from headrace_services.scheduler.core.records import (
    Event,
    Exploit,
    Grant,
    Lease,
    Report,
    RungEntry,
    Study,
    Trial,
)
from headrace_services.scheduler.core.study_status import Leaving


class TrialChange(Struct, frozen=True, kw_only=True):
    """One transition or update of a trial: the copy before it guards the copy after it."""

    before: Trial
    after: Trial
    cursor: int
    """The event that was current when the trial changed."""


class RungChange(Struct, frozen=True, kw_only=True):
    """A new entry at a rung, with the event that recorded it."""

    entry: RungEntry
    cursor: int


class PromotionChange(Struct, frozen=True, kw_only=True):
    """A rung entry that its trial has been promoted past."""

    number: int
    rung: int
    cursor: int


@dataclass(slots=True)
class Changes:
    """Everything to write, in order."""

    created: list[Trial] = field(default_factory=list)
    trials: list[TrialChange] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    rungs: list[RungChange] = field(default_factory=list)
    promotions: list[PromotionChange] = field(default_factory=list)
    exploits: list[tuple[Exploit, int]] = field(default_factory=list)
    """Each with its event."""
    granted: dict[str, Lease] = field(default_factory=dict)
    updated: dict[str, Lease] = field(default_factory=dict)
    reclaimed: set[str] = field(default_factory=set)
    """Those of the updated leases that had expired before the cycle."""
    grants: dict[str, Grant] = field(default_factory=dict)
    """New grants."""
    ended_grants: list[str] = field(default_factory=list)
    closed_grants: list[str] = field(default_factory=list)
    """Bundles that accept no more trials."""
    profiles: dict[tuple[str, str], Profile] = field(default_factory=dict)
    """What was learned about the study's bundles, by kind of device and key."""
    occupied: dict[tuple[int, int], str] = field(default_factory=dict)
    """The grants that get whole slots."""
    vacated: dict[tuple[int, int], str] = field(default_factory=dict)
    """The grants that give up whole slots."""
    shared: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """By how much the shared thousandths and the memory of a slot change."""
    asks: dict[str, Leaving] = field(default_factory=dict)
    """Grants, of any study, that are to end for the sake of this one."""
    withdraw_asks: bool = False
    """Whether the earlier asks of this study are void."""
    forgotten_asks: list[str] = field(default_factory=list)
    """Grants that have ended, of those that were asked to."""
    events: list[Event] = field(default_factory=list)

    @property
    def has_rows(self) -> bool:
        """Whether any row of the study's trials changed."""
        return bool(
            self.created or self.trials or self.granted or self.updated or self.reports or self.events
        )

    def occupy(self, grant: Grant) -> None:
        """Note that a grant holds its slots from now on."""
        self.grants[grant.id] = grant
        for key in _places(grant):
            if grant.milli < WHOLE:
                self._share(key, grant.milli, grant.memory_bytes)
            else:
                self.occupied[key] = grant.id

    def vacate(self, grant: Grant) -> None:
        """Note that a grant has ended and holds its slots no longer."""
        self.ended_grants.append(grant.id)
        for key in _places(grant):
            if grant.milli < WHOLE:
                self._share(key, -grant.milli, -grant.memory_bytes)
                continue
            if self.occupied.get(key) == grant.id:
                del self.occupied[key]
            self.vacated[key] = grant.id

    def revive(self, grant: Grant) -> None:
        """Note that a grant that has just ended continues on its slots."""
        self.ended_grants.remove(grant.id)
        for key in _places(grant):
            if grant.milli < WHOLE:
                self._share(key, grant.milli, grant.memory_bytes)
            else:
                del self.vacated[key]

    def forget_asks(self, study: Study) -> None:
        """Note which asks between studies are void now."""
        self.forgotten_asks = [grant_id for grant_id in self.ended_grants if grant_id in study.leaving]
        self.withdraw_asks |= study.state.ended and study.standing.reserved is not None

    def _share(self, key: tuple[int, int], milli: int, memory_bytes: int) -> None:
        before = self.shared.get(key, (0, 0))
        self.shared[key] = (before[0] + milli, before[1] + memory_bytes)


def _places(grant: Grant) -> list[tuple[int, int]]:
    return [(part.worker_id, index) for part in grant.parts for index in part.slots]
