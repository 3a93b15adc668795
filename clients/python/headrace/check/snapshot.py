"""The output of one process of a check: its reports, and fingerprints of its state at the moments that matter.

Everything here is plain data, passed in a file from the process that trained to the one that compares.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from headrace.check.loaders import LoaderState
from headrace.check.reuse_record import Reuse

# What follows a container's name in the path to one of its items.
_ITEMS = re.compile(r"(\[[^\[\]]*\])+$")


class Kind(StrEnum):
    """The kind of a piece of state. The value is its name in a report; the most suspicious kinds come first."""

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

    # Identifies the same object in every process of a check.
    key: str
    kind: Kind
    # The class, and the variable it was found in, which is empty if only the garbage collector knows the object.
    label: str
    variable: str = ""
    # Its name in `t.track(...)`, or "(global)" for what the trial API saves by itself; empty if it is not saved.
    saved_as: str = ""
    # Whether the script says that it is the same on all ranks.
    shared: bool = False
    # Maps each part to its digest, or to the value itself if it is short.
    parts: dict[str, str] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        """For people: the class and the variable."""
        return f"{self.label} `{self.variable}`" if self.variable else self.label


class End(StrEnum):
    """How a process ended that did not fail."""

    # The script ended by itself: its function returned, or it exited with status 0.
    RETURNED = "returned"
    # It reported the last step of its budget.
    BUDGET = "budget"
    # The check ended it: to resume from there, or because it has seen enough.
    PAUSED = "paused"
    CUT = "cut"


class Moment(StrEnum):
    """The moment at which a snapshot was taken."""

    # At the end of `t.track(...)`.
    TRACKED = "tracked"
    # When the loop starts.
    BEGUN = "begun"
    # In `t.report(...)`, when the checkpoint is complete, or would be.
    REPORTED = "reported"
    # When the script came back to `t.steps()`.
    BODY_ENDED = "body ended"
    # When the script had ended by itself: the state that is kept of the trial.
    RETURNED = "returned"


class Framework(StrEnum):
    """The framework that owns the loop in place of the script; a callback of `headrace_torch` makes it a trial."""

    LIGHTNING = "lightning"
    TRANSFORMERS = "transformers"


class OwnerKind(StrEnum):
    """The kind of an object of the script's own class whose state a framework saves on request."""

    LIGHTNING_CALLBACK = "Lightning callback"
    LIGHTNING_MODULE = "Lightning module"
    TRAINER_CALLBACK = "Trainer callback"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The kind of such an object, and its class."""

    kind: OwnerKind
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All state that was found at one moment."""

    moment: Moment
    step: int
    pieces: tuple[Piece, ...]
    # Plain values in the script's own variables, as text or digest.
    variables: dict[str, str]
    # Variables that hold objects with attributes, and whether their classes are the script's own throughout.
    holders: dict[str, bool]
    # Attributes that are set on the classes of objects, not on the objects themselves.
    defaults: dict[str, str]
    # Variables that hold a generator or an iterator.
    iterators: tuple[str, ...]
    # The variables of the script's frames, which its loop can set. Other plain names belong to closures or
    # generators.
    of_frames: tuple[str, ...] = ()
    # Those of them that the function with the loop sets only after a `global` statement.
    of_globals: tuple[str, ...] = ()
    # Loaders that lose something in a pause.
    loaders: dict[str, tuple[LoaderState, ...]] = field(default_factory=dict)
    # State of the modules outside their state_dict(): see `settings`.
    settings: dict[str, str] = field(default_factory=dict)
    # The script's functions with an lru_cache, and how many results each holds.
    caches: dict[str, int] = field(default_factory=dict)
    # Variables that a framework saves, with their kinds.
    owners: dict[str, Owner] = field(default_factory=dict)
    # Variables that are too large, too deep or too many to inspect.
    unread: tuple[str, ...] = ()
    # Keys of `t.state` whose values share memory with a tracked object, with its name.
    aliases: dict[str, str] = field(default_factory=dict)

    def by_key(self) -> dict[str, Piece]:
        """The pieces by key."""
        return {piece.key: piece for piece in self.pieces}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Steps at whose reports a variable of the script holds a value that a fresh start does not have."""

    variable: str
    first: int
    last: int
    # Whether it changes from report to report; otherwise it keeps one value.
    changes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """One report. The metrics are in `float.hex()` form, so that equal text means equal bits."""

    step: int
    metrics: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFiles:
    """What a process did to the files in its folder; paths are relative to it."""

    # In a copy: the files that it wrote, and those of them that existed when its loop started.
    written: tuple[str, ...] = ()
    rebuilt: tuple[str, ...] = ()
    # The files that it read and that, in a copy, an earlier step wrote; otherwise, an earlier process of the
    # resumed run.
    read: tuple[str, ...] = ()
    # In the script's own folder: the files of an earlier process of the resumed run that this one emptied, as
    # opening them with mode "w" does.
    emptied: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentResult:
    """What one process did."""

    # False where the script never asked for a trial.
    attached: bool
    resume_step: int
    reports: tuple[Reported, ...]
    snapshots: tuple[Snapshot, ...]
    # The reported steps, ascending. A step reported again, or after a later one, is listed once.
    steps: tuple[int, ...] = ()
    # The finished checkpoint, and the step it was reported with.
    checkpoint_dir: str = ""
    checkpoint_step: int = 0
    end: End = End.RETURNED
    # Whether the script left its loop over `t.steps()` within a step, and whether that was the step that it last
    # reported.
    left: bool = False
    left_after_report: bool = False
    # The script's whole budget, and how long it trained, in seconds.
    max_steps: int = 0
    train_s: float = 0.0
    # Whether the script or the study defines that budget. Otherwise it is the check's own.
    names_steps: bool = True
    # The configuration that was trained.
    params: dict[str, bool | int | float | str] = field(default_factory=dict)
    # The parameters in the script's defaults, if an unknown one was given. The script did not run then.
    known_params: tuple[str, ...] = ()
    # In the straight run: when variables hold values that a fresh start does not have; the most informative
    # phases first.
    phases: tuple[Phase, ...] = ()
    # In the straight run: by step, the parameters whose gradients the next step added to.
    carried: dict[int, list[str]] = field(default_factory=dict)
    # The script's value of `t.steps(checkpoint_every=...)`.
    checkpoint_every: int | None = None
    # Where a global generator was seeded after the restore, as `torch.manual_seed (train.py:12)`.
    seeded: tuple[str, ...] = ()
    # The framework that owns the loop; None: the script does.
    framework: Framework | None = None
    # In a gang: the rank of this process.
    rank: int | None = None
    files: FolderFiles = field(default_factory=FolderFiles)
    # The exception's message and traceback; empty on success.
    error: str = ""
    traceback: str = ""

    def last(self, moment: Moment) -> Snapshot | None:
        """The latest snapshot of this moment."""
        return next((found for found in reversed(self.snapshots) if found.moment is moment), None)

    @property
    def decides_after_report(self) -> bool:
        """Whether the script ends its loop between a report and the next step. In a framework, every run ends
        there.
        """
        return self.left_after_report and self.framework is None

    @property
    def begun(self) -> Snapshot | None:
        """The state at the start of the loop; for a script without `t.steps()`, as `t.track(...)` left it."""
        return self.last(Moment.BEGUN) or self.last(Moment.TRACKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The instructions for one process."""

    # The trial's `t.id`.
    id: str
    script: str
    # `module:function`; empty: the script is run as `__main__`.
    target: str
    # The folder in which it runs.
    folder: str
    params: dict[str, bool | int | float | str]
    # None: the script's own default.
    max_steps: int | None
    seed: int
    resume_step: int
    restore_dir: str
    # Empty for the straight run, which does not save.
    checkpoint_dir: str
    result_file: str
    # Pause at the first report of this step or a later one; 0: never.
    pause_at: int = 0
    # End at the first report of this step or a later one; 0: when the budget or the script ends.
    until: int = 0
    # End when this many steps were reported.
    most: int | None = None
    # End at the first report after this many seconds, but not before `LEAST` steps.
    limit_s: float | None = None
    # Whether to inspect the variables at each step, for `SegmentResult.phases`.
    watched: bool = False
    # The steps at whose reports the state is captured in any case.
    photographed: tuple[int, ...] = ()
    # Whether the folder is the process's own copy, which is deleted when it ends.
    is_copy: bool = False
    # Report reads of files that were written after this time and before the process started. By the clock of the
    # check's folder; 0: report none.
    older_from_ns: int = 0
    # How many processes train together, each with a result file of its own (`result_of`).
    ranks: int = 1
    # The arguments of a script that a command runs; and the module name for `python -m`, if it is run that way.
    arguments: tuple[str, ...] = ()
    module: str = ""
    # The variables in the study's `env`.
    env: dict[str, str] = field(default_factory=dict)
    # The trial's number.
    number: int = 0
    # For `--reuse`; None: the process runs one trial, as without it.
    reuse: Reuse | None = None


def name_of(path: str) -> str:
    """The variable that a path leads into: a dictionary or a list and everything in it is one variable."""
    return _ITEMS.sub("", path)


def by_name(variables: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The values by name: a dictionary or a list and everything in it is one variable."""
    found: dict[str, dict[str, str]] = {}
    for path, value in variables.items():
        found.setdefault(name_of(path), {})[path] = value
    return found


LEAST = 3
"""This many steps are run no matter how long they take: one before a restore, and one before and after another."""


def result_of(result_file: str, rank: int) -> Path:
    """The path of a rank's result."""
    return Path(f"{result_file}.rank-{rank}") if rank else Path(result_file)
