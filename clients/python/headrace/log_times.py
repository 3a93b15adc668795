"""When a trial's log was written, as seen by its worker: a small file of marks next to the log.

A mark says that everything before this offset, the start of a line, had been written by this time. The worker
writes the marks. A reader of the log since a time starts at the last mark that is not later. The trial may write
to its folder, so a reader trusts nothing here: at worst it starts at the wrong line.

In the file, a mark is two little-endian 64-bit numbers. Times are milliseconds since 1970, by the worker's clock.
"""

import os
import stat
import struct
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

MOST_MARKS = 256
_RECORD = struct.Struct("<qq")
MOST_BYTES = MOST_MARKS * _RECORD.size
WHOLE = "when it was printed is not known, so all of it is shown"
"""The note for reading a log without marks since a time."""


class Mark(NamedTuple):
    """Everything before `offset`, in bytes, had been written at `time_ms`."""

    time_ms: int
    offset: int


def since_ms(within: timedelta, now_s: float) -> int:
    """The time this long before now, as in marks."""
    return int((now_s - within.total_seconds()) * 1000)


def place_of(marks: Sequence[Mark], since: int) -> int | None:
    """Where to start so that nothing written since then is left out; None if that is not known."""
    place = 0 if marks and marks[0].offset == 0 else None
    for mark in marks:
        if mark.time_ms > since:  # and so are later marks, even if the clock was set back
            break
        place = mark.offset
    return place


def added(marks: Sequence[Mark], new: Mark) -> list[Mark]:
    """The marks with one more. Beyond `MOST_MARKS`, one is removed: that whose gap is smallest relative to its
    age.
    """
    found = [*marks, new]
    if len(found) > MOST_MARKS:
        now = new.time_ms
        gaps = (
            (after.time_ms - before.time_ms) / max(1, now - before.time_ms)
            for before, after in zip(found, found[2:], strict=False)
        )
        del found[min(enumerate(gaps, 1), key=lambda gap: gap[1])[0]]
    return found


def replaced(marks: Iterable[Mark], start: int, end: int, by: int) -> list[Mark]:
    """The marks of a log whose bytes from `start` to `end` were replaced by `by` others."""
    return [
        mark if mark.offset <= start else Mark(mark.time_ms, mark.offset - (end - start) + by)
        for mark in marks
        if not start < mark.offset < end
    ]


def within_part(marks: Sequence[Mark], start: int, end: int) -> list[Mark]:
    """The marks of the part of a log from `start` to `end`, with offsets in the part."""
    before = [mark for mark in marks if mark.offset <= start][-1:]
    inside = [mark for mark in marks if start < mark.offset <= end]
    return [Mark(mark.time_ms, max(0, mark.offset - start)) for mark in (*before, *inside)]


def pack(marks: Iterable[Mark]) -> bytes:
    """The marks as written to a file."""
    return b"".join(_RECORD.pack(*mark) for mark in marks)


def unpack(data: bytes) -> list[Mark]:
    """The marks in the output of `pack`; an incomplete one at the end is skipped."""
    return [Mark(*found) for found in _RECORD.iter_unpack(data[: len(data) // _RECORD.size * _RECORD.size])]


def path_of(log: Path) -> Path:
    """The path of a log's marks."""
    return log.with_name(f"{log.name}.times")


def read(log: Path) -> list[Mark]:
    """The marks of a log; none if they cannot be read, are not a regular file, or do not match the log."""
    try:
        descriptor = os.open(path_of(log), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            marks = unpack(os.read(descriptor, MOST_BYTES)) if regular else []
        finally:
            os.close(descriptor)
        size = log.stat().st_size
    except OSError:
        return []
    offsets = [0, *(mark.offset for mark in marks), size]
    return marks if offsets == sorted(offsets) else []
