"""What the SDK returns: studies, trials, reports and workers as plain frozen values.

Nothing here knows protos or gRPC; only `headrace.client.convert` and the modules next to it build these values.
Names are bare (`digits`, trial 3, worker `node-1`), not resource names. Times are timezone-aware. A value that
does not exist is None, never a sentinel number. Parameters are in the order of the study's search space if the
study is known, otherwise by name.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from headrace.errors import SeveralObjectivesError
from headrace.spec import StudySpec, Value

__all__ = [
    "BundleSize",
    "BundleTurn",
    "Checkpoint",
    "Importance",
    "Lease",
    "Listing",
    "ParameterImportance",
    "Preview",
    "PreviewCompanion",
    "PreviewRung",
    "PreviewSize",
    "Report",
    "Retried",
    "RungResult",
    "RungStatus",
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
    """A list, and the entries that are left out of it."""

    def __init__(self) -> None:
        super().__init__()
        self.unshown: list[Unshown] = []


class StudyState(StrEnum):
    """The state of a study."""

    UNKNOWN = "unknown"
    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """True for the states of a study that has ended."""
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
    """Why a trial has ended."""

    COMPLETED = "completed"
    STOPPED_EARLY = "stopped_early"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True)
class TrialRef:
    """A trial named from outside its study; prints as `digits/3`."""

    study: str
    number: int

    def __str__(self) -> str:
        return f"{self.study}/{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to run a trial in the caller's own loop. A later attempt at the trial invalidates it."""

    lease_id: str
    trial: TrialRef
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RungCost:
    """What was measured before a rung, in seconds and bytes; None if nothing was."""

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
    """Only if the policy prices pauses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The place of a durable checkpoint."""

    uri: str
    step: int
    size_bytes: int
    manifest_sha256: str
    write_time_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploit:
    """What a trial copied (population-based training): the state of `donor` at `step`, and `params` to continue
    with.
    """

    rung: int
    step: int
    donor: int
    donor_value: float | None
    params: Mapping[str, Value]
    previous_params: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierEnd:
    """A trial's result when it had ended, before `extend` or `retry` allowed it to continue."""

    reason: TerminationReason | None
    step: int
    budget: int | None
    """The full budget that it completed; None if it ended in another way."""
    score: float | None
    score_step: int
    metrics: Mapping[str, float]
    """The objectives and constraints in the report that counted then."""
    checkpoint: Checkpoint | None
    """The checkpoint to load, which is kept: that of the best value if the study keeps it, or else the last one."""
    ended: datetime | None
    code_changed: tuple[str, ...] = ()
    """The trial's field at that time: whether this result is from different code than the study started with."""


