"""The cluster's part of what the SDK returns: workers, their slots, and who holds them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from headrace.client.model import TrialRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A trial on a slot. `share` is 1.0, or less where several trials share a GPU."""

    trial: TrialRef
    share: float
    memory_bytes: int
    """Its budget; 0 where it has the whole slot."""
    leaving: str
    """Why it is to leave at its next rung or report; empty while it may stay."""
    bundle: str = ""
    """The bundle that it runs in, by the id of its grant; empty where it has a process of its own."""
    bundle_seats: int = 0
    """How many trials the bundle may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReservation:
    """Slots of a worker that are kept for a trial. `ready` is by measured times; None where unknown."""

    trial: TrialRef
    slots: int
    since: datetime
    ready: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Whether the connected workers could run a study's trials."""

    lacking: tuple[str, ...]
    """Each size of a trial that fits on no connected worker, in words. Empty where all sizes fit."""
    sizes: int
    """How many sizes there are: more than one where resources depend on a parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyShare:
    """What an active study has of the cluster now, and what it has used since it began."""

    study: str | None
    """None where it is another project's."""
    weight: float
    priority: int
    gpus: float
    cpu_slots: float
    gpu_seconds: float
    cpu_seconds: float
    virtual_time_s: float
    """Its use of the whole cluster by weight; the study with the least goes first."""
    waiting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLoad:
    """How busy a slot's device was within a minute, by any process."""

    minute: datetime
    utilization: float
    """The mean, from 0 to 1; CPU slots have their machine's."""
    memory_used_bytes: int
    """The most that was in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One slot of a worker; `trial` is the one that holds it."""

    index: int
    device: str
    memory_bytes: int
    trial: TrialRef | None
    holders: tuple[Holder, ...] = ()
    """Everyone of the caller's project on the slot; several where they share a GPU."""
    elsewhere: float = 0.0
    """What trials of other projects hold of it, from 0 to 1: they are not named."""
    defect: str = ""
    """Why nothing is placed on it: its device failed. Empty while it is sound; `uncordon` takes it back."""
    uuid: str = ""
    """As its driver names the device, such as `GPU-…`."""
    loads: tuple[SlotLoad, ...] = ()
    """How busy its device was, the oldest minute first: the newest one, or the last hour where that was asked for."""

    @property
    def mean_utilization(self) -> float | None:
        """Over its loads; None where it has none."""
        return sum(load.utilization for load in self.loads) / len(self.loads) if self.loads else None

    @property
    def processes(self) -> list[list[Holder]]:
        """Its holders by process: a trial alone, or the members of a bundle by number."""
        found: dict[str, list[Holder]] = {}
        for holder in sorted(self.holders, key=lambda holder: holder.trial.number):
            found.setdefault(holder.bundle or str(holder.trial), []).append(holder)
        return list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """A device on which nothing starts until a user uncordons it."""

    device: int
    """Its slot."""
    uuid: str
    reason: str
    """The driver's words, or the user's."""
    quarantined: bool
    """Whether the device failed; else a user cordoned it."""
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker as the scheduler sees it."""

    name: str
    connected: bool
    slots: tuple[Slot, ...]
    labels: Mapping[str, str]
    last_seen: datetime | None
    version: str
    trouble: str = ""
    """What keeps it from its work now, such as a full disk; empty while nothing does."""
    rejected: str = ""
    """How many refused messages it keeps, in which folder, and why the last one was refused; empty for none."""
    avoided_by: tuple[str, ...] = ()
    """The active studies that place nothing on it until it restarts, since their first attempts failed there."""
    reservation: SlotReservation | None = None
    """For which trial slots of it are kept."""
    certificate_end: datetime | None = None
    """When the certificate ends that it showed last; None where it needs none."""
    draining: str = ""
    """Why it is drained, by a user or because its daemon leaves; empty while it is not. It gets no trials."""
    drained_since: datetime | None = None
    """Since when, where a user drains it."""
    cordoned: str = ""
    """Why nothing new starts on it, as a user said; empty while something may."""
    cordons: tuple[Cordon, ...] = ()
    """Its devices on which nothing starts."""
    suspended: str = ""
    """Why nothing starts on it for a while: attempts in a row did not reach their programs. Empty while they do."""
    next_try: datetime | None = None
    """When it gets trials again; None where it is being tried, or is not suspended."""

    @property
    def trials(self) -> tuple[TrialRef, ...]:
        """The trials on its slots, each once."""
        return tuple(dict.fromkeys(holder.trial for slot in self.slots for holder in slot.holders))
