"""Messages that the scheduler rejected: kept in a folder for people to read, and never sent again.

There is one text file per message: the reason first, then the message. Whoever has read them deletes them; until
then the worker names the folder in its heartbeats. When the folder exceeds its limits, the oldest files are
deleted.
"""

from datetime import UTC, datetime
from pathlib import Path

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from headrace.durable import replace
from headrace.v1 import worker_pb2

MAX_FILES = 64
MAX_BYTES = 64 << 20
_SHOWN = 300


class RejectedMessages:
    """The folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, sequence: int, body: bytes, reason: str) -> None:
        """Writes a message to disk, durably. Writing the same message again changes nothing. Raises `OSError`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        line = " ".join(reason.split())
        when = datetime.now(UTC).isoformat(timespec="seconds")
        path = self._folder / f"{sequence:012d}.txt"
        text = f"# {line}\n# rejected {when}; not sent again\n{_readable(body)}"
        replace(path, text.encode("utf-8", errors="replace"))
        self._prune()

    def summary(self) -> str:
        """How many messages there are, where they are, and why the one with the highest sequence was rejected.
        Empty if there are none."""
        try:
            files = self._files()
            if not files:
                return ""
            with files[-1].open(encoding="utf-8") as file:
                reason = file.readline(_SHOWN).removeprefix("# ").strip()
        except OSError:  # somebody is deleting them right now; the next heartbeat says more
            return ""
        messages = "1 message" if len(files) == 1 else f"{len(files)} messages"
        return f"{messages} in {self._folder}; the last one: {reason}"

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.txt"))

    def _prune(self) -> None:
        files = self._files()
        kept_bytes = 0
        for number, path in enumerate(reversed(files)):
            kept_bytes += path.stat().st_size
            if number and (number >= MAX_FILES or kept_bytes > MAX_BYTES):
                path.unlink(missing_ok=True)


def _readable(body: bytes) -> str:
    try:
        return text_format.MessageToString(worker_pb2.SessionRequest.FromString(body))
    except DecodeError:
        return f"{body!r}\n"