class PastEnd(StrEnum):
    """What a learning-rate schedule does if it is stepped past its end."""

    UNKNOWN = "unknown"
    RAISES = "raises"
    RISES = "rises"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A learning-rate schedule with an end that a trial tracks: its tracked name, its class, and the last step
    of the trial that it covers.
    """

    name: str
    kind: str
    last_step: int
    past_end: PastEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingSchedule:
    """A schedule with an end that several trials of a study track."""

    schedule: Schedule
    trials: int
    first_trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCode:
    """Steps of a trial that were trained by different code than its study started with, and the source files
    that differ.
    """

    trial: int
    first_step: int
    last_step: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialInfo:
    """One configuration and everything known about it, as of one moment.

    `score` is the value that counts, by the objective's `scope`, from the report at `score_step`. `params`
    produced it. A member of a population continues with others once it copies: `last_params`.
    """

    study: str
    number: int
    state: TrialState
    params: Mapping[str, Value]
    """The parameters at `score_step`."""
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
    """Every metric of the last report, whether or not that report counts: see `counted_metrics`."""
    log_path: str | None
    log_tail: str
    lineage: tuple[Exploit, ...] = ()
    objective_values: Mapping[str, float] = field(default_factory=dict)
    """Every objective in the report that counts, by metric; empty if there is only one objective. That is the
    last report, or the last one before an earlier end that counts (`counted_end`); a trial that ended as infeasible
    has none.
    """
    feasible: bool | None = None
    """Whether the report that counts, or else the last one, meets every constraint; None without constraints, before
    the first report, and if the trial ended as infeasible.
    """
    generation: int | None = None
    """The generation for which an evolutionary sampler proposed it."""
    source: int | None = None
    """The trial whose configuration it has, in the study that a `best_of` sampler names."""
    slot_milli: int = 0
    """Thousandths of each slot that it holds; 0 if it is not on a worker."""
    waits_for: str = ""
    """What it waits for, if it could run and does not. Empty in a trial that an operation on it returns."""
    last_worker: str | None = None
    """The worker that runs it, or last ran it; None in the caller's own loop."""
    unshown: str = ""
    """What the scheduler left out because the trial is too large; empty if nothing."""
    bundle: str = ""
    """The bundle that it runs in, by the id of its grant; empty if it has its own process."""
    bundle_members: int = 0
    """How many trials the bundle has now, including this one."""
    bundle_seats: int = 0
    """The most trials that the bundle may have."""
    bubbles: tuple[str, ...] = ()
    """The stages of large jobs in whose bubbles it ran or runs, in order, such as `job gpt, stage 2`."""
    score: float | None = None
    """The value that counts; None if none does."""
    score_step: int | None = None
    tags: tuple[str, ...] = ()
    """What users have noted on it (`annotate`), in alphabetical order. Empty, like `note`, in a trial that another
    operation on it returns.
    """
    note: str = ""
    best_metrics: Mapping[str, float] = field(default_factory=dict)
    """Every metric of the report with the best value, if that report counts: with `scope: best` and one
    objective. Otherwise empty. See `counted_metrics`.
    """
    best_checkpoint: Checkpoint | None = None
    """If the study says `keep: best`: the checkpoint of the best value, from a step before `best_step` if
    nothing was saved at that one.
    """
    earlier_ends: tuple[EarlierEnd, ...] = ()
    """Its results at earlier ends, before `extend` or `retry` allowed it to continue; oldest first."""
    counted_end: EarlierEnd | None = None
    """The earlier end that counts in place of the trial's later result, because that is worse, or because the
    trial failed or diverged. `score`, `score_step`, `objective_values` and `feasible` are from it. None if no
    earlier end counts.
    """
    schedules: tuple[Schedule, ...] = ()
    """The learning-rate schedules with an end that it has reported."""
    code: str = ""
    """The digest of the source files that its last attempt imported from the study's folder; empty if unknown."""
    code_changed: tuple[str, ...] = ()
    """The source files in which it ran different code than the study started with, in any attempt, or copied the
    state of a trial that did. A question mark follows a file that was changed while the program was starting: it
    is not known which version ran. Empty if there are none.
    """
    other_code: tuple[OtherCode, ...] = ()
    """The steps that such code trained: its own, and those of trials whose state it copied."""
    result_of_other_code: bool = False
    """Whether the result that counts was reported after it had `code_changed`."""

    @property
    def kept_checkpoint(self) -> Checkpoint | None:
        """The checkpoint from which to load the trial's model: that of the earlier end that counts, or else that
        of the best value if the study keeps it, or else the last one.
        """
        if self.counted_end is not None:
            return self.counted_end.checkpoint
        return self.best_checkpoint or self.checkpoint

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """All checkpoints that it refers to: its last one, that of its best value, and those of its earlier
        ends.
        """
        known = (self.checkpoint, self.best_checkpoint, *(end.checkpoint for end in self.earlier_ends))
        return tuple(dict.fromkeys(one for one in known if one is not None))

    @property
    def counted_metrics(self) -> Mapping[str, float]:
        """The metrics of the report that counts: with `scope: best` the best one, otherwise the last one; for an
        earlier end that counts, those of its report. Empty if the trial ended as infeasible. With `mean_last_k`, the
        value that counts is `score`.
        """
        if self.counts_as is TerminationReason.INFEASIBLE:
            return {}
        return (self.best_metrics or self.metrics) if self.counted_end is None else self.counted_end.metrics

    @property
    def counts_as(self) -> TerminationReason | None:
        """How it ended with the result that counts; None if that result is from a trial that has not ended."""
        return self.reason if self.counted_end is None else self.counted_end.reason

    def __repr__(self) -> str:
        said = f"step {self.step}, value {self.value}, score {self.score}, params {dict(self.params)}"
        return f"<TrialInfo {self.study}/{self.number}: {self.outcome}, {said}>"

    @property
    def last_params(self) -> Mapping[str, Value]:
        """The parameters that it trains with now, or did at its end: `params`, unless it has copied another
        trial since `score_step`.
        """
        return self.lineage[-1].params if self.lineage else self.params

    @property
    def changed_params(self) -> Mapping[str, Value]:
        """Those of `last_params` that differ from `params`; empty except for members of a population."""
        return {name: value for name, value in self.last_params.items() if self.params.get(name) != value}

    @property
    def failed(self) -> bool:
        """Whether its own code failed. If so, its values are not reliable, unless an earlier end counts."""
        return self.reason is TerminationReason.FAILED

    @property
    def diverged(self) -> bool:
        """Whether its last value is not finite. If so, its best value is not a sign of a good configuration,
        unless an earlier end counts.
        """
        return self.value is not None and not math.isfinite(self.value)

    @property
    def flaw(self) -> str:
        """Why its counted result is not reliable: `failed`, `infeasible`, `diverged`, or empty."""
        if self.counted_end is not None:
            return ""
        if self.reason is TerminationReason.INFEASIBLE:
            return "infeasible"
        return "failed" if self.failed else "diverged" if self.diverged else ""

    @property
    def sound(self) -> bool:
        """Whether its counted result is reliable: it neither failed nor diverged and is not infeasible, or an
        earlier end counts. A failed or diverged trial is the best only if no sound trial has a value; an
        infeasible one never is.
        """
        return not self.flaw

    @property
    def outcome(self) -> str:
        """The state in one word or, for a trial that has ended, the reason: `running`, `stopped_early`."""
        return self.reason.value if self.reason is not None else self.state.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A trial for the caller's own loop, from `trial.step` on, up to `next_milestone` without asking."""

    trial: TrialInfo
    lease: Lease
    next_milestone: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCounts:
    """How many trials are in each state and, for terminated trials, how many have each reason."""

    pending: int
    running: int
    paused: int
    resumed: int
    terminated: int
    completed: int
    stopped_early: int
    failed: int
    cancelled: int
    infeasible: int = 0

    @property
    def total(self) -> int:
        """The number of all trials, including the baseline."""
        return self.pending + self.running + self.paused + self.resumed + self.terminated


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFailure:
    """A trial that failed: the error, and the worker that last ran it (None in the caller's own loop)."""

    trial: int
    detail: str
    worker: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RungStatus:
    """How full a rung is, over all brackets."""

    rung: int
    milestone: int
    recorded: int
    promoted: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleTurn:
    """The measurements of bundles with a certain number of members."""

    members: int
    turn_s: float
    """The shortest time of a turn, which is one step of each member."""
    memory_bytes: int
    """The most memory that a process held; 0 if unknown."""
    fresh: bool
    """Whether trials joined or left right before each of these turns, which makes them longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleSize:
    """How many trials of a study share a process on a kind of device, and why."""

    device: str
    apart: str
    """The values of `fuse.apart` that these trials have, as JSON; empty if it names none."""
    trials: int
    reason: str
    member_bytes: int
    """How much of the device's memory each additional trial takes; 0 if unknown."""
    turns: tuple[BundleTurn, ...] = ()
    """The measurements, fewest members first."""
    first_step_s: float = 0.0
    """The time of the step in which a process measures how to train its trials together; 0 if unknown."""
    later_step_s: float = 0.0
    """The time of a later step."""
    first_step_trials: int = 0
    """How many trials took these steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleTried:
    """How well small copies of a model rank the pilot's configurations."""

    scale: int
    """How many times narrower than the model the copies are."""
    kendall: float
    """Kendall's τ-b between their ranking and the model's."""
    regret: float | None
    """How much worse, on the model, the best of the copies' top five is than the best of all; None if those
    failed.
    """
    agrees: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleChoice:
    """The scale of a study's copies, as chosen by its pilot."""

    scale: int
    study: str
    """The pilot's study."""
    least_kendall: float
    most_regret: float
    tried: tuple[ScaleTried, ...]
    """The scales that were tried, smallest copies first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UntilProgress:
    """How close a study is to the conditions that end it before its trials have ended."""

    tried: int
    """How many trials were tried since the best value last improved."""
    deadline: datetime | None
    """When its hours are over if trials run without a break until then. None if no limit is set, and while no
    trial runs, as time then does not count.
    """
    time_left_s: float | None = None
    """How much of its hours is left, in seconds, as of a few seconds ago; None if no limit is set."""
    ends_study: bool = False
    """Whether one of its conditions is true, so that the study ends or has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """What users have noted on a study or a trial."""

    tags: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyInfo:
    """A study as of one moment: its spec, its state and the figures of a live view."""

    name: str
    spec: StudySpec
    state: StudyState
    detail: str
    counts: TrialCounts
    leader: TrialInfo | None
    """The best trial by the first objective; the same as `best` if there is no other objective."""
    baseline: TrialInfo | None
    rungs: tuple[RungStatus, ...]
    steps_spent: int
    steps_run_all: int
    cursor: int
    created: datetime | None
    ended: datetime | None
    front: tuple[TrialInfo, ...] = ()
    """With several objectives, the Pareto front: the feasible trials that no other trial beats in every
    objective. Empty in `client.studies()`, which does not compute fronts; `client.study(NAME).status()` does.
    """
    failures: tuple[TrialFailure, ...] = ()
    """The first trials that failed, at most 20; `counts.failed` counts all. Empty in lists of studies."""
    waits_for: str = ""
    """The slots that an active study without a running trial waits for, such as `4 GPUs`; empty for any other
    study.
    """
    warm_results: int | None = None
    """With a warm start: how many results of the earlier study the sampler started with. None until it has
    proposed a trial, and in lists of studies.
    """
    bundle_sizes: tuple[BundleSize, ...] = ()
    """With `fuse`: how many trials share a process, if that was measured. Empty in lists of studies."""
    uid: str = ""
    """Distinguishes it from an earlier study of the same name."""
    project: str = ""
    """The project, within which the study's name is unique."""
    unshown: str = ""
    """What the scheduler left out, and why, such as a front that takes too long; empty if nothing."""
    scale_choice: ScaleChoice | None = None
    """With `surrogate: {scale: auto}`: how small its copies are, and why. None until its pilot has found out."""
    until: UntilProgress | None = None
    """With `until`: how close it is to its end. None for any other study."""
    schedules: tuple[EndingSchedule, ...] = ()
    """The learning-rate schedules with an end, of trials that may continue after `extend(steps=...)`. Empty in
    lists of studies.
    """
    code_changed: tuple[str, ...] = ()
    """The source files of which trials ran, or may have run, more than one version: `trial.code_changed` marks
    these trials.
    """
    started: datetime | None = None
    """When its first trial started; None before that."""
    over_s: float = 0.0
    """The total time, in seconds, during which it had ended before `extend` or `retry` continued it."""
    tags: tuple[str, ...] = ()
    """What users have noted on it (`annotate`), in alphabetical order."""
    note: str = ""

    @property
    def best(self) -> TrialInfo | None:
        """The best trial; None before the first finite value. Raises SeveralObjectivesError if there is a Pareto
        front instead.
        """
        if self.spec.further_objectives:
            raise SeveralObjectivesError.of(self.name, [one.metric for one in self.spec.objectives])
        return self.leader

    def __repr__(self) -> str:
        said = f"{self.counts.total} trials, {self.counts.failed} failed"
        if self.spec.further_objectives and self.front:  # lists of studies have none
            said += f", Pareto front of {len(self.front)} trial{'s' * (len(self.front) != 1)}"
        elif not self.spec.further_objectives and self.best is not None:
            said += f", best trial {self.best.number} with {self.best.score}"
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
    checkpoint: Checkpoint | None = None
    """The checkpoint that was saved with it, which may have been deleted since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterImportance:
    """One parameter's share of an importance."""

    parameter: str
    share: float
    """From 0 to 1; the shares of all parameters add up to 1."""
    trials: int
    """How many of the trials have the parameter: all, unless it is conditional."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """How much each parameter matters for being among the best trials by one objective."""

    metric: str
    step: int
    """Trials are compared by their values at this step: the highest rung that enough trials reached. 0 if none
    are compared.
    """
    trials: int
    """How many trials are compared. Those that stopped earlier are not."""
    parameters: tuple[ParameterImportance, ...]
    """The shares, most important first. Empty if the importance is unknown."""
    reason: str
    """Why the importance is unknown; empty if it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewRung:
    """What is expected at one rung."""

    bracket: int
    rung: int
    milestone: int
    trials: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewSize:
    """How many trials take this size, including the baseline."""

    gpus: int
    gpu_milli: int
    """Thousandths of one GPU, instead of whole ones."""
    cpus: int
    """CPU slots, or cores in addition to GPUs."""
    trials: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewCompanion:
    """What a study that is created with the previewed one would do."""

    role: str
    """`pilot`: it finds the scale, and runs before the study. `target`: it trains the best configurations, and
    runs after the study.
    """
    trials: int
    steps: int
    wall_time_s: float | None
    slot_time_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """The trials that `retry` continued."""

    trials: tuple[int, ...]
    """The numbers of the trials that are retried."""
    others: int
    """How many others continue because they were running or waiting when the study ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a spec would do. The times are None if the seconds per step are unknown."""

    trials: int
    rungs: tuple[PreviewRung, ...]
    steps: int
    steps_run_all: int
    slots: int
    wall_time_s: float | None
    slot_time_s: float | None
    samples: tuple[Mapping[str, Value], ...]
    sizes: tuple[PreviewSize, ...] = ()
    """The sizes of trials, smallest first. Empty if all trials have the same size."""
    bundle_groups: int = 0
    """The number of groups into which `fuse.apart` divides the trials: the trials of a bundle are in the same
    group. 0 without `fuse`.
    """
    companions: tuple[PreviewCompanion, ...] = ()
    """The studies that are created with it, in the order in which they run. `steps` and the times do not include
    them.
    """
    warnings: tuple[str, ...] = ()
    """Warnings before it is created, such as how many trials will repeat a point of a finite space."""

    @property
    def all_steps(self) -> int:
        """The steps of the study and of those created with it."""
        return self.steps + sum(one.steps for one in self.companions)

    @property
    def all_wall_time_s(self) -> float | None:
        """How long all of them take, one after the other."""
        return _sum(self.wall_time_s, *(one.wall_time_s for one in self.companions))

    @property
    def all_slot_time_s(self) -> float | None:
        """The slot time of all of them."""
        return _sum(self.slot_time_s, *(one.slot_time_s for one in self.companions))

    @property
    def baseline_steps(self) -> int:
        """The steps of the baseline, which runs to the end apart from the rungs. 0 if the study has no baseline."""
        return self.steps - sum(rung.steps for rung in self.rungs)


def _sum(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
