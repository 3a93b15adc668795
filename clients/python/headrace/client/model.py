"""What the SDK returns: studies, trials, reports and workers as plain frozen values.

Nothing here knows protos or gRPC; `headrace.client.convert` builds these values and is the only place that does.
Names are bare (`digits`, trial 3, worker `node-1`), not resource names. A time is timezone-aware; a value that
does not exist is None, never a sentinel number. Parameters come in the order of the study's search space where
the study is known, else by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from headrace.spec import StudySpec, Value

__all__ = [
    "Checkpoint",
    "Lease",
    "Listing",
    "Preview",
    "PreviewRung",
    "Report",
    "RungResult",
    "RungStatus",
    "Slot",
    "StudyInfo",
    "StudyState",
    "Suggestion",
    "TerminationReason",
    "TrialCounts",
    "TrialFailure",
    "TrialInfo",
    "TrialRef",
    "TrialState",
    "Unshown",
    "Value",
    "Worker",
]


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unshown:
    """Something that a list leaves out because the scheduler cannot show it."""

    name: str
    """Its resource name, as in `studies/digits`."""
    reason: str

    def __str__(self) -> str:
        return f"{self.name} cannot be shown: {self.reason}"


class Listing(list[T]):
    """A list, and what is left out of it."""

    def __init__(self) -> None:
        super().__init__()
        self.unshown: list[Unshown] = []


class StudyState(StrEnum):
    """Where a study is in its life."""

    UNKNOWN = "unknown"
    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """True for a state that nothing leaves."""
        return self in (StudyState.COMPLETED, StudyState.STOPPED, StudyState.FAILED)


class TrialState(StrEnum):
    """The five states of a trial."""

    UNKNOWN = "unknown"
    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    RESUMED = "resumed"
    TERMINATED = "terminated"


class TerminationReason(StrEnum):
    """Why a trial is over."""

    COMPLETED = "completed"
    STOPPED_EARLY = "stopped_early"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class TrialRef:
    """A trial named from outside its study; prints as `digits/3`."""

    study: str
    number: int

    def __str__(self) -> str:
        return f"{self.study}/{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to run a trial in one's own loop. A later attempt at the trial makes it void."""

    lease_id: str
    trial: TrialRef
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RungCost:
    """What was measured on the way to a rung, in seconds and bytes; None where nothing was."""

    step_s: float | None
    checkpoint_bytes: int | None
    write_s: float | None
    read_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RungResult:
    """A trial's entry at a rung; `arrival` counts from 1 and breaks ties."""

    rung: int
    milestone: int
    step: int
    value: float | None
    arrival: int
    promoted: bool
    time: datetime | None
    cost: RungCost | None = None
    """Only where the policy prices pauses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Where a durable checkpoint lies."""

    uri: str
    step: int
    size_bytes: int
    manifest_sha256: str
    write_time_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploit:
    """What a trial copied (population-based training): the state of `donor` at `step`, and `params` to go on with."""

    rung: int
    step: int
    donor: int
    donor_value: float | None
    params: Mapping[str, Value]
    previous_params: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialInfo:
    """One configuration and all that is known of it, as of one moment."""

    study: str
    number: int
    state: TrialState
    params: Mapping[str, Value]
    baseline: bool
    bracket: int
    attempt: int
    step: int
    milestone: int | None
    value: float | None
    best_value: float | None
    best_step: int | None
    rungs: tuple[RungResult, ...]
    reason: TerminationReason | None
    detail: str
    checkpoint: Checkpoint | None
    worker: str | None
    slots: tuple[int, ...]
    failures: int
    interruptions: int
    steps_spent: int
    created: datetime | None
    started: datetime | None
    ended: datetime | None
    metrics: Mapping[str, float]
    log_path: str | None
    log_tail: str
    lineage: tuple[Exploit, ...] = ()
    objective_values: Mapping[str, float] = field(default_factory=dict)
    """Every objective in the last report, by metric; empty where there is one objective only."""
    feasible: bool | None = None
    """Whether the last report meets every constraint; None without constraints, and before the first report."""
    generation: int | None = None
    """The generation that an evolutionary sampler proposed it for."""
    slot_milli: int = 0
    """Thousandths of each slot that it holds; 0 off the workers."""
    waits_for: str = ""
    """While it could run and does not: what it waits for. Empty in what a change of it returns."""
    last_worker: str | None = None
    """The worker that runs it, or ran it last; None in one's own loop."""
    unshown: str = ""
    """What the scheduler left out because the trial is too large; empty where it left out nothing."""

    def __repr__(self) -> str:
        said = f"step {self.step}, value {self.value}, best {self.best_value}, params {dict(self.params)}"
        return f"<TrialInfo {self.study}/{self.number}: {self.outcome}, {said}>"

    @property
    def failed(self) -> bool:
        """Whether its own code ended it: then its values are not to be relied on."""
        return self.reason is TerminationReason.FAILED

    @property
    def outcome(self) -> str:
        """The state in one word, or, for a trial that is over, the reason: `running`, `stopped_early`."""
        return self.reason.value if self.reason is not None else self.state.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A trial to run in one's own loop, from `trial.step` on, up to `next_milestone` without asking."""

    trial: TrialInfo
    lease: Lease
    next_milestone: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCounts:
    """How many trials are in each state and, of the terminated ones, over for each reason."""

    pending: int
    running: int
    paused: int
    resumed: int
    terminated: int
    completed: int
    stopped_early: int
    failed: int
    cancelled: int

    @property
    def total(self) -> int:
        """All trials that exist, the baseline included."""
        return self.pending + self.running + self.paused + self.resumed + self.terminated


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFailure:
    """A trial that failed: the error, and the worker that ran it last (None in one's own loop)."""

    trial: int
    detail: str
    worker: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RungStatus:
    """How full a rung is, summed over brackets."""

    rung: int
    milestone: int
    recorded: int
    promoted: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyInfo:
    """A study as of one moment: its spec, its state and the figures of a live view."""

    name: str
    spec: StudySpec
    state: StudyState
    detail: str
    counts: TrialCounts
    best: TrialInfo | None
    baseline: TrialInfo | None
    rungs: tuple[RungStatus, ...]
    steps_spent: int
    steps_run_all: int
    cursor: int
    created: datetime | None
    ended: datetime | None
    front: tuple[TrialInfo, ...] = ()
    """With several objectives the Pareto front: the feasible trials that no other one beats in every objective."""
    failures: tuple[TrialFailure, ...] = ()
    """The first trials that failed, at most 20; `counts.failed` counts all. Empty in lists of studies."""
    uid: str = ""
    """Tells it from an earlier study of the same name."""
    unshown: str = ""
    """What the scheduler left out, and why, such as a front that takes too long; empty where it left out nothing."""

    def __repr__(self) -> str:
        said = f"{self.counts.total} trials, {self.counts.failed} failed"
        if self.best is not None:
            said += f", best trial {self.best.number} with {self.best.best_value}"
        return f"<StudyInfo {self.name}: {self.state.value}, {said}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A stored report of a trial."""

    trial: int
    attempt: int
    sequence: int
    step: int
    metrics: Mapping[str, float]
    time: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewRung:
    """What is expected at one rung."""

    bracket: int
    rung: int
    milestone: int
    trials: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a spec would do; the times are None where the seconds per step are unknown."""

    trials: int
    rungs: tuple[PreviewRung, ...]
    steps: int
    steps_run_all: int
    slots: int
    wall_time_s: float | None
    slot_time_s: float | None
    samples: tuple[Mapping[str, Value], ...]

    @property
    def baseline_steps(self) -> int:
        """The baseline's steps: it runs to the end beside the rungs. 0 where the study has none."""
        return self.steps - sum(rung.steps for rung in self.rungs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A trial on a slot. `share` is 1.0, or less where several trials share a GPU."""

    trial: TrialRef
    share: float
    memory_bytes: int
    """Its budget; 0 where it has the whole slot."""
    leaving: str
    """Why it is to leave at its next rung or report; empty while it may stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReservation:
    """Slots of a worker that are kept for a trial. `ready` is by measured times; None where unknown."""

    trial: TrialRef
    slots: int
    since: datetime
    ready: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyShare:
    """What an active study has of the cluster now, and what it has used since it began."""

    study: str
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
class Slot:
    """One slot of a worker; `trial` is the one that holds it."""

    index: int
    device: str
    memory_bytes: int
    trial: TrialRef | None
    holders: tuple[Holder, ...] = ()
    """Everyone on the slot; several where they share a GPU."""


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
    set_aside: str = ""
    """How many refused messages it keeps, in which folder, and why the last one was refused; empty for none."""
    reservation: SlotReservation | None = None
    """For which trial slots of it are kept."""
