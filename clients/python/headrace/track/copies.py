"""Position files beside a tracker's own files: which trial a copy is of, and how far it is."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

NAME: Final = "headrace.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The content of a position file."""

    study: str
    uid: str
    cursor: int
    trial: int | None = None
    """None for the study's own file."""
    size: int = 0
    """The length of what is written, as of the cursor: the bytes of an event file, the rows of a W&B run."""


def read(folder: Path, name: str = NAME) -> Position | None:
    """The position in a folder; None if there is none, or none that can be read."""
    try:
        return Position(**json.loads((folder / name).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write(folder: Path, position: Position, name: str = NAME) -> None:
    """Replaces the position atomically. Not flushed to the disk: after a power cut a copy may start over."""
    new = folder / f".{name}.new"
    new.write_text(json.dumps(asdict(position)) + "\n")
    new.replace(folder / name)
