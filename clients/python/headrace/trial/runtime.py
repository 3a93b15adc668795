"""What stands behind a trial: who it is, where its reports go, and who decides.

`Runtime` is the whole of it; `cluster` speaks to the worker daemon, `local` serves a run by hand, and
`headrace.check` has a third.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from headrace.grants import DEFAULT_RANK_PATIENCE_S

Value = bool | int | float | str


class Action(Enum):
    """What a trial is to do after a report."""

    CONTINUE = "continue"
    # Leave the slot; this report's checkpoint will be continued from later.
    PAUSE = "pause"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """The small copy that a study's trials train in place of the model that they ask for."""

    # `module:function` of the model.
    model: str
    # The copy's width, or how many times narrower it is; the other one is 0.
    width: int = 0
    scale: int = 0
    # What trains it: adamw, adam or sgd.
    optimizer: str = "adamw"
    # `module:function` of a batch as the model takes it; empty where one is drawn.
    inputs: str = ""
    # Whether a check stands before the study, and the widths that it compares; none: the library's choice.
    gated: bool = True
    widths: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricBound:
    """A bound on a metric that the trial reports: one of the two is set."""

    metric: str
    at_most: float | None = None
    at_least: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepBest:
    """What makes a report the best so far."""

    maximize: bool
    constraints: tuple[MetricBound, ...] = ()
    # That of earlier processes of the trial; None before the first one that counts.
    best_value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndsStudy:
    """What makes a report end its study."""

    maximize: bool
    value: float
    constraints: tuple[MetricBound, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The configuration of one process, and where it continues from."""

    # `studies/{study}/trials/{number}`.
    trial: str
    params: Mapping[str, Value]
    max_steps: int
    # The step up to which the trial runs without asking.
    next_milestone: int
    seed: int
    # The rungs that the trial must report at, the last of which is `max_steps`; none where nobody compares.
    rungs: tuple[int, ...] = ()
    # The objective's name; empty where nobody compares.
    metric: str = ""
    # The other metrics that the study reads: those of further objectives, and those of constraints.
    further_metrics: tuple[str, ...] = ()
    constraint_metrics: tuple[str, ...] = ()
    # The checkpoint to load; None for a start from nothing.
    restore_dir: Path | None = None
    resume_step: int = 0
    # The step that an earlier process of the trial reported last; 0 where none did.
    last_step: int = 0
    # Where new checkpoints go; None where none are wanted.
    checkpoint_dir: Path | None = None
    slots: tuple[int, ...] = field(default=(0,))
    # Thousandths of each slot, and the memory budget on it; 0 means all of it.
    slot_milli: int = 0
    memory_bytes: int = 0
    # Of a gang of one process a slot: this process's number, and how many there are.
    rank: int = 0
    ranks: int = 1
    # How long the ranks of a gang wait for one of them, beyond the longest stretch between two reports.
    rank_patience_s: float = DEFAULT_RANK_PATIENCE_S
    # Differs from that of every other trial, of this study and of all others.
    id: str = ""
    # `module:function` and where it lies; empty where the script runs by itself.
    target: str = ""
    working_dir: str = ""
    # None: trials get the model that they ask for.
    surrogate: Surrogate | None = None
    # The files of the plan that the study's trials follow; None without a plan.
    plan_dir: Path | None = None
    # The checkpoint of the best value is kept, so the trial saves there. None: it is not.
    keep_best: KeepBest | None = None
    # A report that ends the study is saved. None: no value ends it.
    ends_study: EndsStudy | None = None
    # While it exists the trial saves at its next report; None where nobody asks.
    leave_file: Path | None = None

    @property
    def asked_to_leave(self) -> bool:
        """Whether others need its slots, or its worker is drained."""
        return self.leave_file is not None and self.leave_file.exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCost:
    """What turns of a bundle cost: a turn is one step of each of its members."""

    members: int
    turns: int
    # Of all of them together.
    time_s: float
    # The most that the process ever held; 0 where that was with more members.
    memory_bytes: int
    # Members joined or left right before each of them.
    fresh: bool
    # The step at which the group looked at how to run its members, and the least of those that followed; 0 where
    # nothing is new. It is no part of `time_s`.
    first_step_s: float = 0.0
    later_step_s: float = 0.0


class PastEnd(Enum):
    """What a learning-rate schedule does when it is stepped past its end."""

    UNKNOWN = "unknown"
    # It raises an error.
    RAISES = "raises"
    # The learning rate rises again.
    RISES = "rises"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A learning-rate schedule with an end, as the trial tracks it."""

    name: str
    # Its class.
    kind: str
    # The last step of the trial that it covers.
    last_step: int
    past_end: PastEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report; a repeat carries the same sequence."""

    sequence: int
    step: int
    metrics: Mapping[str, float]
    checkpoint_dir: Path | None
    train_time_s: float
    save_time_s: float
    # What is wrong with how the script uses its trial, to be told outside the trial's log too.
    warnings: tuple[str, ...] = ()
    # What the turns of its bundle cost since the last report.
    turn: TurnCost | None = None
    # The schedules that end; None where they are as it was said before.
    schedules: tuple[Schedule, ...] | None = None
    # The function has returned this result, and reported nothing on its way.
    returned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer to a report."""

    action: Action
    # With CONTINUE; 0 leaves the milestone as it was.
    next_milestone: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnEnd:
    """How a program ended that was not told to: with success, or for want of its checkpoint."""

    # It had begun a step of `t.steps()` and left the loop there, so it chose to report nothing more.
    by_itself: bool = False
    # The finished checkpoint of its end, and the step of its last report; None where nothing was saved.
    checkpoint_dir: Path | None = None
    step: int = 0
    save_time_s: float = 0.0
    # Why its state could not be saved; empty where it was, or where there is none.
    unsaved: str = ""
    # It failed, since the checkpoint that it was to continue from cannot be read.
    unreadable: bool = False
    # Its configuration makes no sense.
    infeasible: bool = False
    # Its interpreter was exiting, so its exit status has the last word.
    exiting: bool = False


TOLD = OwnEnd()
"""The end of a program that failed, or that was told to end: nothing is to be said of it here."""
UNREADABLE = OwnEnd(unreadable=True)
INFEASIBLE = OwnEnd(infeasible=True)


class Runtime(Protocol):
    """The other side of a trial. Every call is safe to repeat."""

    def attach(self) -> Assignment:
        """The configuration and where to continue from."""

    def restored(self, *, read_time_s: float) -> None:
        """The checkpoint is loaded and the loop begins."""

    def report(self, report: Report) -> Decision:
        """Passes a report on; at a milestone, waits for the decision."""

    def finish(self, *, error: str, traceback: str, own: OwnEnd = TOLD) -> None:
        """The program ended: with success where `error` is empty. `own` says how, where nobody told it to."""


class Ended(SystemExit):
    """The trial was told to leave and its script does not loop over `t.steps()`.

    A `SystemExit` with status 0: a script that lets it pass ends cleanly, and `except Exception` does not
    swallow it.
    """

    def __init__(self, action: Action, reason: str = "") -> None:
        super().__init__(0)
        self.action = action
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.action.value}: {self.reason}" if self.reason else self.action.value


class Infeasible(Exception):  # noqa: N818 - what it says of a configuration, as `trial.Ended` does of a trial
    """The configuration makes no sense: `raise trial.Infeasible("8 heads do not divide 100 features")`.

    The trial ends as infeasible, with this reason. It is not tried again and counts as no failure. The sampler learns
    to keep away from such configurations.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TrialRuntimeError(RuntimeError):
    """The worker daemon refuses what the trial says."""


class DaemonGone(SystemExit):
    """The worker daemon does not answer any more: the machine's trouble, not the script's.

    A `SystemExit` with a status of its own (`EX_TEMPFAIL` of sysexits.h), by which the daemon, should it come back,
    knows a loss: the trial goes on from its last checkpoint, and nothing is charged to the configuration.
    """

    STATUS = 75

    def __init__(self, message: str) -> None:
        super().__init__(self.STATUS)
        self.message = message

    def __str__(self) -> str:
        return self.message
