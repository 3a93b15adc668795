"""The entries of a study's event log, in commit order, as plain frozen values.

`Event.detail` is a sealed union: one class per kind. An event of a kind that this version does not know has
`detail=None` and still carries its cursor, time and message, so that an old client follows a new scheduler.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from headrace.client.model import (
    Checkpoint,
    Exploit,
    RungResult,
    StudyInfo,
    TerminationReason,
    TrialInfo,
    TrialRef,
    TrialState,
)
from headrace.spec import Value


class Action(StrEnum):
    """What a trial is to do after a report."""

    UNKNOWN = "unknown"
    CONTINUE = "continue"
    PAUSE = "pause"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer to a report. `next_milestone` is the step up to which the trial may go on without asking."""

    action: Action
    next_milestone: int
    reason: str

    def __repr__(self) -> str:
        to = f" to step {self.next_milestone}" if self.goes_on else ""
        return f"<Decision {self.action.value}{to}: {self.reason}>"

    @property
    def goes_on(self) -> bool:
        """True when the loop is to compute the next step."""
        return self.action is Action.CONTINUE


@dataclass(frozen=True, slots=True, kw_only=True)
class PausePrice:
    """What a pause costs, a write and a read, and what it is worth; in seconds."""

    checkpoint_bytes: int
    write_s: float
    read_s: float
    price_s: float
    rung_s: float
    """Training time to the next rung."""
    rest_s: float
    """Training time to the full budget."""
    promotion_probability: float
    worth_s: float
    pays: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a decision was taken: the rule, the values compared and what became of the slot."""

    rule: str
    bracket: int
    rung: int
    milestone: int
    value: float | None
    rank: int
    results: int
    kept: int
    cutoff_value: float | None
    sentence: str
    slot_goes_to: TrialRef | None
    pause_price: PausePrice | None = None
    """What the pause was priced at, where the policy prices pauses."""
    expected_value: float | None = None
    """Where a curve was extrapolated: its end, one standard deviation, and the probability that it is the best."""
    expected_spread: float | None = None
    probability: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a model-based sampler made a configuration from."""

    sampler: str
    """The kind; `random` where the sampler failed."""
    milestone: int | None
    """The step whose results it saw; None: each trial's first result, or those at all rungs (`multi_fidelity`)."""
    results: int
    warm_results: int
    """Further results, of an earlier study."""
    pending: int
    generation: int | None
    source: int | None = None
    """The trial whose configuration it is, of the study that a `best_of` sampler names."""
    early: str = ""
    """Why it was taken before that study's end; empty where it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCreated:
    """A trial was proposed."""

    params: Mapping[str, Value]
    bracket: int
    baseline: bool
    proposal: Proposal | None = None
    """Only of a sampler that learns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalFailed:
    """The sampler failed at a proposal every time it was tried, and a random draw took its place."""

    proposal: int
    attempts: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialMoved:
    """A trial went from one state to another."""

    from_state: TrialState
    to_state: TrialState
    action: str
    attempt: int
    worker: str | None
    slots: tuple[int, ...]
    reason: TerminationReason | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRecorded:
    """A report was stored."""

    attempt: int
    sequence: int
    step: int
    metrics: Mapping[str, float]
    checkpoint: Checkpoint | None
    code: str = ""
    """The digest of the attempt's code, in its first report and where the code has grown since; else empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsMissing:
    """The study's first report lacks metrics that the study reads. They may follow in a later report."""

    missing: tuple[str, ...]
    reported: tuple[str, ...]
    """What was reported instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialWarned:
    """Something is wrong with a trial, or with how its script uses Headrace, and does not end it."""

    warning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeChanged:
    """An attempt runs other code than the study began with, or may, or was to and was `refused`."""

    attempt: int
    digest: str
    files: tuple[str, ...]
    """The source files that differ; with a question mark those that may differ."""
    first_seen: tuple[str, ...]
    """Those among them with a content that no attempt of the study had before."""
    refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RungRecorded:
    """A trial was recorded at a rung."""

    bracket: int
    result: RungResult


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionMade:
    """The policy decided on a trial."""

    action: Action
    explanation: Explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialExploited:
    """A trial took over the state of another, with a mutated configuration."""

    exploit: Exploit


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlaced:
    """A trial was given slots: why these. `milli` is the thousandths of each slot."""

    rule: str
    worker: str
    slots: tuple[int, ...]
    milli: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPreempted:
    """A trial was told to leave its slots, with its checkpoint, to another study."""

    in_favour_of: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsReserved:
    """A trial that fits nowhere now has slots of a worker kept for it. `ready_in_s` is by measured times, or None."""

    worker: str
    slots: int
    ready_in_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalsEnded:
    """The sampler has proposed all the configurations that there will be."""

    proposals: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyMoved:
    """A study went from one state to another."""

    from_state: str
    to_state: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyExtended:
    """The study was given more configurations, or a larger full budget."""

    trials_before: int
    trials: int
    steps_before: int
    steps: int


EventDetail = (
    TrialCreated
    | TrialMoved
    | ReportRecorded
    | MetricsMissing
    | TrialWarned
    | CodeChanged
    | RungRecorded
    | DecisionMade
    | TrialExploited
    | TrialPlaced
    | TrialPreempted
    | SlotsReserved
    | ProposalsEnded
    | ProposalFailed
    | StudyMoved
    | StudyExtended
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of the log; `trial` is None for events of the whole study."""

    cursor: int
    time: datetime | None
    trial: int | None
    message: str
    detail: EventDetail | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What `watch()` yields: new events, and the study as of the last of them or later."""

    events: tuple[Event, ...]
    study: StudyInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStory:
    """Everything that happened to a trial, in order."""

    trial: TrialInfo
    events: tuple[Event, ...]

    @property
    def decisions(self) -> tuple[Explanation, ...]:
        """The explanations of the decisions alone."""
        return tuple(e.detail.explanation for e in self.events if isinstance(e.detail, DecisionMade))
