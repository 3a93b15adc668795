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
MOST: Final = 10_000
"""So many entries of a folder are looked at."""
TICK_S: Final = 0.05
"""A file's time may lie so far behind the clock."""


def shared_checkpoints(folder: Path, since: float, *, numbered: bool = False) -> tuple[str, ...]:
    """The names of checkpoints in a folder that were written since a time; those with a number in them if asked for."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(MOST), entries, strict=False):
                name = Path(entry.name)
                meant = name.suffix.lower() in SUFFIXES and (numbered or not any(map(str.isdigit, name.stem)))
                if meant and entry.is_file() and entry.stat().st_mtime > since - TICK_S:
                    found.append(entry.name)
    except OSError:
        return ()  # the folder is the script's affair
    return tuple(sorted(found))


def told(names: tuple[str, ...]) -> str:
    """What such files do, and what to do instead."""
    listed = " and ".join(names[:3])
    return (
        f"{listed} was written in the folder that all trials share: trials overwrite it, and may load each other's. "
        f"Put t.number into its name, or let Headrace keep the state: t.track(model=..., optimizer=...)"
    )
