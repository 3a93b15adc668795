"""The other side of a trial: its identity, where its reports go, and who decides.

`Runtime` is the interface. `cluster` talks to the worker daemon, `local` serves a run by hand, and
`headrace.check` has a third implementation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from headrace.grants import DEFAULT_RANK_PATIENCE_S

Value = bool | int | float | str


class Action(Enum):
    """What a trial has to do after a report."""

    CONTINUE = "continue"
    # Leave the slot; the trial may continue later from this report's checkpoint.
    PAUSE = "pause"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """The small copy that a study's trials train in place of the model that they request."""

    # `module:function` of the model.
    model: str
    # The copy's width, or how many times narrower it is; the other field is 0.
    width: int = 0
    scale: int = 0
    # The optimizer: adamw, adam or sgd.
    optimizer: str = "adamw"
    # `module:function` that returns a batch of the model's inputs; empty if one is drawn.
    inputs: str = ""
    # Whether a gate precedes the study, and the widths that it compares; empty: the library's choice.
    gated: bool = True
    widths: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricBound:
    """A bound on a metric that the trial reports; exactly one of the two is set."""

    metric: str
    at_most: float | None = None
    at_least: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepBest:
    """The rule for which report is the best so far."""

    maximize: bool
    constraints: tuple[MetricBound, ...] = ()
    # The best value of earlier processes of the trial; None before the first one that counts.
    best_value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndsStudy:
    """The rule for which report ends its study."""

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
    # The rungs at which the trial must report, the last of which is `max_steps`; empty if it is not compared.
    rungs: tuple[int, ...] = ()
    # The objective's name; empty if the trial is not compared.
    metric: str = ""
    # The other metrics that the study reads: those of further objectives, and those of constraints.
    further_metrics: tuple[str, ...] = ()
    constraint_metrics: tuple[str, ...] = ()
    # The checkpoint to load; None to start from scratch.
    restore_dir: Path | None = None
    resume_step: int = 0
    # The last step that an earlier process of the trial reported; 0 if none did.
    last_step: int = 0
    # Where new checkpoints go; None if none are needed.
    checkpoint_dir: Path | None = None
    slots: tuple[int, ...] = field(default=(0,))
    # Thousandths of each slot, and the memory budget on it; 0 means all of it.
    slot_milli: int = 0
    memory_bytes: int = 0
    # In a gang with one process per slot: this process's number, and how many there are.
    rank: int = 0
    ranks: int = 1
    # How long the ranks of a gang wait for one of them, in addition to the longest time between two reports.
    rank_patience_s: float = DEFAULT_RANK_PATIENCE_S
    # Unique among all trials of this and all other studies.
    id: str = ""
    # `module:function` and its folder; empty if the script runs by itself.
    target: str = ""
    working_dir: str = ""
    # None: trials get the model that they request.
    surrogate: Surrogate | None = None
    # The files of the plan that the study's trials follow; None without a plan.
    plan_dir: Path | None = None
    # The rule for the best value if its checkpoint is kept, so that the trial saves it; None if it is not.
    keep_best: KeepBest | None = None
    # The rule for a report that ends the study, which is saved; None: no value ends it.
    ends_study: EndsStudy | None = None
    # While this file exists, the trial saves at its next report; None if nobody asks for that.
    leave_file: Path | None = None

    @property
    def asked_to_leave(self) -> bool:
        """Whether others need its slots, or its worker is draining."""
        return self.leave_file is not None and self.leave_file.exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCost:
    """The cost of turns of a bundle: a turn is one step of each of its members."""

    members: int
    turns: int
    # The total of all turns.
    time_s: float
    # The most that the process ever held; 0 if that was with more members.
    memory_bytes: int
    # Whether members joined or left right before each of them.
    fresh: bool
    # The time of the step in which the group measured how to run its members, and the least time of the steps
    # after it; 0 if there is nothing new. Not part of `time_s`.
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
    # Its class name.
    kind: str
    # The last step of the trial that it covers.
    last_step: int
    past_end: PastEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report; a repeat has the same sequence."""

    sequence: int
    step: int
    metrics: Mapping[str, float]
    checkpoint_dir: Path | None
    train_time_s: float
    save_time_s: float
    # Warnings on how the script uses its trial, to be shown outside the trial's log too.
    warnings: tuple[str, ...] = ()
    # The cost of its bundle's turns since the last report.
    turn: TurnCost | None = None
    # The schedules that end; None if they have not changed since the last report.
    schedules: tuple[Schedule, ...] | None = None
    # The function has returned this result without an earlier report.
    returned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer to a report."""

    action: Action
    # With CONTINUE; 0 leaves the milestone unchanged.
    next_milestone: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnEnd:
    """How a program ended that was not asked to end: successfully, or because its checkpoint is missing."""

    # It had started a step of `t.steps()` and left the loop there, so it chose to report nothing more.
    by_itself: bool = False
    # The finished checkpoint of its end, and the step of its last report; None if nothing was saved.
    checkpoint_dir: Path | None = None
    step: int = 0
    save_time_s: float = 0.0
    # Why its state could not be saved; empty if it was saved, or if there is none.
    unsaved: str = ""
    # It failed because the checkpoint to continue from cannot be read.
    unreadable: bool = False
    # Its configuration makes no sense.
    infeasible: bool = False
    # Its interpreter was exiting, so its exit status decides.
    exiting: bool = False


TOLD = OwnEnd()
"""The value for a program that failed, or that was asked to end: there is nothing to add."""
UNREADABLE = OwnEnd(unreadable=True)
INFEASIBLE = OwnEnd(infeasible=True)


class Runtime(Protocol):
    """The other side of a trial. Every call is safe to repeat."""

    def attach(self) -> Assignment:
        """The configuration, and where to continue from."""

    def restored(self, *, read_time_s: float) -> None:
        """The checkpoint is loaded and the loop starts."""

    def report(self, report: Report) -> Decision:
        """Sends a report; at a milestone, waits for the decision."""

    def finish(self, *, error: str, traceback: str, own: OwnEnd = TOLD) -> None:
        """The program ended, successfully if `error` is empty. `own` says how, if it was not asked to end."""


class Ended(SystemExit):
    """The trial was asked to leave, and its script does not loop over `t.steps()`.

    A `SystemExit` with status 0: a script that does not catch it ends cleanly, and `except Exception` does not
    catch it.
    """

    def __init__(self, action: Action, reason: str = "") -> None:
        super().__init__(0)
        self.action = action
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.action.value}: {self.reason}" if self.reason else self.action.value


class Infeasible(Exception):  # noqa: N818 - what it says of a configuration, as `trial.Ended` does of a trial
    """The configuration makes no sense: `raise trial.Infeasible("8 heads do not divide 100 features")`.

    The trial ends as infeasible, with this reason. It is not tried again and does not count as a failure. The
    sampler learns to avoid such configurations.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TrialRuntimeError(RuntimeError):
    """The worker daemon rejects a message of the trial."""


class DaemonGone(SystemExit):
    """The worker daemon no longer answers: a problem of the machine, not of the script.

    A `SystemExit` with its own status (`EX_TEMPFAIL` of sysexits.h), by which the daemon, if it comes back,
    recognizes a loss: the trial continues from its last checkpoint, and nothing is charged to the configuration.
    """

    STATUS = 75

    def __init__(self, message: str) -> None:
        super().__init__(self.STATUS)
        self.message = message

    def __str__(self) -> str:
        return self.message
