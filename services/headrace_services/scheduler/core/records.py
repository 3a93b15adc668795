"""What the store holds, as values: one frozen record for each row. A cycle copies some fifty of them; msgspec does
that in C."""

from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import Struct, field
from msgspec.structs import replace

from headrace import ephemeral
from headrace.spec import StudySpec
from headrace.spec.names import DEFAULT_PROJECT
from headrace_services.scheduler.core.lifecycle import LEASED, Reason, State, StudyState
from headrace_services.scheduler.core.scales import ScaleChoice
from headrace_services.scheduler.core.study_status import Closing, Leaving, Speeds, Standing

Value = bool | int | float | str
Params = dict[str, Value]


class Study(Struct, frozen=True, kw_only=True):
    """A study. `cursor` numbers its last event; everything below is guarded by the lock on this row."""

    id: int
    uid: str
    name: str
    project: str = DEFAULT_PROJECT
    """The study's name is unique within it."""
    spec: StudySpec
    state: StudyState
    detail: str
    cursor: int
    next_number: int
    """The number that the next trial gets."""
    sampled: int
    """How many configurations the sampler has been asked for."""
    reports: int
    """How many reports were recorded, over all trials."""
    metric_seen: bool
    """Whether any report ever carried the objective's metric."""
    early_failures: int
    """How many trials failed before any trial reported anything."""
    create_time: datetime
    end_time: datetime | None
    standing: Standing = Standing()
    planned: int
    """How many configurations to try, without the baseline and those that users add. Counted when the study is
    created: a grid may have fewer than requested, and the study that `best_of` names fewer results."""
    after: str | None = None
    """The study that must complete before any trial of this one is placed; None if there is none, or it has
    completed."""
    scale_choice: ScaleChoice | None = None
    """How small its copies are, if a pilot was to find out and has."""
    code_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each source file, the digests of the contents that attempts ran, the first one first
    (`core.code_changes`)."""
    now: datetime = datetime.fromtimestamp(0, UTC)
    """The database's clock when the row was read, which is the time of everything that a cycle does."""
    now_s: float = 0.0
    """The same in seconds; only differences are meaningful."""
    leaving: Mapping[str, Leaving] = field(default_factory=dict)
    """Grants that are to end early, by id: because other studies need the slots, or because the study ends."""
    revision: int = 0
    """How often its trials were reopened or its spec changed. What was computed at another revision is void."""
    attempts_from: int = 0
    """Attempts are numbered above this. A restored database raises it: it does not know the attempts issued after
    the copy was made, and must not issue the same numbers again."""
    tags: tuple[str, ...] = ()
    note: str = ""
    """What users have noted on it."""

    @property
    def closing(self) -> Closing | None:
        """What ends it, while its trials still leave; kept once it has ended."""
        return self.standing.closing


class OtherCode(Struct, frozen=True, kw_only=True):
    """Steps of a trial that were trained by other code than its study started with (`core.other_code`)."""

    trial: int
    attempt: int
    first_step: int
    last_step: int
    """Less than the first step while the attempt has reported none."""
    files: tuple[str, ...] = ()
    """The source files that differed."""


class Checkpoint(Struct, frozen=True, kw_only=True):
    """The location of a durable checkpoint."""

    uri: str
    step: int
    size_bytes: int = 0
    manifest_sha256: str = ""
    write_time_s: float = 0.0
    other_code: tuple[OtherCode, ...] = ()
    """The steps behind it that other code trained, of any trial."""


class Unread(Struct, frozen=True, kw_only=True):
    """The attempts of a trial, since it last ran, that could not load its checkpoint
    (`core.unreadable_checkpoints`)."""

    tries: int = 0
    """All of them, including those whose store was unavailable."""
    damaged: int = 0
    """Those that found the checkpoint but could not read it."""
    missing: bool = False
    """Whether one of them did not find it in its store."""
    workers: tuple[str, ...] = ()
    """The workers of these attempts, the last one first."""
    earlier: int = 0
    """How many checkpoints were given up for an earlier one."""


class EarlierEnd(Struct, frozen=True, kw_only=True):
    """The result of a trial that was over, before a user let it continue (`core.earlier_ends`)."""

    reason: Reason
    step: int
    """The step of its last report at that time."""
    budget: int | None = None
    """The full budget that it completed; None if it ended otherwise."""
    score: float | None
    score_step: int
    metrics: dict[str, float]
    """From the report that counted at that time."""
    checkpoint: Checkpoint | None
    """The checkpoint to load: that of the best value if the study keeps it, else the last one. It is never
    deleted."""
    cursor: int
    """The event that ended it."""
    end_time_s: float | None = None
    code_changed: tuple[str, ...] = ()
    """The trial's `code_changed` when the report behind its score arrived."""


