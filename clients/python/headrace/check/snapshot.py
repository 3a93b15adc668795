"""What one process of a check leaves behind: its reports, and fingerprints of its state at the instants that matter.

Everything here is plain data that goes through a file from the process that trained to the one that compares.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from headrace.check.loaders import LoaderState

# What follows a container's name on the way to one of its items.
_ITEMS = re.compile(r"(\[[^\[\]]*\])+$")


class Kind(StrEnum):
    """What a piece of state is; the value is its name in a report, the order that of suspicion."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    MODULE = "module settings"
    MOMENTS = "optimizer moments"
    SETTINGS = "optimizer settings"
    SCHEDULE = "schedule position"
    SCALER = "loss scale"
    DATA = "data position"
    RNG = "random numbers"
    STEP = "step"
    END = "end"
    FILE = "file of the script"
    VALUE = "state of the script"
    PARAMETER = "parameter that mutates"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The fingerprint of one object (or of one side of it) at one instant."""

    # The same for the same object in every process of a check.
    key: str
    kind: Kind
    # The class, and the variable it was found in; the variable is empty for what only the collector knows.
    label: str
    variable: str = ""
    # Its name in `t.track(...)`, or "(global)" for what the trial API saves by itself; empty where nobody saves it.
    saved_as: str = ""
    # Whether the script says that it is the same on all ranks.
    shared: bool = False
    # Part to digest, or to the value itself where it is short.
    parts: dict[str, str] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        """For people: the class and the variable."""
        return f"{self.label} `{self.variable}`" if self.variable else self.label


class End(StrEnum):
    """How a process that did not fail came to its end."""

    # The script ended by itself: its function returned, or it exited with status 0.
    RETURNED = "returned"
    # It reported the last step of its budget.
    BUDGET = "budget"
    # The check told it so: to resume from there, or because it has seen enough.
    PAUSED = "paused"
    CUT = "cut"


class Moment(StrEnum):
    """When a snapshot was taken."""

    # At the end of `t.track(...)`.
    TRACKED = "tracked"
    # When the loop begins.
    BEGUN = "begun"
    # In `t.report(...)`, when the checkpoint is complete, or would be.
    REPORTED = "reported"
    # When the script came back to `t.steps()`.
    BODY_ENDED = "body ended"
    # When the script had ended by itself: what is kept of the trial.
    RETURNED = "returned"


class Framework(StrEnum):
    """Who owns the loop, where it is not the script; a callback of `headrace_torch` makes it a trial."""

    LIGHTNING = "lightning"
    TRANSFORMERS = "transformers"


class OwnerKind(StrEnum):
    """An object of a class of the script's own, whose state a framework saves where it is asked to."""

    LIGHTNING_CALLBACK = "Lightning callback"
    LIGHTNING_MODULE = "Lightning module"
    TRAINER_CALLBACK = "Trainer callback"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """What such an object is, and its class."""

    kind: OwnerKind
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All the state that could be found at one instant."""

    moment: Moment
    step: int
    pieces: tuple[Piece, ...]
    # Plain values in the script's own variables, as text or digest.
    variables: dict[str, str]
    # Variables that hold objects with attributes, and whether their classes are the script's own throughout.
    holders: dict[str, bool]
    # Attributes that only the classes of the objects have, not the objects themselves.
    defaults: dict[str, str]
    # Variables that hold a generator or an iterator.
    iterators: tuple[str, ...]
    # The variables of the script's frames, which its loop may set: other plain names are a closure's or a generator's.
    of_frames: tuple[str, ...] = ()
    # Loaders of which a pause loses something.
    loaders: dict[str, tuple[LoaderState, ...]] = field(default_factory=dict)
    # What the modules have beside their state_dict(): see `settings`.
    settings: dict[str, str] = field(default_factory=dict)
    # The script's functions with an lru_cache, and how many results each holds.
    caches: dict[str, int] = field(default_factory=dict)
    # Variables that are a framework's to save, with what they are.
    owners: dict[str, Owner] = field(default_factory=dict)
    # Variables that are too large, too deep or too many to be looked at.
    unread: tuple[str, ...] = ()
    # Keys of `t.state` whose values share memory with a tracked object, with its name.
    aliases: dict[str, str] = field(default_factory=dict)

    def by_key(self) -> dict[str, Piece]:
        """The pieces by key."""
        return {piece.key: piece for piece in self.pieces}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Steps at whose reports a variable of the script holds what a fresh start does not have."""

    variable: str
    first: int
    last: int
    # Whether it changes from report to report; else it keeps one value.
    changes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """One report; the metrics are `float.hex()`, so that text compares like bits."""

    step: int
    metrics: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFiles:
    """What a process did to the files of its folder, by their paths from there."""

    # In a copy: what it wrote, and what of it was there when its loop began.
    written: tuple[str, ...] = ()
    rebuilt: tuple[str, ...] = ()
    # In a copy: what it read that an earlier step of it wrote. Else: that an earlier process of the resumed run wrote.
    read: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentResult:
    """What one process did."""

    # False where the script never asked for a trial.
    attached: bool
    resume_step: int
    reports: tuple[Reported, ...]
    snapshots: tuple[Snapshot, ...]
    # The steps that were reported, ascending. One that is reported again, or after a later one, counts once.
    steps: tuple[int, ...] = ()
    # The finished checkpoint, and the step it was reported with.
    checkpoint_dir: str = ""
    checkpoint_step: int = 0
    end: End = End.RETURNED
    # Whether the script left its loop over `t.steps()` within a step, and whether it was the one that it reported last.
    left: bool = False
    left_after_report: bool = False
    # The script's whole budget, and how long it trained, in seconds.
    max_steps: int = 0
    train_s: float = 0.0
    # Whether the script or the study has said that budget. Else it is the check's own.
    names_steps: bool = True
    # The configuration that it trained.
    params: dict[str, bool | int | float | str] = field(default_factory=dict)
    # The parameters in the script's defaults, where one was given that it does not know: then it did not run.
    known_params: tuple[str, ...] = ()
    # Of the straight run: when variables hold what a fresh start does not have, the most telling of each first.
    phases: tuple[Phase, ...] = ()
    # Of the straight run: by step, the parameters whose gradients the next step added to.
    carried: dict[int, list[str]] = field(default_factory=dict)
    # What the script gave `t.steps(checkpoint_every=...)`.
    checkpoint_every: int | None = None
    # Where a global generator was seeded after the restore, as `torch.manual_seed (train.py:12)`.
    seeded: tuple[str, ...] = ()
    # Who owns the loop; None: the script.
    framework: Framework | None = None
    # Of a gang: which of its processes.
    rank: int | None = None
    files: FolderFiles = field(default_factory=FolderFiles)
    # The exception's line and its traceback; empty for success.
    error: str = ""
    traceback: str = ""

    def last(self, moment: Moment) -> Snapshot | None:
        """The newest snapshot of this moment."""
        return next((found for found in reversed(self.snapshots) if found.moment is moment), None)

    @property
    def decides_after_report(self) -> bool:
        """Whether the script itself ends its loop between a report and the next step. In a framework every end lies
        there."""
        return self.left_after_report and self.framework is None

    @property
    def begun(self) -> Snapshot | None:
        """The state that the loop began with; for a script without `t.steps()`, as `t.track(...)` left it."""
        return self.last(Moment.BEGUN) or self.last(Moment.TRACKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What one process is to do."""

    # The trial's `t.id`.
    id: str
    script: str
    # `module:function`; empty: the script is run as `__main__`.
    target: str
    # Where it runs.
    folder: str
    params: dict[str, bool | int | float | str]
    # None: as the script's own defaults say.
    max_steps: int | None
    seed: int
    resume_step: int
    restore_dir: str
    # Empty for the straight run, which saves nothing.
    checkpoint_dir: str
    result_file: str
    # Pauses it at the first report of this step or a later one; 0: never.
    pause_at: int = 0
    # Ends it at the first report of this step or a later one; 0: its budget does, or the script itself.
    until: int = 0
    # Ends it when it has reported so many steps.
    most: int | None = None
    # Ends it at the first report after so many seconds, but not before `LEAST` steps.
    limit_s: float | None = None
    # Whether the variables are looked at in each step, for `SegmentResult.phases`.
    watched: bool = False
    # The steps at whose reports the state is looked at, whatever else is.
    photographed: tuple[int, ...] = ()
    # Whether the folder is a copy of its own, which is deleted when it ends.
    is_copy: bool = False
    # Reading what was written from this time on, and before the process began, is told; by the clock of the check's
    # folder; 0: none is.
    older_from_ns: int = 0
    # How many processes train together, each with a result file of its own (`result_of`).
    ranks: int = 1
    # The arguments of a script that a command runs; and the name that `python -m` is given, if it is run so.
    arguments: tuple[str, ...] = ()
    module: str = ""
    # What the study's `env` sets.
    env: dict[str, str] = field(default_factory=dict)


def name_of(path: str) -> str:
    """The variable that a path leads into: a dictionary or a list, and all that it holds, is one."""
    return _ITEMS.sub("", path)


def by_name(variables: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The values by name: a dictionary or a list, and all that it holds, is one."""
    found: dict[str, dict[str, str]] = {}
    for path, value in variables.items():
        found.setdefault(name_of(path), {})[path] = value
    return found


LEAST = 3
"""So many steps are run however long they take: one before a restore, and one before and after another."""


def result_of(result_file: str, rank: int) -> Path:
    """Where a rank's result goes."""
    return Path(f"{result_file}.rank-{rank}") if rank else Path(result_file)
