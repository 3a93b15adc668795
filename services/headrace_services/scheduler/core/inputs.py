"""The inputs and outputs of a cycle: what can arrive for a study, and what is returned.

Every input may arrive twice, late or never. Messages of workers name a lease and carry the worker's sequence
number. Commands of users carry a request id, which the engine checks before the core sees them.
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
    """A message on behalf of a lease. It counts only while the lease is live in its attempt."""

    lease_id: str
    number: int
    attempt: int
    sequence: int | None
    """The sender's own count; None for ask/tell clients, whose requests carry an id instead."""
    worker_id: int | None = None
    """The worker that sent it; None for a client, and for the scheduler itself."""


class SourceFile(Struct, frozen=True):
    """A source file that an attempt runs."""

    path: str
    """Relative to the study's folder."""
    digest: str
    """The digest of its content."""


class AttemptCode(Struct, frozen=True, kw_only=True):
    """The code that an attempt runs."""

    digest: str
    """The digest of all of its files, or of the archive if the code was shipped."""
    files: tuple[SourceFile, ...] = ()
    """The files not reported before in this attempt. Empty if the code was shipped, as it does not change."""


class ReportArrived(Leased, frozen=True, kw_only=True):
    """A trial reported."""

    step: int
    metrics: dict[str, float]
    checkpoint: Checkpoint | None
    train_time_s: float = 0.0
    warnings: tuple[str, ...] = ()
    """Problems in how the script uses its trial."""
    turn: TurnCost | None = None
    """The cost of its bundle's turn, which one member of the turn reports."""
    schedules: tuple[Schedule, ...] | None = None
    """The trial's schedules that end; None if unchanged since they were last reported."""
    code: AttemptCode | None = None
    """Sent with the attempt's first report, and whenever its code has grown."""
    returned: bool = False
    """Whether the trial's function returned this result, without reporting anything before."""


class RestoredArrived(Leased, frozen=True, kw_only=True):
    """A resumed trial has loaded its checkpoint. With `code`, it only says what code an attempt runs."""

    read_time_s: float = 0.0
    """How long that took; 0 if it was not measured."""
    code: AttemptCode | None = None


class ExitedArrived(Leased, frozen=True, kw_only=True):
    """A trial's program ended. `outcome` is FINISHED, RELEASED, FAILED, LOST, UNPREPARED, UNREACHED, DEFECT, or one of
    those of `core.unreadable_checkpoints`: NO_CHECKPOINT, UNREADABLE_CHECKPOINT, STORE_AWAY.

    UNPREPARED: it never started, because its worker cannot get its code, or cannot install its requirements.
    UNREACHED: it never started, because its worker could not start it, or the two did not connect. DEFECT: the
    scheduler failed on a valid message of the trial, which is not charged for it.
    """

    outcome: str
    error: str = ""
    log_tail: str = ""
    exit_code: int = 0
    """The exit code of its process; negative for a signal. `error` holds what matters of it, except for a program
    that was released."""
    out_of_memory: int = 0
    """The number of members with which its bundle ran out of memory; 0 if it did not."""
    device_words: str = ""
    """The words of an error that its device may have caused as well as the program."""
    checkpoint: Checkpoint | None = None
    """The checkpoint that a program with the outcome FINISHED saved at its end."""
    unsaved: str = ""
    """Why it saved nothing at its end, though it tracks its state; empty if it did save, or tracks nothing."""
    by_itself: bool = False
    """Whether it chose to end within a step, as early stopping does, or is a function in the user's own process
    that returned. Then it is no sign of trouble that it reported nothing more."""
    stored: tuple[str, ...] = ()
    """If its checkpoint could not be loaded, the addresses of the checkpoints stored beside it."""
    advice: str = ""
    """What would make the study's trials cheaper."""
    left_behind: str = ""
    """What it left behind in a process that its study reuses, so that the process ran no other trial."""
    shared_fault: bool = False
    """With RELEASED: its shared GPU failed, and it is not known which trial there caused that."""
    unconnected: bool = False
    """With FINISHED: its program ended with success and never connected to its trial."""


class Renewed(Leased, frozen=True, kw_only=True):
    """The holder of a client's lease is working on its trial, though the lease may have lapsed."""


class LeaseExpired(Leased, frozen=True, kw_only=True):
    """The holder of a lease has been silent for too long."""

    why: str


class PlaceNow(Struct, frozen=True, kw_only=True):
    """Something may have become possible: a worker connected, or an earlier study ended."""


class Proposed(Struct, frozen=True, kw_only=True):
    """The sampler's next configuration was computed."""

    index: int
    """Its place among the configurations to try, including enqueued ones and without the baseline."""
    params: Params
    proposal: Proposal
    failure: ProposalFailure | None = None
    """Set if the sampler failed, and a random draw takes its place."""
    if_idle: bool = False
    """Whether it is only for an idle slot, and is dropped if there is none."""
    beside: Request | None = None
    """What another study needs soon without waiting in line: no slot that suits it counts as idle."""


class ProposalsOver(Struct, frozen=True, kw_only=True):
    """The sampler has no further configuration, though the study asked for more."""

    index: int
    """The place of the configuration that it does not have."""
    why: str


class AfterEnded(Struct, frozen=True, kw_only=True):
    """The study that this one waits for has ended."""

    study: str
    why_not: str = ""
    """Why this one can never start; empty if it starts."""
    scale: ScaleChoice | None = None
    """What this study's pilot has chosen, if it has one."""


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
    """A user lets failed trials continue: the named ones, which may be cancelled ones too, or all that failed."""

    numbers: frozenset[int] | None


class OnTrial(Struct, frozen=True, kw_only=True):
    """A user's command on one trial. A cycle reads that trial, and the answer shows it."""

    number: int


class PauseTrial(OnTrial, frozen=True, kw_only=True):
    """A user pauses a trial."""


class ResumeTrial(OnTrial, frozen=True, kw_only=True):
    """A user resumes a trial."""


class StopTrial(OnTrial, frozen=True, kw_only=True):
    """A user stops a trial."""

    reason: str


class ExtendStudy(Struct, frozen=True, kw_only=True):
    """A user gives the study this many more trials, or a larger full budget."""

    trials: int
    steps: int | None


Reopening = RetryTrials | ExtendStudy
"""What lets trials continue that are over. A cycle applies these inputs first, because they rebuild its fold."""
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
    """The input is committed. For a report, with the decision, even if the report arrived before."""

    decision: Decision | None = None


class Stale(Struct, frozen=True, kw_only=True):
    """The lease is no longer the sender's; nothing was changed."""

    over: bool = False
    """Whether it was the last lease of a trial that is over, so that the sender's request is already fulfilled."""
    why: str = ""
    """The cause, in words; empty if nobody asks for it."""
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
    """The failed trials that are retried; for an extension, the trials that had the previous full budget."""
    others: int
    """How many other trials continue because they were running or waiting when the study ended."""


Outcome = Accepted | Stale | Suggested | Added | Reopened


class ProposalComingError(HeadraceError):
    """There is no trial yet for a client that asks: the sampler is computing the next one."""

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
    """Tell the worker that a trial, of any study, must save at its next report and ask whether it may continue."""

    worker_id: int
    lease: Lease | LeaseName
    reason: str


Order = Assignment | Cancellation | Preemption
