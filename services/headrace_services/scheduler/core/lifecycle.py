"""The lifecycle of a trial: five states and one table of transitions.

Everything that moves a trial goes through `next_state`; the database holds the same table in a trigger
(`store/migrations`; a trial that is launched by the cycle that creates it is inserted RUNNING), the documentation
draws its diagram from it, and the tests iterate over it.
"""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """The state of a trial."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    RESUMED = "RESUMED"
    TERMINATED = "TERMINATED"


class Action(StrEnum):
    """An action that moves a trial."""

    CREATE = "create"
    LAUNCH = "launch"
    PAUSE = "pause"
    VACATE = "vacate"
    INTERRUPT = "interrupt"
    RECLAIM = "reclaim"
    RETRY = "retry"
    RESUME = "resume"
    RESTORED = "restored"
    TERMINATE = "terminate"
    REOPEN = "reopen"


class Reason(StrEnum):
    """Why a trial is over."""

    COMPLETED = "COMPLETED"
    STOPPED_EARLY = "STOPPED_EARLY"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    INFEASIBLE = "INFEASIBLE"


WITHOUT_RESULT = frozenset({Reason.FAILED, Reason.INFEASIBLE})
"""Whether the trial's reports are not to be relied on."""


class StudyState(StrEnum):
    """The state of a study. Only an active study starts trials. The last three are final until a user reopens the
    study."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"

    @property
    def ended(self) -> bool:
        """Whether the study is over."""
        return self in (StudyState.COMPLETED, StudyState.STOPPED, StudyState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One row of the table."""

    source: State | None
    target: State
    action: Action
    needs: str


def _row(source: State | None, target: State, action: Action, needs: str) -> Transition:
    return Transition(source=source, target=target, action=action, needs=needs)


TRANSITIONS: tuple[Transition, ...] = (
    _row(None, State.PENDING, Action.CREATE, "validated parameters"),
    _row(State.PENDING, State.RUNNING, Action.LAUNCH, "a lease of the next attempt on a placed slot"),
    _row(State.RUNNING, State.PAUSED, Action.PAUSE, "a durable checkpoint; the lease is released"),
    _row(State.RUNNING, State.PENDING, Action.VACATE, "no checkpoint to pause on; the lease is released"),
    _row(State.RUNNING, State.PAUSED, Action.INTERRUPT, "a durable checkpoint; the lease is fenced"),
    _row(State.RUNNING, State.PENDING, Action.INTERRUPT, "no checkpoint; the lease is fenced"),
    _row(
        State.PENDING,
        State.RUNNING,
        Action.RECLAIM,
        "a client's lease that lapsed; no one else has taken the trial since",
    ),
    _row(
        State.PAUSED,
        State.RUNNING,
        Action.RECLAIM,
        "a client's lease that lapsed; no one else has taken the trial since",
    ),
    _row(State.RUNNING, State.PAUSED, Action.RETRY, "a durable checkpoint; the failure is charged"),
    _row(State.RUNNING, State.PENDING, Action.RETRY, "no checkpoint; the failure is charged"),
    _row(State.PAUSED, State.RESUMED, Action.RESUME, "a lease of the next attempt and the checkpoint"),
    _row(State.RESUMED, State.RUNNING, Action.RESTORED, "the worker says that the state is loaded"),
    _row(State.RESUMED, State.PAUSED, Action.INTERRUPT, "the lease is fenced"),
    _row(State.RESUMED, State.PENDING, Action.INTERRUPT, "its checkpoint is gone; it starts over"),
    _row(State.RESUMED, State.PAUSED, Action.RETRY, "the failure is charged"),
    _row(State.PENDING, State.TERMINATED, Action.TERMINATE, "a recorded reason"),
    _row(State.RUNNING, State.TERMINATED, Action.TERMINATE, "a recorded reason; the lease is released"),
    _row(State.PAUSED, State.TERMINATED, Action.TERMINATE, "a recorded reason"),
    _row(State.RESUMED, State.TERMINATED, Action.TERMINATE, "a recorded reason; the lease is released"),
    _row(State.TERMINATED, State.PAUSED, Action.REOPEN, "a durable checkpoint; continued by a user"),
    _row(State.TERMINATED, State.PENDING, Action.REOPEN, "no checkpoint; continued by a user"),
)
"""All transitions. `(source, action)` leads to two targets if a checkpoint decides."""

BY_USER = "paused by a user"
WITH_STUDY = "paused with its study"
AT_ITS_END = "its study ends"
"""Why a trial that the policy lets continue does not."""

LEASED = frozenset({State.RUNNING, State.RESUMED})
"""The states in which a trial holds a lease; it holds none in any other."""


class TransitionError(Exception):
    """A transition that is not in the table: a defect of the scheduler, never of its caller."""


def next_state(source: State | None, action: Action, *, checkpoint: bool) -> State:
    """Return the state to which `action` leads from `source`, given whether the trial has a durable checkpoint.

    Raises TransitionError if the table has no such row.
    """
    targets = [row.target for row in TRANSITIONS if row.source is source and row.action is action]
    if len(targets) > 1:
        targets = [State.PAUSED if checkpoint else State.PENDING]
    if not targets:
        raise TransitionError(f"no transition leads from {source} by {action}")
    if targets[0] in (State.PAUSED, State.RESUMED) and not checkpoint:
        raise TransitionError(f"{action} from {source} needs a durable checkpoint")
    return targets[0]
