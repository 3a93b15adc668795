"""The entries of a study's event log, in commit order, as plain frozen values.

`Event.detail` is a sealed union: one class per kind. An event of a kind that this version does not know has
`detail=None`, but still has its cursor, time and message, so that an old client can follow a new scheduler.
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
    """What a trial has to do after a report."""

    UNKNOWN = "unknown"
    CONTINUE = "continue"
    PAUSE = "pause"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer to a report. `next_milestone` is the step up to which the trial may continue without asking."""

    action: Action
    next_milestone: int
    reason: str

    def __repr__(self) -> str:
        to = f" to step {self.next_milestone}" if self.goes_on else ""
        return f"<Decision {self.action.value}{to}: {self.reason}>"

    @property
    def goes_on(self) -> bool:
        """True if the loop should compute the next step."""
        return self.action is Action.CONTINUE


@dataclass(frozen=True, slots=True, kw_only=True)
class PausePrice:
    """What a pause costs (a write and a read), and what it is worth, in seconds."""

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
    """Why a decision was made: the rule, the compared values, and what happened to the slot."""

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
    """The price of the pause, if the policy prices pauses."""
    expected_value: float | None = None
    """If a curve was extrapolated: its expected end, one standard deviation, and the probability that it is the
    best.
    """
    expected_spread: float | None = None
    probability: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The basis on which a model-based sampler proposed a configuration."""

    sampler: str
    """The kind of sampler; `random` if the sampler failed."""
    milestone: int | None
    """The step whose results it used; None: each trial's first result, or those at all rungs (`multi_fidelity`)."""
    results: int
    warm_results: int
    """Additional results from an earlier study."""
    pending: int
    generation: int | None
    source: int | None = None
    """The trial whose configuration it is, in the study that a `best_of` sampler names."""
    early: str = ""
    """Why it was taken before that study's end; empty if it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCreated:
    """A trial was proposed."""

    params: Mapping[str, Value]
    bracket: int
    baseline: bool
    proposal: Proposal | None = None
    """Only for a sampler that learns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalFailed:
    """The sampler failed at every attempt to propose, and a random draw took its place."""

    proposal: int
    attempts: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialMoved:
    """A trial changed its state."""

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
    """The digest of the attempt's code, in its first report and if the code has grown since; otherwise empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsMissing:
    """The study's first report lacks metrics that the study reads. They may come in a later report."""

    missing: tuple[str, ...]
    reported: tuple[str, ...]
    """What was reported instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialWarned:
    """A problem with a trial, or with how its script uses Headrace, that does not end it."""

    warning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeChanged:
    """An attempt runs, or may run, different code than the study started with, or was `refused` because of that."""

    attempt: int
    digest: str
    files: tuple[str, ...]
    """The source files that differ. Those that may differ have a question mark."""
    first_seen: tuple[str, ...]
    """Those among them whose content no earlier attempt of the study had."""
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
    """A trial copied the state of another, with a mutated configuration."""

    exploit: Exploit


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlaced:
    """A trial was given slots, and why these. `milli` is in thousandths of each slot."""

    rule: str
    worker: str
    slots: tuple[int, ...]
    milli: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPreempted:
    """A trial was asked to leave its slots to another study, with its checkpoint."""

    in_favour_of: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsReserved:
    """Slots of a worker are reserved for a trial that fits nowhere now. `ready_in_s` is estimated from measured
    times, or None.
    """

    worker: str
    slots: int
    ready_in_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalsEnded:
    """The sampler has proposed all its configurations."""

    proposals: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyMoved:
    """A study changed its state."""

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
    """An item of `watch()`: new events, and the study as of the last of them or later. Without events: no further
    one exists up to the study's cursor.
    """

    events: tuple[Event, ...]
    study: StudyInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStory:
    """Everything that happened to a trial, in order."""

    trial: TrialInfo
    events: tuple[Event, ...]

    @property
    def decisions(self) -> tuple[Explanation, ...]:
        """Only the explanations of the decisions."""
        return tuple(e.detail.explanation for e in self.events if isinstance(e.detail, DecisionMade))
