"""Position files beside a tracker's own files: which trial a copy is of, and how far it is."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace import durable
from headrace.spec import Value
from headrace.track.tracker import AwayError

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
    params: Mapping[str, Value] = field(default_factory=dict)
    """What W&B's next folder of the run repeats, and the same for its summary."""
    summary: Mapping[str, Any] = field(default_factory=dict)


def read(folder: Path, name: str = NAME) -> Position | None:
    """The position in a folder; None if there is none, or one that says nothing. Raises AwayError if it cannot be
    read: then it may well be there.
    """
    try:
        return Position(**json.loads((folder / name).read_text()))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None
    except OSError as error:
        raise unwritable(folder / name, error, "read") from None


def write(folder: Path, position: Position, name: str = NAME) -> None:
    """Replaces the position atomically. Not flushed to the disk: after a power cut a copy may start over."""
    new = folder / f".{name}.new"
    new.write_text(json.dumps(asdict(position)) + "\n")
    new.replace(folder / name)


def remove(folder: Path, name: str = NAME) -> None:
    """Removes the position from the disk too: the copy starts over, whatever happens next."""
    with suppress(FileNotFoundError):  # the folder may be gone as well
        (folder / name).unlink(missing_ok=True)
        durable.flush(folder)


def unwritable(place: Path, error: OSError, what: str = "written") -> AwayError:
    """The error for a place that cannot be written, or read."""
    return AwayError(f"{place} cannot be {what}: {error.strerror or error}.")
