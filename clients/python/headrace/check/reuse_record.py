"""What a process of `headrace check --reuse` is told, and what it found beside the trial that is compared.

Plain data, passed in files like those of `snapshot`.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTrial:
    """The trial that runs in a process before the one that is compared."""

    id: str
    params: dict[str, bool | int | float | str]
    seed: int
    # It pauses at the first report of this step or a later one, as at a rung, or after this time.
    pause_at: int
    limit_s: float | None
    checkpoint_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """How the process is used."""

    # None: the trial that is compared is the first.
    first: FirstTrial | None
    # When the check began, by the clock of its folder: what was written since is of an earlier trial.
    since_ns: int
    # How many objects to read in search of what each trial changes in the state of all modules; 0: do not look.
    reads: int = 0
    # Modules to import before that, as trials import them: their state then is what B alone would meet.
    imports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A variable of a module, or a part of it, that a trial has changed."""

    name: str
    finding: str
    remedy: str
    # Whether the user's own code mentions it, or is what it holds now.
    users: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What there is to say of a process, beside the trial that is compared."""

    # Processor time until the function could be called: the start of the process and its imports.
    import_s: float = 0.0
    # Why the process would run no further trial, after each of its trials; empty where it would.
    left_behind: tuple[str, ...] = ()
    # How the first trial failed; empty if it did not, or said that its configuration is infeasible.
    error: str = ""
    traceback: str = ""
    # How many steps it reported.
    first_steps: int = 0
    # Files that the compared trial read as an earlier trial had left them.
    files: tuple[str, ...] = ()
    # The files that the first trial wrote into its process's own copy of the folder.
    written: tuple[str, ...] = ()
    # The modules that its trials imported.
    late: tuple[str, ...] = ()
    # What each of its trials changed, and the libraries that were too many to read.
    changed: tuple[tuple[Changed, ...], ...] = ()
    unread: tuple[str, ...] = ()


def used_file(result_file: str) -> Path:
    """Where a process with this result file writes it."""
    return Path(f"{result_file}.used")
