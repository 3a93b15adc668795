"""Trial logs: one file per trial, one header line per attempt, and the end of the log for the scheduler.

The trial writes to the file directly. So the file's size is checked at intervals (`shorten`); of a log that has
grown too large, the beginning and the end are kept. How long it was at which time is recorded beside the log
(`headrace.log_times`). The trial may do what it likes with the files (remove them, cut them, put a pipe in their
place). That costs it its log, and affects nobody else.
"""

import errno
import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from headrace import log_times
from headrace.bounds.sessions import LOG_TAIL
from headrace.log_times import Mark

MAX_BYTES = 64 << 20
_KEPT_BYTES = 4 << 20
"""When a log has grown larger than `MAX_BYTES`, this much of its beginning and of its end is kept."""
MARK_EVERY_MS = 5000
"""A log that keeps growing is marked this often."""
_LINE_BYTES = 4096
"""A mark is at the start of its line, unless the line is longer than this."""


@dataclass(slots=True)
class AttemptLog:
    """One attempt's part of a trial's log; `offset` is where it starts."""

    path: Path
    file: BinaryIO
    offset: int
    began: int
    """Where its header line starts."""
    identity: "FileIdentity"
    """Identifies the file: another one in its place is not ours."""
    marks: list[Mark] = field(default_factory=list)
    """The marks of the whole file."""
    _turn: Lock = field(default_factory=Lock)
    """A check of the size may coincide with the attempt's end."""

    @classmethod
    def open(cls, path: Path, header: str) -> "AttemptLog":
        """Opens the log for appending and writes the header line."""
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+b", buffering=0, opener=_open_regular)  # noqa: SIM115 - closed by `close`
        found = os.fstat(file.fileno())
        marks = log_times.read(path)
        file.write(f"==== {header} ====\n".encode())
        opened = cls(path, file, file.tell(), found.st_size, (found.st_dev, found.st_ino), marks)
        opened._keep(log_times.added(marks, Mark(time.time_ns() // 10**6, found.st_size)))
        return opened

    def note(self, line: str) -> None:
        """Writes a line of the worker's own."""
        self.file.write(f"headrace: {line}\n".encode(errors="replace"))

    def add(self, text: str) -> None:
        """Writes what another process printed, as far as the disk has room."""
        with suppress(OSError):
            self.file.write(text.encode(errors="replace"))

    def close(self) -> None:
        """Closes the daemon's descriptor; the trial has its own."""
        with self._turn, suppress(OSError, ValueError):  # the disk fails, or it was closed before
            self._mark(os.fstat(self.file.fileno()).st_size)
        self.file.close()

    def shorten(self, max_bytes: int = MAX_BYTES) -> None:
        """Adds a mark for what is there, and removes the middle of a log that has grown too large. What is written
        at that moment may be lost."""
        with self._turn:
            self._shorten(max_bytes)

    def _shorten(self, max_bytes: int) -> None:
        kept = min(_KEPT_BYTES, max_bytes // 4)
        descriptor = self.file.fileno()
        size = os.fstat(descriptor).st_size
        self._mark(size, MARK_EVERY_MS)
        if size <= max_bytes:
            return
        end = os.pread(descriptor, kept, size - kept)
        end = end[end.find(b"\n") + 1 :]
        notice = f"\n==== {size - kept - len(end)} bytes left out: a log holds {max_bytes} bytes ====\n"
        since = os.pread(descriptor, kept, size)  # written meanwhile: perhaps the last line
        marks = log_times.replaced(self.marks, kept, size - len(end), len(notice))
        before = [mark for mark in self.marks if mark.offset <= kept]
        self._keep(before)  # these are true even if this daemon is killed
        os.ftruncate(descriptor, kept)
        os.write(descriptor, notice.encode() + end + since)
        self._keep(marks)
        self.offset, self.began = min(self.offset, kept), min(self.began, kept)

    def _mark(self, size: int, every_ms: int = 0) -> None:
        """Adds a mark for this many bytes now, unless one was just added. Raises `OSError`."""
        now_ms = time.time_ns() // 10**6
        last = self.marks[-1] if self.marks else None
        if last and size < last.offset:  # the trial cut it
            self.marks, last = [], None
        if last and 0 <= now_ms - last.time_ms < every_ms:
            return
        start = max(0, size - _LINE_BYTES)
        line = os.pread(self.file.fileno(), size - start, start)
        ended = max(line.rfind(b"\n"), line.rfind(b"\r")) + 1
        place = start + ended if ended or not start else size
        if last is None or place > last.offset:
            self._keep(log_times.added(self.marks, Mark(now_ms, place)))

    def _keep(self, marks: list[Mark]) -> None:
        """Writes the marks beside the log. If they cannot be written there are none: old ones may be wrong."""
        self.marks = marks
        place = log_times.path_of(self.path)
        fresh = place.with_name(f"{place.name}.new")
        try:
            fresh.unlink(missing_ok=True)
            with fresh.open("xb") as file:  # a link that a trial puts there is not followed
                file.write(log_times.pack(marks))
            fresh.replace(place)
        except OSError:
            with suppress(OSError):
                place.unlink()

    def tail(self) -> str:
        """Reads the end of this attempt's output: as much as the scheduler keeps."""
        descriptor = self.file.fileno()
        size = os.fstat(descriptor).st_size
        kept = LOG_TAIL.longest  # a character has one byte at least
        data = os.pread(descriptor, kept, max(min(self.offset, size), size - kept))
        return LOG_TAIL.kept(data.decode(errors="replace"))


FileIdentity = tuple[int, int]
"""A file's device and number."""


def open_to_read(path: Path, identity: FileIdentity | None = None) -> BinaryIO:
    """Opens a log for a reader elsewhere: a regular file, and with `identity` that one.

    What a trial has put in its place, such as a link to another file, is not read. Raises `FileNotFoundError` for it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        if _is_odd(str(path)):
            raise FileNotFoundError(errno.ENOENT, "there is something else in its place", str(path)) from None
        raise
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or identity not in (None, (found.st_dev, found.st_ino)):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "there is something else in its place", str(path))
    return os.fdopen(descriptor, "rb")


def _open_regular(path: str, flags: int) -> int:
    """Opens a log, removing anything else that is in its place."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError:
        if not _is_odd(path):
            raise
    else:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    Path(path).unlink()
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _is_odd(path: str) -> bool:
    """Whether a link, a pipe or a socket is there."""
    try:
        return not stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def shows(tail: str, traceback: str) -> bool:
    """Says whether a log's end holds a traceback already: whoever printed it may have caught it further out, so its
    innermost frame decides."""
    innermost = "\n".join(traceback.strip().splitlines()[-3:])
    return innermost in tail


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
