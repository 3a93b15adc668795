"""The effects of what a worker hears, which its half of the session protocol asks for.

They are values. The session's core decides on them (`session_core`); the daemon carries them out, in order.
"""

from dataclasses import dataclass

from headrace.v1 import event_pb2, worker_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcomed:
    """The session is open."""

    heartbeat_interval_s: float
    lease_ttl_s: float
    scheduler: str
    # What the scheduler knows about the worker's store.
    store: worker_pb2.StoreOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Run the trial."""

    assign: worker_pb2.Assign


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """End the lease's process. `fenced`: whatever it still does counts for nothing."""

    lease_id: str
    reason: str
    fenced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The lease is over, and its process had already been told to end: it keeps its grace, but nothing it still
    does counts."""

    lease_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """The trial must save at its next report, and ask whether it may continue."""

    lease_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """A user drains the worker; an empty reason takes the drain back."""

    reason: str
    grace_s: float | None
    leave: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgive:
    """A user declares these devices healthy again."""

    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decide:
    """Pass the scheduler's decision on to the trial."""

    lease_id: str
    report_sequence: int
    decision: event_pb2.Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """The scheduler has received these messages."""

    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Delete these messages from the outbox."""

    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """The scheduler can never accept this message: keep it, with the reason, where it is not sent again."""

    sequence: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLog:
    """Somebody requests a part of a log."""

    ask: worker_pb2.ReadLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Send nothing more on this stream, read it to its end for at most `grace_s`, and connect elsewhere."""

    grace_s: float


Effect = (
    Welcomed
    | Start
    | Kill
    | Fence
    | Leave
    | Withdrawn
    | Forgive
    | Decide
    | Acked
    | Forget
    | Reject
    | ReadLog
    | Finish
)
