"""What the SDK returns: studies, trials, reports and workers as plain frozen values.

Nothing here knows protos or gRPC; `headrace.client.convert` and its neighbours build these values, and nobody else.
Names are bare (`digits`, trial 3, worker `node-1`), not resource names. A time is timezone-aware; a value that
does not exist is None, never a sentinel number. Parameters come in the order of the study's search space where
the study is known, else by name.
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
class EarlierEnd:
    """What a trial had come to when it was over, before `extend` or `retry` let it continue."""

    reason: TerminationReason | None
    step: int
    budget: int | None
    """The full budget that it completed; None where it ended otherwise."""
    score: float | None
    score_step: int
    metrics: Mapping[str, float]
    """Objectives and constraints, in the report that counted then."""
    checkpoint: Checkpoint | None
    """The one to load: that of the best value where the study keeps it, else the last one. It stays."""
    ended: datetime | None
    code_changed: tuple[str, ...] = ()
    """As the trial's, then: whether this result is of other code than the study began with."""


class PastEnd(StrEnum):
    """What a learning-rate schedule does when it is stepped past its end."""

    UNKNOWN = "unknown"
    RAISES = "raises"
    RISES = "rises"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A learning-rate schedule that a trial tracks, and that ends: its name there, its class, and the last step of the
    trial that it covers."""

    name: str
    kind: str
    last_step: int
    past_end: PastEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingSchedule:
    """A schedule that ends, as some trials of a study track it alike."""

    schedule: Schedule
    trials: int
    first_trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCode:
    """Steps of a trial that other code trained than its study began with, and the source files that differ."""

    trial: int
    first_step: int
    last_step: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialInfo:
    """One configuration and all that is known of it, as of one moment.

    `score` is the value that counts, by the objective's `scope`; it is of the report at `score_step`. `params` produced
    it. A member of a population goes on with others once it copies: `last_params`.
    """

    study: str
    number: int
    state: TrialState
    params: Mapping[str, Value]
    """Those of `score_step`."""
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
    """Every metric of the last report, whether that counts or not: see `counted_metrics`."""
    log_path: str | None
    log_tail: str
    lineage: tuple[Exploit, ...] = ()
    objective_values: Mapping[str, float] = field(default_factory=dict)
    """Every objective in the report that counts, by metric; empty where there is one objective only. That is the last
    report, or the last one of an earlier end that counts (`counted_end`)."""
    feasible: bool | None = None
    """Whether the report that counts meets every constraint; None without constraints, and before the first report."""
    generation: int | None = None
    """The generation that an evolutionary sampler proposed it for."""
    source: int | None = None
    """The trial whose configuration it has, of the study that a `best_of` sampler names."""
    slot_milli: int = 0
    """Thousandths of each slot that it holds; 0 off the workers."""
    waits_for: str = ""
    """While it could run and does not: what it waits for. Empty in what a change of it returns."""
    last_worker: str | None = None
    """The worker that runs it, or ran it last; None in one's own loop."""
    unshown: str = ""
    """What the scheduler left out because the trial is too large; empty where it left out nothing."""
    bundle: str = ""
    """The bundle that it runs in, by the id of its grant; empty where it has a process of its own."""
    bundle_members: int = 0
    """How many trials the bundle has now, this one included."""
    bundle_seats: int = 0
    """How many it may have."""
    bubbles: tuple[str, ...] = ()
    """The stages of large jobs in whose bubbles it ran or runs, in order, such as `job gpt, stage 2`."""
    score: float | None = None
    """The value that counts; None where none does."""
    score_step: int | None = None
    best_metrics: Mapping[str, float] = field(default_factory=dict)
    """Every metric of the report with the best value, where that report counts: with `scope: best` and one objective.
    Empty otherwise. See `counted_metrics`."""
    best_checkpoint: Checkpoint | None = None
    """Where the study says `keep: best`: the checkpoint of the best value; of an earlier step than `best_step` where
    nothing was saved at that one."""
    earlier_ends: tuple[EarlierEnd, ...] = ()
    """What it had come to each time that it was over, before `extend` or `retry` let it continue; the first end
    first."""
    counted_end: EarlierEnd | None = None
    """The one of these that counts in place of what the trial has come to since, because that is worse, or it failed or
    diverged: `score`, `score_step`, `objective_values` and `feasible` are of it. None where none of them does."""
    schedules: tuple[Schedule, ...] = ()
    """The learning-rate schedules that it tracks and that end, as far as it has said."""
    code: str = ""
    """The digest of the source files that its last attempt imported from the study's folder; empty where that is not
    known."""
    code_changed: tuple[str, ...] = ()
    """The source files in which it ran other code than the study began with, in any attempt, or took over the state of
    a trial that did. A question mark follows a file that was changed while the program was starting: it is not known
    which version ran. Empty: none."""
    other_code: tuple[OtherCode, ...] = ()
    """The steps that such code trained: its own, and those of trials whose state it took over."""
    result_of_other_code: bool = False
    """Whether the result that counts was reported once it had `code_changed`."""

    @property
    def kept_checkpoint(self) -> Checkpoint | None:
        """The one to load the trial's model from: that of the earlier end that counts, else that of the best value
        where the study keeps it, else the last."""
        if self.counted_end is not None:
            return self.counted_end.checkpoint
        return self.best_checkpoint or self.checkpoint

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """All that it refers to: its last one, that of its best value, and those of its earlier ends."""
        known = (self.checkpoint, self.best_checkpoint, *(end.checkpoint for end in self.earlier_ends))
        return tuple(dict.fromkeys(one for one in known if one is not None))

    @property
    def counted_metrics(self) -> Mapping[str, float]:
        """The metrics of the report that counts: the best one with `scope: best`, else the last one; of an earlier end
        that counts, the objectives and constraints. Where no report counts, those of the last one. With `mean_last_k`
        the value that counts is `score`."""
        return (self.best_metrics or self.metrics) if self.counted_end is None else self.counted_end.metrics

    @property
    def counts_as(self) -> TerminationReason | None:
        """How it ended with the result that counts; None where that is of a trial that is not over."""
        return self.reason if self.counted_end is None else self.counted_end.reason

    def __repr__(self) -> str:
        said = f"step {self.step}, value {self.value}, score {self.score}, params {dict(self.params)}"
        return f"<TrialInfo {self.study}/{self.number}: {self.outcome}, {said}>"

    @property
    def last_params(self) -> Mapping[str, Value]:
        """What it trains with now, or did at its end: `params`, unless it copied another trial since `score_step`."""
        return self.lineage[-1].params if self.lineage else self.params

    @property
    def changed_params(self) -> Mapping[str, Value]:
        """Those of `last_params` that differ from `params`; empty for all but members of a population."""
        return {name: value for name, value in self.last_params.items() if self.params.get(name) != value}

    @property
    def failed(self) -> bool:
        """Whether its own code ended it: then its values are not to be relied on, unless an earlier end counts."""
        return self.reason is TerminationReason.FAILED

    @property
    def diverged(self) -> bool:
        """Whether its last value is not finite: then its best value is no sign of a good configuration, unless an
        earlier end counts."""
        return self.value is not None and not math.isfinite(self.value)

    @property
    def flaw(self) -> str:
        """Why what counts of it is not to be relied on: `failed`, `infeasible`, `diverged`, or empty."""
        if self.counted_end is not None:
            return ""
        if self.reason is TerminationReason.INFEASIBLE:
            return "infeasible"
        return "failed" if self.failed else "diverged" if self.diverged else ""

    @property
    def sound(self) -> bool:
        """Whether what counts of it is to be relied on: it neither failed nor diverged, nor is it
        infeasible, or an earlier end counts. Failed and diverged ones are the best only where no sound trial has a
        value; an infeasible one never is."""
        return not self.flaw

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
    infeasible: int = 0

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
class BundleTurn:
    """What was measured of bundles with one number of members."""

    members: int
    turn_s: float
    """The least time of a turn: one step of each member."""
    memory_bytes: int
    """The most memory that a process held; 0 where that is not known."""
    fresh: bool
    """Whether trials joined or left right before each of these turns, which makes it longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleSize:
    """How many trials of a study share a process on a kind of device, and why."""

    device: str
    apart: str
    """The values of `fuse.apart` that these trials have, as JSON; empty where it names none."""
    trials: int
    reason: str
    member_bytes: int
    """What each further trial takes of the device's memory; 0 where that is not known."""
    turns: tuple[BundleTurn, ...] = ()
    """What was measured, the fewest members first."""
    first_step_s: float = 0.0
    """What the step takes at which a process looks at how to train its trials together; 0 where that is not known."""
    later_step_s: float = 0.0
    """What a later step takes."""
    first_step_trials: int = 0
    """How many trials took these steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleTried:
    """How well small copies of a model rank the pilot's configurations."""

    scale: int
    """How many times narrower than the model they are."""
    kendall: float
    """Kendall's τ-b between their ranking and the model's."""
    regret: float | None
    """How much worse on the model the best of their first five is than the best of all; None where those failed."""
    agrees: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleChoice:
    """How small the copies of a study are, as its pilot found out."""

    scale: int
    study: str
    """The pilot's."""
    least_kendall: float
    most_regret: float
    tried: tuple[ScaleTried, ...]
    """The smallest copies first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UntilProgress:
    """How near a study is to what ends it before its trials have."""

    tried: int
    """How many trials were tried since the best value got better."""
    deadline: datetime | None
    """When its hours are over if trials run without a break until then. None where none are set, and while no trial
    runs: then no time counts."""
    time_left_s: float | None = None
    """How much of its hours is left, in seconds, as of some seconds ago; None where none are set."""
    ends_study: bool = False
    """One of its conditions came true: it ends the study, or has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyInfo:
    """A study as of one moment: its spec, its state and the figures of a live view."""

    name: str
    spec: StudySpec
    state: StudyState
    detail: str
    counts: TrialCounts
    leader: TrialInfo | None
    """The best trial by the first objective: `best`, where there is no other objective."""
    baseline: TrialInfo | None
    rungs: tuple[RungStatus, ...]
    steps_spent: int
    steps_run_all: int
    cursor: int
    created: datetime | None
    ended: datetime | None
    front: tuple[TrialInfo, ...] = ()
    """With several objectives the Pareto front: the feasible trials that no other one beats in every objective. Empty
    in `client.studies()`, which finds no fronts: `client.study(NAME).status()` has it."""
    failures: tuple[TrialFailure, ...] = ()
    """The first trials that failed, at most 20; `counts.failed` counts all. Empty in lists of studies."""
    waits_for: str = ""
    """The slots that an active study without a running trial waits for, such as `4 GPUs`; empty for any other."""
    warm_results: int | None = None
    """With a warm start: how many results of the earlier study the sampler began with. None until it has proposed a
    trial, and in lists of studies."""
    bundle_sizes: tuple[BundleSize, ...] = ()
    """With `fuse`: how many trials share a process, where that was measured. Empty in lists of studies."""
    uid: str = ""
    project: str = ""
    """Its name is its own within the project."""
    """Tells it from an earlier study of the same name."""
    unshown: str = ""
    """What the scheduler left out, and why, such as a front that takes too long; empty where it left out nothing."""
    scale_choice: ScaleChoice | None = None
    """With `surrogate: {scale: auto}`: how small its copies are, and why. None until its pilot has found out."""
    until: UntilProgress | None = None
    """With `until`: how near it is to its end. None of any other study."""
    schedules: tuple[EndingSchedule, ...] = ()
    """The learning-rate schedules that end, of trials that `extend(steps=...)` may let continue. Empty in lists of
    studies."""
    code_changed: tuple[str, ...] = ()
    """The source files of which trials ran more than one version, or may have: `trial.code_changed` marks these
    trials."""
    started: datetime | None = None
    """When its first trial was first started; None before."""
    over_s: float = 0.0
    """For how long it had ended, in all, each time until `extend` or `retry` let it continue, in seconds."""

    @property
    def best(self) -> TrialInfo | None:
        """The best trial; None before the first finite value. Raises SeveralObjectivesError where there is no best one
        but a Pareto front."""
        if self.spec.further_objectives:
            raise SeveralObjectivesError.of(self.name, [one.metric for one in self.spec.objectives])
        return self.leader

    def __repr__(self) -> str:
        said = f"{self.counts.total} trials, {self.counts.failed} failed"
        if self.spec.further_objectives and self.front:  # a list of studies has none
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
    """What was saved with it; it may be deleted since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterImportance:
    """One parameter's part of an importance."""

    parameter: str
    share: float
    """From 0 to 1; the shares of all parameters add up to 1."""
    trials: int
    """How many of the trials have the parameter: all, unless it is conditional."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """How much each parameter has to do with being among the best trials by one objective."""

    metric: str
    step: int
    """Trials are compared by their values at this step: the highest rung that enough trials came to. 0 where none are
    compared."""
    trials: int
    """How many trials are compared. Those that were stopped before are not."""
    parameters: tuple[ParameterImportance, ...]
    """The most important one first. Empty where nothing can be said."""
    reason: str
    """Why nothing can be said; empty where it can."""


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
    """How many trials take so much, the baseline counted."""

    gpus: int
    gpu_milli: int
    """Thousandths of one GPU, in place of whole ones."""
    cpus: int
    """CPU slots, or cores beside GPUs."""
    trials: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewCompanion:
    """What a study would do that is created with the one previewed."""

    role: str
    """`pilot`: it finds the scale, before. `target`: it trains the best configurations, behind."""
    trials: int
    steps: int
    wall_time_s: float | None
    slot_time_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """What `retry` let go on."""

    trials: tuple[int, ...]
    """The numbers of the trials that are tried again."""
    others: int
    """How many others go on because the end of the study had cut them off."""


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
    sizes: tuple[PreviewSize, ...] = ()
    """The smallest first. Empty where all trials take the same."""
    bundle_groups: int = 0
    """Into how many groups `fuse.apart` parts the trials: those of one bundle are of one group. 0 without `fuse`."""
    companions: tuple[PreviewCompanion, ...] = ()
    """The studies that are created with it, in the order in which they run. `steps` and the times are without them."""
    warnings: tuple[str, ...] = ()
    """What to know before it is created, such as how many trials will repeat a point of a finite space."""

    @property
    def all_steps(self) -> int:
        """The steps of the study and of those that are created with it."""
        return self.steps + sum(one.steps for one in self.companions)

    @property
    def all_wall_time_s(self) -> float | None:
        """How long they take, one after the other."""
        return _sum(self.wall_time_s, *(one.wall_time_s for one in self.companions))

    @property
    def all_slot_time_s(self) -> float | None:
        """The slot time of all of them."""
        return _sum(self.slot_time_s, *(one.slot_time_s for one in self.companions))

    @property
    def baseline_steps(self) -> int:
        """The baseline's steps: it runs to the end beside the rungs. 0 where the study has none."""
        return self.steps - sum(rung.steps for rung in self.rungs)


def _sum(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
