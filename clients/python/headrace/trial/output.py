"""A trial's output goes to its log. A full disk there must not make the training fail.

If the disk is full, `print` raises `OSError` in the middle of a training loop. Here such output is dropped
instead, and once there is space again a line says how much was dropped.
"""

import errno
import io
import os
import sys

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PatientOutput(io.RawIOBase):
    """A writable descriptor; output that does not fit is dropped and counted."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._dropped = 0

    def fileno(self) -> int:
        """The descriptor, for code that writes to it directly."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether the descriptor is a terminal."""
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        """True: it is only for writing."""
        return True

    # The base class's signature has a type for buffers that does not exist before Python 3.12.
    def write(self, data: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        """Write some of the data, or drop all of it."""
        view = memoryview(data)
        try:
            if self._dropped:
                os.write(self._descriptor, f"[{self._dropped} bytes were lost: the disk was full]\n".encode())
                self._dropped = 0
            return os.write(self._descriptor, view)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self._dropped += view.nbytes
            return view.nbytes


def print_patiently() -> None:
    """Make `sys.stdout` and `sys.stderr` write line by line, and survive a full disk."""
    sys.stdout = _stream(1)
    sys.stderr = _stream(2)


def _stream(descriptor: int) -> io.TextIOWrapper:
    raw: io.RawIOBase = PatientOutput(descriptor)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
