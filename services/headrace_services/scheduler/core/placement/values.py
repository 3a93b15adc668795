"""The inputs and outputs of placement: plain values, no clock.

Times are seconds that were measured or predicted from measurements; None means unknown. A device is a `Slot` with
its free part (`free_milli`, `free_memory_bytes`). Capacity is counted in thousandths of a slot, so that sums are
exact.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from headrace.spec import Resources
from headrace.spec.names import DEFAULT_PROJECT
from headrace.spec.resources import WHOLE
from headrace_services.scheduler.core.records import LeaseName, Slot
from headrace_services.scheduler.core.study_status import Standing

Key = tuple[int, int]
"""A trial: its study's id and its number."""
Place = tuple[int, int]
"""A slot: its worker's id and its index."""


class Request(Struct, frozen=True, kw_only=True):
    """What a trial takes: `slots` slots of one worker, all or none, and `milli` thousandths of each."""

    slots: int = 1
    milli: int = WHOLE
    gpu: bool = True
    memory_bytes: int = 0
    """The memory that each GPU must have; for a share of a GPU, the trial's own budget."""
    types: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    cores: int = 0
    """Cores that must come with the GPUs, over all slots."""
    avoided: tuple[str, ...] = ()
    """The incarnations of workers on which nothing of the study may be placed any more."""
    ephemeral_memory_bytes: int | None = None
    """The least memory that an ephemeral slot must have; None if none will do."""

    @classmethod
    def of(cls, resources: Resources, avoided: Iterable[str] = ()) -> "Request":
        """The request of resources of one size, excluding the `avoided` workers."""
        return cls(
            slots=resources.slots,
            milli=resources.milli,
            gpu=resources.on_gpu,
            memory_bytes=resources.gpu_memory_bytes,
            types=resources.gpu_types,
            labels=resources.labels,
            cores=resources.cpus if resources.on_gpu else 0,
            avoided=tuple(avoided),
        )

    @classmethod
    def wanted(cls, resources: Resources, standing: Standing) -> "Request | None":
        """What the next trial of a study waits for, according to its status; None if none waits."""
        if not standing.wants_slots:
            return None
        smallest = cls.of(resources.each[0], standing.avoided)
        return replace(
            smallest,
            slots=standing.wants_slots,
            milli=smallest.milli if standing.wants_milli is None else standing.wants_milli,
            cores=smallest.cores if standing.wants_cores is None else standing.wants_cores,
            ephemeral_memory_bytes=standing.wants_bubbles,
        )

    @property
    def size(self) -> int:
        """Thousandths of slots, over all slots."""
        return self.slots * self.milli

    @property
    def part(self) -> tuple[int, int]:
        """The number of slots, and thousandths of each."""
        return (self.slots, self.milli)

    @property
    def shape(self) -> tuple[int, int, int]:
        """What differs between the requests of one study: slots, thousandths of each, cores."""
        return (self.slots, self.milli, self.cores)

    @property
    def whole_slots(self) -> int:
        """How many slots it has to itself; 0 for a share of one."""
        return self.slots if self.milli == WHOLE else 0

    def grown(self, slots: int, milli: int = WHOLE) -> "Request":
        """The same with this many slots, and this much of each. The cores that come with GPUs grow with them."""
        cores = -(-self.cores * slots * milli // self.size)
        return replace(self, slots=slots, milli=milli, cores=cores)


class Waiting(Struct, frozen=True, kw_only=True):
    """A trial that could run."""

    key: Key
    request: Request
    run_s: Mapping[str, float] = field(default_factory=dict)
    """The time until it leaves its slots again (at its next rung), if that was measured: by device model, and for
    a gang also by interconnect (`joints.kind_of`)."""
    preference: Mapping[str, float] = field(default_factory=dict)
    """By the same keys: the lowest is the best. A missing one was not measured."""
    shunned: tuple[str, ...] = ()
    """The workers to use last: the trial could not start there."""
    priority: int = 0
    group: Key | int = 0
    """What may hold one reservation at a time: its study."""


class Running(Struct, frozen=True, kw_only=True):
    """A trial on its slots, or several that share them."""

    key: Key
    """The trial; if there are several, the first."""
    grant_id: str
    leases: tuple[LeaseName, ...] = ()
    worker_id: int
    slots: tuple[int, ...]
    milli: int = WHOLE
    priority: int = 0
    over_share: float = 0.0
    """How far its study is above its share; if several trials could leave, the one with the greatest goes."""
    leaves_in_s: float | None = None
    """The time until its next rung, where it can be paused for others; with several trials, until the last one's."""
    asked: bool = False
    """Whether it was already asked to leave."""
    project: str = DEFAULT_PROJECT
    """The project of its study."""

    def beside(self, other: "Running") -> "Running":
        """The same with another trial of its grant: all of them have to leave."""
        known = self.leaves_in_s is not None and other.leaves_in_s is not None
        return replace(
            self,
            key=min(self.key, other.key),
            leases=(*self.leases, *other.leases),
            leaves_in_s=max(self.leaves_in_s or 0.0, other.leaves_in_s or 0.0) if known else None,
        )


class Reservation(Struct, frozen=True, kw_only=True):
    """Slots reserved for a trial that fits nowhere yet. Others get them only for work that ends before it starts."""

    key: Key
    worker_id: int
    slots: tuple[int, ...]
    since_s: float
    """Orders reservations: of two that overlap, the older one holds."""
    priority: int = 0
    ready_in_s: float | None = None
    """The time until all its slots are free, by measured times."""
    group: Key | int = 0

    def covers(self, slot: Slot) -> bool:
        """Whether the slot is one of the reserved ones."""
        return slot.worker_id == self.worker_id and slot.index in self.slots


class Placement(Struct, frozen=True, kw_only=True):
    """Slots given to a trial."""

    key: Key
    slots: tuple[Slot, ...]
    milli: int
    memory_bytes: int
    """Its budget on each slot; 0 if it has the whole slot."""
    rule: str
    """`best_fit`, or `backfill` on slots reserved for another trial."""


class Ask(Struct, frozen=True, kw_only=True):
    """Ask the trials of a grant to leave its slots, with their checkpoints, at their next rung or next report."""

    grant_id: str
    at_report: bool
    in_favour_of: Key


class Cluster(Struct, frozen=True, kw_only=True):
    """The cluster: every device with its free part, who runs, and what is reserved for whom."""

    devices: tuple[Slot, ...]
    running: tuple[Running, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    now_s: float = 0.0
    """A time that only orders reservations."""


class Plan(Struct, frozen=True, kw_only=True):
    """What to do now."""

    placements: tuple[Placement, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    """All reservations that hold after this: kept ones and new ones."""
    asks: tuple[Ask, ...] = ()
