"""The SDK's values for the cluster: workers, their slots, and who holds them."""

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
    """Its memory budget; 0 if it has the whole slot."""
    leaving: str
    """Why it must leave at its next rung or report; empty while it may stay."""
    bundle: str = ""
    """The bundle that it runs in, by the id of its grant; empty if it has its own process."""
    bundle_seats: int = 0
    """The most trials that the bundle may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReservation:
    """Slots of a worker that are reserved for a trial. `ready` is estimated from measured times; None if
    unknown.
    """

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
    """The number of sizes: more than one if resources depend on a parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyShare:
    """An active study's share of the cluster now, and what it has used since it started."""

    study: str | None
    """None if the study belongs to another project."""
    weight: float
    priority: int
    gpus: float
    cpu_slots: float
    gpu_seconds: float
    cpu_seconds: float
    virtual_time_s: float
    """Its use of the whole cluster, divided by its weight; the study with the least goes first."""
    waiting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLoad:
    """How busy a slot's device was during one minute, counting all processes."""

    minute: datetime
    utilization: float | None
    """The mean, from 0 to 1; for CPU slots, that of the machine. None where the driver does not know it, as for
    instances of MIG."""
    memory_used_bytes: int
    """The most memory that was in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One slot of a worker; `trial` is the one that holds it."""

    index: int
    device: str
    memory_bytes: int
    trial: TrialRef | None
    holders: tuple[Holder, ...] = ()
    """All trials of the caller's project on the slot; several if they share a GPU."""
    elsewhere: float = 0.0
    """The part held by trials of other projects, from 0 to 1. They are not named."""
    defect: str = ""
    """Why nothing is placed on it: its device failed. Empty if it has not; `uncordon` clears it."""
    uuid: str = ""
    """The driver's name of the device, such as `GPU-…`."""
    loads: tuple[SlotLoad, ...] = ()
    """How busy its device was, oldest minute first: only the latest minute, or the last hour if that was
    requested.
    """

    @property
    def mean_utilization(self) -> float | None:
        """The mean over its loads; None if nothing is known."""
        known = [load.utilization for load in self.loads if load.utilization is not None]
        return sum(known) / len(known) if known else None

    @property
    def processes(self) -> list[list[Holder]]:
        """Its holders by process: a single trial, or the members of a bundle by number."""
        found: dict[str, list[Holder]] = {}
        for holder in sorted(self.holders, key=lambda holder: holder.trial.number):
            found.setdefault(holder.bundle or str(holder.trial), []).append(holder)
        return list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """A device on which nothing starts until a user uncordons it."""

    device: int
    """The index of its slot."""
    uuid: str
    reason: str
    """The reason given by the driver or the user."""
    quarantined: bool
    """Whether the device failed; otherwise a user cordoned it."""
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
    """What keeps it from working now, such as a full disk; empty if nothing does."""
    rejected: str = ""
    """How many rejected messages it keeps, in which folder, and why the last one was rejected; empty for none."""
    reused: str = ""
    """How many trials ran in a process that had run another one, and why other processes ended."""
    mps: str = ""
    """How trials share GPUs there, through MPS or in turns; empty if there is nothing to say."""
    avoided_by: tuple[str, ...] = ()
    """The active studies that place nothing on it until it restarts, because their first attempts failed there."""
    reservation: SlotReservation | None = None
    """The trial for which some of its slots are reserved."""
    certificate_end: datetime | None = None
    """When the certificate that it last presented expires; None if it needs none."""
    draining: str = ""
    """Why it is draining, because of a user or because its daemon exits; empty if it is not. A draining worker
    gets no trials.
    """
    drained_since: datetime | None = None
    """Since when, if a user drained it."""
    cordoned: str = ""
    """Why a user cordoned it, so that nothing new starts there; empty if it is not cordoned."""
    cordons: tuple[Cordon, ...] = ()
    """Its devices on which nothing starts."""
    suspended: str = ""
    """Why nothing starts on it for a while: several attempts in a row did not reach their programs. Empty
    otherwise.
    """
    next_try: datetime | None = None
    """When it gets trials again; None if it is being tried, or is not suspended."""

    @property
    def trials(self) -> tuple[TrialRef, ...]:
        """The trials on its slots, without duplicates."""
        return tuple(dict.fromkeys(holder.trial for slot in self.slots for holder in slot.holders))
