"""Checkpoints of a script's own, in the folder that all its trials share.

All trials of a study start in its `working_dir`. A script that saves to `model.pt` there, and loads what it finds, goes
on from another trial's weights. A name with a number in it is taken for the trial's own.
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
"""Names that begin so are not looked at."""
MOST: Final = 10_000
"""So many entries of a folder are looked at."""
SHOWN: Final = 3
"""So many names are told."""
TICK_S: Final = 0.05
"""A file's time may lie so far behind the clock."""


def times(folder: Path) -> dict[str, float]:
    """When each file of a folder was written last; 0 for what is no file. Hidden ones and compiled modules are left
    out."""
    found = {}
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(MOST), entries, strict=False):
                if not entry.name.startswith(HIDDEN):
                    found[entry.name] = entry.stat().st_mtime if entry.is_file() else 0.0
    except OSError:
        return {}  # the folder is the script's affair
    return found


def is_checkpoint(name: str) -> bool:
    """Whether a file of this name is taken for a checkpoint."""
    return Path(name).suffix.lower() in SUFFIXES


def is_numbered(name: str) -> bool:
    """Whether a checkpoint's name may have the trial's number in it."""
    return any(map(str.isdigit, Path(name).stem))


def shared_checkpoints(folder: Path, since: float) -> tuple[str, ...]:
    """The names of checkpoints without a number that were written in a folder since a time."""
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
    """The first of the names."""
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
