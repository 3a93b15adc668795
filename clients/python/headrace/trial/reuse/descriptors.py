"""The process's open descriptors, compared with those before the trial.

Libraries open some of their own, which stay: gloo a pipe to wake its thread, CUDA devices, pipes and sockets. PyTorch
keeps the sockets of a process's first process group, even after `destroy_process_group`. So a pipe or a socket counts
as the trial's if an object of Python holds it, or if it leads out of this process, CUDA was not initialized by this
trial, and no gang communicates. The connection to the worker daemon is left out, and so are the standard streams 1
and 2, which lead to another log for each trial.
"""

import fcntl
import gc
import os
import socket
import stat
from collections.abc import Iterable, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from headrace.grants import RANK

MOST_NEW: Final = 16
"""New descriptors that are no reason to end a process: libraries open a few, such as for events and devices."""
_FOLDER: Final = "/proc/self/fd"
_LOG: Final = (1, 2)
_WRITES: Final = os.O_WRONLY | os.O_RDWR
_CLOSE: Final = "close it before the function returns, as a `with` statement does"


@dataclass(frozen=True, slots=True)
class _Descriptor:
    """What a descriptor leads to."""

    device: int
    inode: int
    mode: int
    target: str

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode) and not self.target.startswith("/memfd:")

    @property
    def is_channel(self) -> bool:
        """Whether it is a pipe or a socket."""
        return stat.S_ISSOCK(self.mode) or stat.S_ISFIFO(self.mode)


class Descriptors:
    """The open descriptors, as they are to be."""

    def __init__(self, daemon: str = "") -> None:
        """`daemon` is the address of the worker daemon, `unix:PATH`."""
        self._daemon = daemon.removeprefix("unix:").removeprefix("//")
        self._in_gang = RANK in os.environ
        self._open: dict[int, _Descriptor] = {}
        self._of_daemon: set[int] = set()
        self._most: int | None = None

    def take(self) -> None:
        """From now on, those that are open now are to be."""
        self._open = _read()
        if self._most is None:
            self._most = len(self._open) + MOST_NEW
        self._of_daemon = {number for number in self._open if self._leads_to_daemon(number)}

    def changed(self, *, cuda_began: bool = False, known: Set[int] = frozenset()) -> str:
        """The first change that the next trial must not meet; empty if there is none. `known` may be new. What
        may stay is taken as the new state.
        """
        now = _read()
        for number, before in self._open.items():
            if number in _LOG or now.get(number) == before or number in self._of_daemon:
                continue
            if number == 0:
                return "it replaced the standard input: leave descriptor 0 alone"
            if not (before.is_file or stat.S_ISFIFO(before.mode)):
                continue  # a library may close its connections and events, and open others
            return f"it closed descriptor {number} ({before.target}), which was open before: close only what it opens"
        new = {
            number: one
            for number, one in now.items()
            if self._open.get(number) != one
            and number not in {*_LOG, *known}
            and not self._leads_to_daemon(number)
        }
        for number, one in new.items():
            if one.is_file and fcntl.fcntl(number, fcntl.F_GETFL) & _WRITES:
                return f"it left {one.target} open for writing: {_CLOSE}"
        channels = {number: one for number, one in new.items() if one.is_channel}
        held = _held_by_objects() if channels else {}
        for number, one in channels.items():
            of_library = cuda_began or self._in_gang or _is_within(one, now.values())
            if number in held or not of_library:
                what = "a socket" if stat.S_ISSOCK(one.mode) else "a pipe"
                return f"it left {what} open{held.get(number, f' (descriptor {number})')}: {_CLOSE}"
        most = self._most or 0
        if cuda_began:
            self._most = max(most, len(now) + MOST_NEW)
        elif new and len(now) > most:
            first = next(iter(new.values())).target
            return f"it left {len(new)} files open, such as {first}: close them before the function returns"
        self._open = now
        return ""

    def _leads_to_daemon(self, number: int) -> bool:
        if not self._daemon:
            return False
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as one:
                    return one.family == socket.AF_UNIX and one.getpeername() == self._daemon
        return False


def _is_within(one: _Descriptor, others: Iterable[_Descriptor]) -> bool:
    """Whether both ends of a pipe are in this process."""
    ends = [other for other in others if (other.device, other.inode) == (one.device, one.inode)]
    return stat.S_ISFIFO(one.mode) and one.target.startswith("pipe:") and len(ends) > 1


def _read() -> dict[int, _Descriptor]:
    found = {}
    for name in os.listdir(_FOLDER):  # noqa: PTH208 - read after each trial
        with suppress(OSError):  # that of the folder itself is gone
            state, target = os.fstat(int(name)), os.readlink(f"{_FOLDER}/{name}")  # noqa: PTH115
            found[int(name)] = _Descriptor(state.st_dev, state.st_ino, stat.S_IFMT(state.st_mode), target)
    return dict(sorted(found.items()))


def _held_by_objects() -> dict[int, str]:
    """The descriptors that objects of Python hold, each with its class."""
    found: dict[int, str] = {}
    for one in gc.get_objects():
        kind: Any = type(one)
        if kind.__module__ in ("socket", "_io", "multiprocessing.connection", "ssl") and hasattr(
            kind, "fileno"
        ):
            with suppress(Exception):
                found[one.fileno()] = f" (a {kind.__name__})"
    return found
