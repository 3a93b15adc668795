"""What a trial prints goes to its log; a log's full disk is no reason for training to fail.

`print` raises `OSError` where the disk is full, in the middle of somebody's training loop. Here such output is
dropped instead, and once there is room again a line says how much.
"""

import errno
import io
import os
import sys

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PatientOutput(io.RawIOBase):
    """A descriptor to write to; what finds no room is dropped and counted."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._dropped = 0

    def fileno(self) -> int:
        """The descriptor, for whoever writes to it directly."""
        return self._descriptor

    def isatty(self) -> bool:
        """As the descriptor is."""
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        """It is for writing alone."""
        return True

    # The base class's own signature has a type for buffers that no release before 3.12 can name.
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
