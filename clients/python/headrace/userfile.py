"""Files that a user names: read up to a size limit, or rejected with the file, the line if known, and the reason.

Everything that a command reads from a user's file goes through here. A file may be anything: a folder, an
endless pipe, a device, a gigabyte, binary data. The kind and size of the opened file are checked before a byte
is read. A file that grows after that is not read beyond the limit.
"""

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

from headrace.errors import InvalidFieldError, Violation, show_value

MIB: Final = 1 << 20
LONGEST_NUMBER: Final = 100
"""In digits. Every bound on a number is far below this; Python refuses to convert several thousand."""
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_KINDS: Final = (
    (stat.S_ISDIR, "is a folder"),
    (stat.S_ISFIFO, "is a pipe, not a file"),
    (stat.S_ISCHR, "is a device, not a file"),
    (stat.S_ISBLK, "is a device, not a file"),
)
_NOBODY_THERE: Final = "is a socket or a device, not a file"


class UserFileError(InvalidFieldError):
    """A user's file cannot be used. `reason` says why, and `line` where, if known."""

    def __init__(self, path: Path, line: int | None, reason: str, remedy: str = "", value: str = "") -> None:
        self.line = line
        self.reason = reason
        where = str(path) if line is None else f"{path}, line {line}"
        super().__init__([Violation(field=where, message=reason, remedy=remedy, value=value)])


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFile:
    """What a command expects of a file: its largest size, and what to do if it is something else."""

    largest_bytes: int
    remedy: str

    def open(self, path: Path) -> BinaryIO:
        """The opened file, which is a regular one within the limit. Raises UserFileError."""
        try:
            # Without O_NONBLOCK, opening a pipe would wait for a writer.
            opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            reason = _NOBODY_THERE if error.errno == errno.ENXIO else error.strerror or str(error)
            raise UserFileError(path, None, reason, self.remedy) from None
        except ValueError:
            raise UserFileError(path, None, "is not the name of a file", self.remedy) from None
        found = os.fstat(opened)
        reason = next((words for is_kind, words in _KINDS if is_kind(found.st_mode)), "")
        if found.st_size > self.largest_bytes:
            reason = reason or self._too_large()
        if reason:
            os.close(opened)
            raise UserFileError(path, None, reason, self.remedy)
        return os.fdopen(opened, "rb")

    def bytes(self, path: Path) -> bytes:
        """Everything in the file. Raises UserFileError."""
        with self.open(path) as file:
            try:
                data = file.read(self.largest_bytes + 1)
            except OSError as error:
                raise UserFileError(path, None, error.strerror or str(error), self.remedy) from None
        if len(data) > self.largest_bytes:
            raise UserFileError(path, None, self._too_large(), self.remedy)
        return data

    def text(self, path: Path) -> str:
        """The file's text: UTF-8, with or without a byte order mark, and no control characters."""
        data = self.bytes(path)
        return _text(path, data.removeprefix(b"\xef\xbb\xbf"), 1, self.remedy)

    def json(self, path: Path) -> Any:
        """The file's value; see `parse_json`."""
        text = self.text(path)
        try:
            return parse_json(text)
        except json.JSONDecodeError as error:
            reason = f"is not JSON: {error.msg} (column {error.colno})"
            raise UserFileError(path, error.lineno, reason, "Correct the file there.") from None
        except ValueError as error:
            raise UserFileError(path, None, f"is not sound JSON: {error}", "Correct the file.") from None

    def lines(self, path: Path, stream: BinaryIO) -> Iterator[str]:
        """The lines of a stream over the file, such as one that decompresses it; the limit applies to the
        output.
        """
        read, number = 0, 0
        longest = min(self.largest_bytes, MIB)
        while line := stream.readline(longest + 1):
            number += 1
            read += len(line)
            if len(line) > longest:
                raise UserFileError(path, number, f"is longer than {_size(longest)}", self.remedy)
            if read > self.largest_bytes:
                raise UserFileError(path, number, self._too_large(), self.remedy)
            yield _text(
                path, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, number, self.remedy
            )

    def _too_large(self) -> str:
        return f"is larger than {_size(self.largest_bytes)}"


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. All JSON from other people is read with this.

    Also raises ValueError for what the standard leaves open: duplicate keys, NaN and infinities, numbers of more
    than `LONGEST_NUMBER` digits, and nesting deeper than Python supports."""
    try:
        return json.loads(
            text,
            parse_int=_whole,
            parse_constant=_no_constant,
            object_pairs_hook=_object,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _text(path: Path, data: bytes, first_line: int, remedy: str) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise UserFileError(
            path, line, f"is not a UTF-8 text: it has the byte 0x{data[error.start]:02x}", remedy
        ) from None
    if found := _CONTROL.search(text):
        line = first_line + text.count("\n", 0, found.start())
        reason = f"has the control character U+{ord(found[0]):04X}"
        raise UserFileError(path, line, reason, remedy)
    return text


def _whole(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise ValueError(f"it has a number of {len(digits)} digits")
    return int(digits)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"it has {name}, which JSON does not know")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {show_value(key)} stands twice")
        found[key] = value
    return found


def _size(number: int) -> str:
    return f"{number // MIB} MiB" if number >= MIB else f"{number} bytes"
