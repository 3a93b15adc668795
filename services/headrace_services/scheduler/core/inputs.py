"""What can arrive for a study, and what comes back: the inputs and outputs of a cycle.

Everything here may arrive twice, late or never. Messages of workers name a lease and carry the worker's sequence;
commands of users carry a request id, which the engine checks before the core sees them.
"""

from msgspec import Struct

from headrace.errors import HeadraceError
from headrace_services.scheduler.core.capacity import TurnCost
from headrace_services.scheduler.core.placement import Request
from headrace_services.scheduler.core.records import (
    Checkpoint,
    Decision,
    Lease,
    LeaseName,
    Params,
    Proposal,
    ProposalFailure,
    Schedule,
    Trial,
)
from headrace_services.scheduler.core.scales import ScaleChoice


class Leased(Struct, frozen=True, kw_only=True):
    """Something that speaks for a lease. It counts only while the lease is live in its attempt."""

    lease_id: str
    number: int
    attempt: int
    sequence: int | None
    """The sender's own count; None from ask/tell clients, whose requests carry an id instead."""
    worker_id: int | None = None
    """The worker that says so; None for a client, and for what the scheduler itself says."""


class SourceFile(Struct, frozen=True):
    """A source file that an attempt runs."""

    path: str
    """From the study's folder on."""
    digest: str
    """Of its content."""


class AttemptCode(Struct, frozen=True, kw_only=True):
    """The code that an attempt runs."""

    digest: str
    """Of all of its files; of the archive where the code was shipped."""
    files: tuple[SourceFile, ...] = ()
    """Those that were not told before in this attempt. None where the code was shipped: it does not change."""


class ReportArrived(Leased, frozen=True, kw_only=True):
    """A trial reported."""

    step: int
    metrics: dict[str, float]
    checkpoint: Checkpoint | None
    train_time_s: float = 0.0
    warnings: tuple[str, ...] = ()
    """What is wrong with how the script uses its trial."""
    turn: TurnCost | None = None
    """What the turn of its bundle cost; one member of the turn says so."""
    schedules: tuple[Schedule, ...] | None = None
    """The schedules of the trial that end; None where they are as it said before."""
    code: AttemptCode | None = None
    """With the attempt's first report, and where its code has grown since."""
    returned: bool = False
    """Whether the trial's function has returned this result, and reported nothing on its way."""


class RestoredArrived(Leased, frozen=True, kw_only=True):
    """A resumed trial has loaded its checkpoint; or, with `code`, an attempt says what it runs, and nothing else."""

    read_time_s: float = 0.0
    """How long that took; 0 where it was not measured."""
    code: AttemptCode | None = None


class ExitedArrived(Leased, frozen=True, kw_only=True):
    """A trial's program ended. `outcome` is FINISHED, RELEASED, FAILED, LOST, UNPREPARED, UNREACHED, DEFECT, or one of
    those of `core.unreadable_checkpoints`: NO_CHECKPOINT, UNREADABLE_CHECKPOINT, STORE_AWAY.

    UNPREPARED: it never began, since its worker cannot have its code, or cannot install what it requires.
    UNREACHED: it never began, since its worker could not start it, or the two did not get through to each other.
    DEFECT: the scheduler failed on a sound message of the trial. Nobody is charged for that.
    """

    outcome: str
    error: str = ""
    log_tail: str = ""
    exit_code: int = 0
    """Of its process; negative for a signal. `error` says what matters of it, but for a program that was let go."""
    out_of_memory: int = 0
    """With how many members its bundle ran out of memory; 0: it did not."""
    device_words: str = ""
    """The words of a failure that may be its device's doing as well as the program's."""
    checkpoint: Checkpoint | None = None
    """What a program that FINISHED saved at its end."""
    unsaved: str = ""
    """Why it saved nothing there, though it tracks its state; empty where it did, or tracks nothing."""
    by_itself: bool = False
    """Whether it chose to end within a step, as early stopping does, or is a function of the user's own process that
    returned: that it reported nothing more is no sign of trouble."""
    stored: tuple[str, ...] = ()
    """Where its checkpoint could not be loaded: the addresses of those that lie beside it."""


class Renewed(Leased, frozen=True, kw_only=True):
    """The holder of a client's lease is at work on its trial, and the lease may have lapsed."""


class LeaseExpired(Leased, frozen=True, kw_only=True):
    """Nothing was heard of the holder for too long."""

    why: str


class PlaceNow(Struct, frozen=True, kw_only=True):
    """Something may have become possible: a worker came, a study before this one ended."""


