"""Trial logs: one file per trial, one header line per attempt, and the end of it for the scheduler."""

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_TAIL_BYTES = 8 << 10


@dataclass(slots=True)
class AttemptLog:
    """One attempt's part of a trial's log; `offset` is where it begins."""

    path: Path
    file: BinaryIO
    offset: int

    @classmethod
    def open(cls, path: Path, header: str) -> "AttemptLog":
        """Opens the log for appending and writes the header line."""
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab", buffering=0)
        file.write(f"==== {header} ====\n".encode())
        return cls(path, file, file.tell())

    def close(self) -> None:
        """Closes the daemon's descriptor; the trial has its own."""
        self.file.close()

    def tail(self) -> str:
        """Reads the end of this attempt's output: at most 8 KiB in UTF-8, no NUL."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(self.offset, size - _TAIL_BYTES))
                data = file.read(_TAIL_BYTES)
        except OSError:  # somebody removed it
            return ""
        return fit(data.decode(errors="replace"))


def fit(text: str) -> str:
    """Cuts text from the front to 8 KiB in UTF-8."""
    data = text.replace("\x00", "\ufffd").encode(errors="replace")
    return data[-_TAIL_BYTES:].decode(errors="ignore")


def shows(tail: str, traceback: str) -> bool:
    """Says whether a log's end holds a traceback already: whoever printed it may have caught it further out, so its
    innermost frame decides."""
    innermost = "\n".join(traceback.strip().splitlines()[-3:])
    return innermost in tail


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
