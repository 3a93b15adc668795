"""Wakes a process that sleeps on a word in shared memory: Linux futexes. A lost wake-up costs one window.

`wake` keeps Python's global lock, because a rank must not hand it to another of its threads; `wait` releases it.
"""

import ctypes
import errno
import mmap
import platform
import time
from typing import Final

_CALL: Final = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_WAIT: Final = 0
_WAKE: Final = 1
_EVERYBODY: Final = 2**31 - 1
_POLL_S: Final = 0.001

AVAILABLE: Final = platform.system() == "Linux" and _CALL is not None
"""If false, `wait` polls every millisecond, and `wake` does nothing."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_keeping: Final = ctypes.PyDLL(None).syscall if AVAILABLE else None
_releasing: Final = ctypes.CDLL(None, use_errno=True).syscall if AVAILABLE else None


class Futex:
    """The low half of one 64-bit word of a mapped file, which processes sleep on."""

    def __init__(self, mapped: mmap.mmap, word: int) -> None:
        """`word` is the index of the word. The map must live as long as this."""
        self._value = ctypes.c_uint32.from_buffer(mapped, 8 * word)
        self._address = ctypes.c_void_p(ctypes.addressof(self._value))
        self._number, self._wake, self._all = (
            ctypes.c_long(_CALL or 0),
            ctypes.c_int(_WAKE),
            ctypes.c_int(_EVERYBODY),
        )

    def wake(self) -> None:
        """Wakes every process that sleeps on the word. One system call of about a microsecond; it never blocks."""
        if _keeping is not None:
            _keeping(self._number, self._address, self._wake, self._all, None, None, 0)

    def wait(self, value: int, timeout_s: float) -> None:
        """Sleeps until woken, until the word is no longer `value`, or until the timeout.

        Args:
            value: the low 32 bits that were read.
            timeout_s: the longest sleep.
        """
        if _releasing is None:
            end = time.monotonic() + timeout_s
            while self._value.value == value & 0xFFFFFFFF and time.monotonic() < end:
                time.sleep(_POLL_S)
            return
        limit = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
        failed = _releasing(
            self._number,
            self._address,
            ctypes.c_int(_WAIT),
            ctypes.c_uint32(value & 0xFFFFFFFF),
            ctypes.byref(limit),
            None,
            0,
        )
        if failed and ctypes.get_errno() not in (errno.EAGAIN, errno.ETIMEDOUT, errno.EINTR):
            raise OSError(ctypes.get_errno(), "futex")

    def close(self) -> None:
        """Releases the map, so that it can be closed."""
        del self._value