class Proposed(Struct, frozen=True, kw_only=True):
    """The sampler's next configuration was computed."""

    index: int
    """Its place among the configurations that are tried, enqueued ones included and the baseline not."""
    params: Params
    proposal: Proposal
    failure: ProposalFailure | None = None
    """Where the sampler failed, and a random draw takes its place."""
    if_idle: bool = False
    """Whether it is for a slot that is idle, and is dropped where none is."""
    beside: Request | None = None
    """What another study waits for meanwhile that does not say so: no slot that suits it is idle."""


class ProposalsOver(Struct, frozen=True, kw_only=True):
    """The sampler has no further configuration, though the study asked for more."""

    index: int
    """Of the one that it does not have."""
    why: str


class AfterEnded(Struct, frozen=True, kw_only=True):
    """The study after which this one begins has ended."""

    study: str
    why_not: str = ""
    """Why this one can never begin; empty where it begins."""
    scale: ScaleChoice | None = None
    """What the pilot of this one has chosen, where it has one."""


class Suggest(Struct, frozen=True, kw_only=True):
    """An ask/tell client asks for a trial."""

    client_id: str
    ttl_s: float


class PauseStudy(Struct, frozen=True, kw_only=True):
    """A user pauses the study."""


class ResumeStudy(Struct, frozen=True, kw_only=True):
    """A user resumes the study."""


class StopStudy(Struct, frozen=True, kw_only=True):
    """A user stops the study."""

    reason: str


class AddTrials(Struct, frozen=True, kw_only=True):
    """A user adds configurations, already validated."""

    params: tuple[Params, ...]


class RetryTrials(Struct, frozen=True, kw_only=True):
    """A user lets trials that failed go on: these, which may be cancelled ones too, or all that failed."""

    numbers: frozenset[int] | None


class OnTrial(Struct, frozen=True, kw_only=True):
    """A user asks something of one trial. A cycle reads that trial, and the answer shows it."""

    number: int


class PauseTrial(OnTrial, frozen=True, kw_only=True):
    """A user pauses a trial."""


class ResumeTrial(OnTrial, frozen=True, kw_only=True):
    """A user resumes a trial."""


class StopTrial(OnTrial, frozen=True, kw_only=True):
    """A user stops a trial."""

    reason: str


class ExtendStudy(Struct, frozen=True, kw_only=True):
    """A user gives the study so many trials more, or a larger full budget."""

    trials: int
    steps: int | None


Reopening = RetryTrials | ExtendStudy
"""What lets trials go on that are over. A cycle takes these inputs first: they make its fold anew."""
Command = (
    PauseStudy
    | ResumeStudy
    | StopStudy
    | AddTrials
    | PauseTrial
    | ResumeTrial
    | StopTrial
    | Suggest
    | Reopening
)
Input = (
    ReportArrived
    | RestoredArrived
    | ExitedArrived
    | Renewed
    | LeaseExpired
    | PlaceNow
    | Proposed
    | ProposalsOver
    | AfterEnded
    | Command
)


class Accepted(Struct, frozen=True, kw_only=True):
    """The input is committed. For a report with the decision, also when it arrived before."""

    decision: Decision | None = None


class Stale(Struct, frozen=True, kw_only=True):
    """The lease is not the sender's any more; nothing was changed."""

    over: bool = False
    """Whether it was the last lease of a trial that is over, so that what the sender asks for is so already."""
    why: str = ""
    """The cause, in words; empty where nobody asks for it."""
    remedy: str = ""


class Suggested(Struct, frozen=True, kw_only=True):
    """The answer to Suggest."""

    trial: Trial | None
    lease: Lease | None
    done: bool


class Added(Struct, frozen=True, kw_only=True):
    """The answer to AddTrials."""

    numbers: tuple[int, ...]


class Reopened(Struct, frozen=True, kw_only=True):
    """The answer to a Reopening."""

    numbers: tuple[int, ...]
    """Those that failed and are tried again; of an extension those that had the full budget before."""
    others: int
    """How many others go on because the end of the study had cut them off."""


Outcome = Accepted | Stale | Suggested | Added | Reopened


class ProposalComingError(HeadraceError):
    """There is no trial yet for a client that asks: the sampler is at work on the next one."""

    def __init__(self) -> None:
        super().__init__("the next trial is being proposed", remedy="Ask again in a moment.")


class Assignment(Struct, frozen=True, kw_only=True):
    """Tell the worker to run a trial."""

    worker_id: int
    trial: Trial
    lease: Lease


class Cancellation(Struct, frozen=True, kw_only=True):
    """Tell the worker that a lease is over."""

    worker_id: int
    lease: Lease
    reason: str


class Preemption(Struct, frozen=True, kw_only=True):
    """Tell the worker that a trial, of any study, is to save at its next report and ask whether it may go on."""

    worker_id: int
    lease: Lease | LeaseName
    reason: str


Order = Assignment | Cancellation | Preemption
