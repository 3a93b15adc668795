"""What can arrive for a study, and what comes back: the inputs and outputs of a step.

Everything here may arrive twice, late or never. Messages of workers name a lease and carry the worker's
sequence; commands of users carry a request id, which the transaction checks before the step sees them.
"""

from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace_services.scheduler.records import (
    Checkpoint,
    Decision,
    Lease,
    Params,
    Proposal,
    ProposalFailure,
    Trial,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """Something that speaks for a lease. It counts only while the lease is live in its epoch."""

    lease_id: str
    number: int
    epoch: int
    sequence: int | None
    """The sender's own count; None from ask/tell clients, whose requests carry an id instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportArrived(Leased):
    """A trial reported."""

    step: int
    metrics: dict[str, float]
    checkpoint: Checkpoint | None
    train_time_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredArrived(Leased):
    """A resumed trial has loaded its checkpoint."""

    read_time_s: float = 0.0
    """How long that took; 0 where it was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitedArrived(Leased):
    """A trial's program ended. `outcome` is FINISHED, RELEASED, FAILED or LOST."""

    outcome: str
    error: str = ""
    log_tail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseExpired(Leased):
    """Nothing was heard of the holder for too long."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kick:
    """Something may have become possible: a worker came, a study before this one ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """The sampler's next configuration was computed."""

    index: int
    """Its place among the configurations that are tried, enqueued ones included and the baseline not."""
    params: Params
    proposal: Proposal
    failure: ProposalFailure | None = None
    """Where the sampler failed, and a random draw takes its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggest:
    """An ask/tell client asks for a trial."""

    client_id: str
    ttl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseStudy:
    """A user pauses the study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeStudy:
    """A user resumes the study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopStudy:
    """A user stops the study."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddTrials:
    """A user adds configurations, already validated."""

    params: tuple[Params, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseTrial:
    """A user pauses a trial."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeTrial:
    """A user resumes a trial."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTrial:
    """A user stops a trial."""

    number: int
    reason: str


Command = PauseStudy | ResumeStudy | StopStudy | AddTrials | PauseTrial | ResumeTrial | StopTrial | Suggest
Arrival = ReportArrived | RestoredArrived | ExitedArrived | LeaseExpired | Kick | Proposed | Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The arrival is committed. For a report with what was decided, also when it arrived before."""

    decision: Decision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """The lease is not the sender's any more; nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggested:
    """The answer to Suggest."""

    trial: Trial | None
    lease: Lease | None
    done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """The answer to AddTrials."""

    numbers: tuple[int, ...]


Outcome = Accepted | Stale | Suggested | Added


class ProposalComingError(HeadraceError):
    """There is no trial yet for a client that asks: the sampler is at work on the next one."""

    def __init__(self) -> None:
        super().__init__("the next trial is being proposed", remedy="Ask again in a moment.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Tell the worker to run a trial."""

    worker_id: int
    trial: Trial
    lease: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    """Tell the worker that a lease is over."""

    worker_id: int
    lease: Lease
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacation:
    """Tell the worker that a trial, of any study, is to save at its next report and ask whether it may go on."""

    worker_id: int
    lease: Lease
    reason: str


Order = Assignment | Cancellation | Vacation
