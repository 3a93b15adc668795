"""A script's own checkpoints, in the folder that all its trials share.

All trials of a study start in its `working_dir`. A script that saves to `model.pt` there, and loads what it
finds, continues from another trial's weights. A name with a number in it is assumed to be the trial's own.
"""

import os
from pathlib import Path
from typing import Final

SUFFIXES: Final = frozenset(
    [
        ".pt",
        ".pth",
        ".ckpt",
        ".safetensors",
        ".pkl",
        ".pickle",
        ".joblib",
        ".npz",
        ".npy",
        ".h5",
        ".keras",
        ".onnx",
        ".bin",
    ]
)
HIDDEN: Final = (".", "__pycache__")
"""Names with these prefixes are ignored."""
MOST: Final = 10_000
"""How many entries of a folder are checked."""
SHOWN: Final = 3
"""How many names are listed."""
TICK_S: Final = 0.05
"""How far a file's time may be behind the clock."""


def times(folder: Path) -> dict[str, float]:
    """When each file in a folder was last written; 0 for anything that is not a file. Hidden files and compiled
    modules are left out.
    """
    found = {}
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(MOST), entries, strict=False):
                if not entry.name.startswith(HIDDEN):
                    found[entry.name] = entry.stat().st_mtime if entry.is_file() else 0.0
    except OSError:
        return {}  # the script is free to do anything with the folder
    return found


def is_checkpoint(name: str) -> bool:
    """Whether a file of this name is considered a checkpoint."""
    return Path(name).suffix.lower() in SUFFIXES


def is_numbered(name: str) -> bool:
    """Whether a checkpoint's name may contain the trial's number."""
    return any(map(str.isdigit, Path(name).stem))


def shared_checkpoints(folder: Path, since: float) -> tuple[str, ...]:
    """The names of checkpoints without a number that were written to a folder since a time."""
    return tuple(
        sorted(
            name
            for name, written in times(folder).items()
            if written > since - TICK_S and is_checkpoint(name) and not is_numbered(name)
        )
    )


def told(names: tuple[str, ...]) -> str:
    """What such files do, and what to do instead."""
    return (
        f"{listed(names)} was written in the folder that all trials share: trials overwrite it, and may load each "
        f"other's. Put t.id into its name, or let Headrace keep the state: t.track(model=..., optimizer=...)"
    )


def listed(names: tuple[str, ...]) -> str:
    """The first names, for a message."""
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