class Schedule(Struct, frozen=True, kw_only=True):
    """A learning-rate schedule that a trial tracks, and that ends."""

    name: str
    """The name under which it is tracked."""
    kind: str
    """Its class."""
    last_step: int
    """The last step of the trial that it covers."""
    past_end: str
    """What happens when it is stepped past its end: RAISES, or RISES (the learning rate); empty if unknown."""


class Trial(Struct, frozen=True, kw_only=True):
    """One configuration and its training.

    `milestone` decides what to do with it: it is the step up to which the trial may run, or None while the trial
    has nothing to do (it waits for a promotion, or is over). A trial is runnable iff it is PENDING or PAUSED, has
    a milestone and is not `user_paused`.
    """

    study_id: int
    number: int
    state: State = State.PENDING
    params: Params
    baseline: bool = False
    bracket: int = 0
    generation: int | None = None
    """The generation that an evolutionary sampler proposed it for."""
    source: int | None = None
    """The trial of another study whose configuration it has, if the sampler is `best_of`."""
    attempt: int = 0
    step: int = 0
    milestone: int | None
    user_paused: bool = False
    rungs: int = 0
    """How many rungs it was recorded at: 0 … rungs-1."""
    value: float | None = None
    best_value: float | None = None
    best_step: int = 0
    best_metrics: dict[str, float] = field(default_factory=dict)
    """Every metric of the report with the best value, if that report counts (`scope: best`); else empty."""
    score: float | None = None
    """The value that counts, by the objective's scope (`core.scores`)."""
    recent: tuple[float, ...] = ()
    """The values of its last reports that met the constraints, if their mean counts."""
    recent_steps: tuple[int, ...] = ()
    """Their steps."""
    repeated: tuple[float, ...] = ()
    """The same of an attempt that repeats steps, until it is as far as the trial was."""
    repeated_steps: tuple[int, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    reason: Reason | None = None
    detail: str = ""
    checkpoint: Checkpoint | None = None
    best_checkpoint: Checkpoint | None = None
    """The checkpoint of the best value, if the study keeps it. It is from before `best_step` if nothing was saved
    there."""
    lease_id: str | None = None
    lapsed: bool = False
    """Whether its last lease was a client's and ended only because the client was silent. That client may take it
    up again until the trial moves (`core.stale_leases`)."""
    failures: int = 0
    interruptions: int = 0
    unread: Unread | None = None
    """Why its last attempts could not start, if the reason was its checkpoint."""
    not_before_s: float | None = None
    """The earliest time at which it may be placed, by the database's clock."""
    losses_in_row: int = 0
    """How often it was lost since its last new checkpoint or rung."""
    kills_in_row: int = 0
    """How many of these losses were kills of its own process."""
    shared_faults: int = 0
    """At how many faults of a shared GPU it was there, with no culprit known (`core.shared_faults`)."""
    steps_spent: int = 0
    log_path: str = ""
    log_tail: str = ""
    bubbles: tuple[str, ...] = ()
    """The owners of the ephemeral slots that it ran or runs on, in order, without duplicates (`Slot.owner_stage`)."""
    speeds: Speeds = field(default_factory=dict)
    read_s: float | None = None
    """How long its last restore took."""
    ran_s: float = 0.0
    """How long its earlier attempts ran, if the study limits that (`core.time_limits`)."""
    runs_since_s: float | None = None
    """If the study limits that, when the present attempt started, by the database's clock."""
    budget: int | None = None
    """The full budget of its last attempt. It keeps that one until it has reached it, though the study is extended."""
    earlier_ends: tuple[EarlierEnd, ...] = ()
    """Its result each time that it was over and a user let it continue, in order."""
    counted_end: int | None = None
    """Which of these counts in place of the current result; None if the current one counts."""
    schedules: tuple[Schedule, ...] = ()
    """The learning-rate schedules that it tracks and that end, as last reported."""
    code: str = ""
    """The digest of the code that its last attempt ran, as last reported."""
    code_changed: tuple[str, ...] = ()
    """The source files in which an attempt ran other code than the study started with: its own attempts, or those
    of a trial whose state it copied (`core.other_code`)."""
    other_code: tuple[OtherCode, ...] = ()
    """The steps that such attempts trained: its own, and those that it copied."""
    score_marked: bool = False
    """Whether it was already marked when the report arrived that made its score, ignoring earlier ends."""
    create_time: datetime | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None

    @property
    def runnable(self) -> bool:
        """Whether it should be on a worker but is not."""
        waiting = self.state in (State.PENDING, State.PAUSED)
        return waiting and self.milestone is not None and not self.user_paused

    def rests(self, now_s: float) -> bool:
        """Whether it may not be placed yet."""
        return self.not_before_s is not None and self.not_before_s > now_s

    def rungs_ahead(self, spec: StudySpec) -> tuple[int, ...]:
        """The rungs that it must still report at, in steps. Rungs where it was recorded are excluded, even if it
        restarts from step 0."""
        due = spec.due_rungs(self.bracket)
        return tuple(rung for rung in due if self.milestone is None or rung >= self.milestone)

    @property
    def position(self) -> int:
        """The step after which it trains next: on a worker, the furthest that it has reported; else that of its
        checkpoint."""
        if self.leased:
            return self.step
        return self.checkpoint.step if self.checkpoint else 0

    def next_save(self, spec: StudySpec, step: int) -> int | None:
        """The rung after a step at which it saves: its milestone. While it repeats steps, because its checkpoint is
        gone, it also saves at the rungs where it was recorded before: a further loss then costs one rung again."""
        if self.milestone is None or step >= self.step:
            return self.milestone
        passed = (rung for rung in spec.rungs()[self.bracket :] if step < rung < self.milestone)
        return min(passed, default=self.milestone)

    def saves_nothing_at(self, step: int) -> bool:
        """Whether its program evidently saves nothing, at a report of this step: it passed a rung without. While it
        repeats steps that is not known, as its checkpoint may have been deleted."""
        return self.rungs > 0 and self.checkpoint is None and step >= self.step

    @property
    def trains_on(self) -> bool:
        """Whether it still trains towards its next rung; if not, it is over or waits for a promotion."""
        return self.state is not State.TERMINATED and self.milestone is not None

    @property
    def leased(self) -> bool:
        """Whether it is on a worker."""
        return self.state in LEASED

    def retains_checkpoints(self, spec: StudySpec) -> bool:
        """Whether more than its last checkpoints may have to be kept; each decision names them."""
        return spec.retains_checkpoints or bool(self.earlier_ends)

    @property
    def counted(self) -> EarlierEnd | None:
        """The earlier end that counts; None if the current result counts."""
        return None if self.counted_end is None else self.earlier_ends[self.counted_end]

    @property
    def counts_as(self) -> Reason | None:
        """How the trial ended with the result that counts; None if that result is of a trial that is not over."""
        return self.reason if self.counted is None else self.counted.reason

    @property
    def counted_metrics(self) -> dict[str, float]:
        """The metrics of the report behind the result that counts; if none does, those of the last report."""
        return (self.best_metrics or self.metrics) if self.counted is None else self.counted.metrics


class Over(Struct, frozen=True, kw_only=True):
    """A trial that is over, with what its row alone does not show."""

    trial: Trial
    went_on: bool
    """Whether it continued past the last rung where it was recorded."""
    cut_off: bool
    """Whether the end of its study ended it."""
    end_cursor: int
    """The event that ended it."""


class Proposal(Struct, frozen=True, kw_only=True):
    """What a proposal of a sampler outside the cycle is based on."""

    sampler: str
    """The kind of sampler; `random` if the sampler failed, or has too few results for a model."""
    level: int = 0
    """The step whose results the model used; 0 for each trial's first result."""
    results: int = 0
    warm_results: int = 0
    """Further results, from an earlier study."""
    pending: int = 0
    """Trials without a result that were taken into account."""
    generation: int | None = None
    source: int | None = None
    """The trial of the other study, for `best_of`."""
    early: str = ""
    """Why it was taken before the other study's end; empty if it was not."""


class ProposalFailure(Struct, frozen=True, kw_only=True):
    """A sampler failed at every try of a proposal."""

    number: int
    """The proposal's number, from 0."""
    attempts: int
    error: str


class Part(Struct, frozen=True, kw_only=True):
    """What a grant holds on one worker."""

    worker_id: int
    incarnation: str
    slots: tuple[int, ...]


class Grant(Struct, frozen=True, kw_only=True):
    """Slots on one or more workers, held by one lease or by several that share them."""

    id: str
    study_id: int
    parts: tuple[Part, ...]
    milli: int = 1000
    """Thousandths of each slot."""
    memory_bytes: int = 0
    """The memory budget on each slot; 0 for all of it."""
    model: str = ""
    """The device model and, if known, the interconnect of a gang's slots. Speeds are learned by this key."""
    seats: int = 1
    """How many live leases it may have. If it has more than one seat, its leases run in one process, a bundle."""
    key: str = ""
    """What the trials of a bundle have in common (`Fuse.key`)."""
    closed: bool = False
    """Whether a bundle accepts no more trials, because its process was lost."""
    owner_stage: str = ""
    """The owner of its ephemeral slot (`Slot.owner_stage`); empty for ordinary slots."""
    leases: int = 1
    """How many live leases name it. It ends when the last of them ends."""

    @property
    def size(self) -> int:
        """Its thousandths of slots, summed over all slots."""
        return self.milli * sum(len(part.slots) for part in self.parts)


class Slot(Struct, frozen=True, kw_only=True):
    """One device of a worker."""

    worker_id: int
    index: int
    kind: str
    memory_bytes: int
    labels: dict[str, str]
    worker_name: str
    incarnation: str
    log_dir: str
    placeable: bool = True
    """Whether a trial may be placed there: the device is present and its worker is connected."""
    model: str = ""
    cores: float = 0.0
    """The slot's share of its machine's cores; 0 where unknown."""
    free_milli: int = 1000
    """Its free thousandths."""
    unshared: bool = False
    """Whether trials cannot share the device."""
    links: tuple[int, ...] = ()
    """The interconnect to the slot of each index (`placement.joints.Link`); empty if its worker does not know it."""
    used_memory_bytes: int = 0
    """The sum of the memory budgets of the grants that share it."""
    owner: str = ""
    """The large job that owns an ephemeral slot (`core.ephemeral_slots`); empty for any other slot."""
    stage: int = 0
    """For an ephemeral slot: the stage of that job."""
    duty: float = 1.0
    """For an ephemeral slot: the share of its time that trials may expect."""

    @property
    def is_instance(self) -> bool:
        """Whether it is an instance of a GPU that MIG divides, of which a process sees only one."""
        return " MIG " in self.model

    @property
    def owner_stage(self) -> str:
        """The owner of an ephemeral slot, a stage of a job; empty for any other slot."""
        return ephemeral.owner_stage(self.owner, self.stage) if self.owner else ""

    @property
    def memory_left(self) -> int:
        """The memory that is in no budget."""
        return self.memory_bytes - self.used_memory_bytes

    def part(self, milli: int, memory_bytes: int) -> "Slot":
        """The part of the slot that a lease holds; it has all the memory if the part is the whole slot."""
        used = self.memory_bytes - memory_bytes if milli < 1000 else 0
        return replace(self, free_milli=milli, used_memory_bytes=used)

    def less(self, milli: int, memory_bytes: int) -> "Slot":
        """The rest of the slot after a grant; negative numbers give back."""
        return replace(
            self,
            free_milli=self.free_milli - milli,
            used_memory_bytes=self.used_memory_bytes + memory_bytes,
        )


class Bundle(Struct, frozen=True, kw_only=True):
    """A live grant of several seats, and its slots, each with the part that the grant holds."""

    grant: Grant
    slots: tuple[Slot, ...]


class Lease(Struct, frozen=True, kw_only=True):
    """The right of one worker, or of one ask/tell client, to speak for one trial in one attempt."""

    id: str
    study_id: int
    number: int
    attempt: int
    worker_id: int | None
    incarnation: str
    client_id: str
    ttl_s: float | None
    """How long a client's lease lasts without a report. A worker's lease lasts as long as the worker."""
    grant: Grant | None
    """What the trial runs on; None for a client's lease."""
    live: bool = True
    last_sequence: int = 0
    step: int = 0
    """The step that this attempt has reached; at first the one it resumed from."""
    resume: Checkpoint | None = None
    budget: int | None = None
    """The full budget that the attempt was given; None for the study's first one."""
    ended: str = ""
    """What ended it: an action of the lifecycle, or `lapse`. Empty while it is live."""

    @property
    def begun(self) -> int:
        """The step after which this attempt began."""
        return self.resume.step if self.resume else 0

    @property
    def name(self) -> "LeaseName":
        """The name that its worker knows it by."""
        return LeaseName(id=self.id, study_id=self.study_id, number=self.number, attempt=self.attempt)

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots of its grant on the worker that holds it."""
        parts = self.grant.parts if self.grant else ()
        return next((part.slots for part in parts if part.worker_id == self.worker_id), ())

    @property
    def milli(self) -> int:
        """Thousandths of each slot."""
        return self.grant.milli if self.grant else 1000

    @property
    def memory_bytes(self) -> int:
        """The memory budget on each slot; 0 for all of it."""
        return self.grant.memory_bytes if self.grant else 0

    @property
    def model(self) -> str:
        """The key by which its speed is learned, besides its size."""
        return self.grant.model if self.grant else ""

    @property
    def owner_stage(self) -> str:
        """The owner of its ephemeral slot; empty for ordinary slots."""
        return self.grant.owner_stage if self.grant else ""


class LeaseName(Struct, frozen=True, kw_only=True):
    """The name of a lease, of any study, that its worker knows it by."""

    id: str
    study_id: int
    number: int
    attempt: int


class RungCost(Struct, frozen=True, kw_only=True):
    """What was measured on the way to a rung, in seconds and bytes; None if nothing was."""

    step_s: float | None = None
    """Training time per step."""
    checkpoint_bytes: int | None = None
    write_s: float | None = None
    """How long the checkpoint at this rung took to write."""
    read_s: float | None = None
    """How long the trial's last restore took."""


class RungEntry(Struct, frozen=True, kw_only=True):
    """A trial's entry at a rung."""

    number: int
    bracket: int
    rung: int
    milestone: int
    step: int
    value: float | None
    arrival: int
    promoted: bool = False
    checkpoint: Checkpoint | None = None
    """The checkpoint saved with the report."""
    cost: RungCost | None = None
    """Only if the policy prices pauses."""


class Exploit(Struct, frozen=True, kw_only=True):
    """A trial takes over the state that a donor had at a rung, and gets a configuration to continue with."""

    number: int
    rung: int
    donor: int
    checkpoint: Checkpoint
    donor_value: float | None
    previous_params: Params
    params: Params


class Decision(Struct, frozen=True, kw_only=True):
    """The answer to a report."""

    action: str
    """CONTINUE, PAUSE or STOP."""
    next_milestone: int
    reason: str
    pinned: tuple[str, ...] = ()
    """The trial's older checkpoints (URIs) that must not be deleted; not stored, but computed for each answer."""


class Report(Struct, frozen=True, kw_only=True):
    """A stored report with the decision that answered it."""

    number: int
    attempt: int
    sequence: int
    step: int
    metrics: dict[str, float]
    checkpoint: Checkpoint | None
    train_time_s: float
    decision: Decision


class RungView(Struct, frozen=True, kw_only=True):
    """An entry at a rung, with the time of its recording."""

    entry: RungEntry
    time: datetime


class History(Struct, frozen=True, kw_only=True):
    """The history of a trial."""

    rungs: tuple[RungView, ...] = ()
    """Lowest rung first."""
    lineage: tuple[Exploit, ...] = ()
    """What it copied from others, in order."""
    last_worker: str | None = None
    """The worker of its last lease."""


class BundleView(Struct, frozen=True, kw_only=True):
    """A bundle as users see it."""

    id: str
    """The id of its grant."""
    members: int
    """How many trials it has now."""
    seats: int

    @classmethod
    def of(cls, grant: Grant) -> "BundleView":
        """The bundle on a grant."""
        return cls(id=grant.id, members=grant.leases, seats=grant.seats)


class TrialView(Struct, frozen=True, kw_only=True):
    """A trial as users see it: the row, where it runs, and its history."""

    trial: Trial
    worker: str | None
    """The worker that runs it now; None if no worker does, also in a user's own loop."""
    slots: tuple[int, ...]
    milli: int
    """Thousandths of each slot; 0 if it is on no worker."""
    bundle: BundleView | None = None
    """None if it has a process of its own."""
    last_worker: str | None = None
    """The worker that runs it or ran it last."""
    rungs: tuple[RungView, ...] = ()
    """Lowest rung first; empty if they were not requested."""
    lineage: tuple[Exploit, ...] = ()
    """What it copied from others, in order; empty if the rungs were not requested."""
    tags: tuple[str, ...] = ()
    note: str = ""
    """What users have noted on it; empty in views that a cycle makes."""


class Event(Struct, frozen=True, kw_only=True):
    """An entry of the event log. `detail` is the JSON form of the proto message named by `kind`."""

    number: int | None
    kind: str
    message: str
    detail: dict[str, object]
