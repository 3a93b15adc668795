"""How a process that waits for a trial gets one from its worker daemon, and offers itself for another.

    the daemon's message: the names of the lease, and the log → the trial runs
      → a plain process ends
      → one that is reused says what its trial left behind, if anything: then it ends, else it waits again

The names are those of the environment variables that differ from lease to lease. While the process waits, their
values are the name that the daemon started it with: the daemon finds its processes by them, in /proc/PID/environ
too.
"""

import ctypes
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from headrace.bounds.sessions import WARNING
from headrace.trial import title
from headrace.trial.leaving import leave

REUSE = "--reuse"
"""The option of a program that runs several trials; the descriptor of its connection follows."""
_MESSAGE_BYTES = 1 << 16


class Handover:
    """The connection to the daemon."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._daemon = socket.socket(fileno=descriptor)
        self._waiting: dict[str, str] = {}
        self.variables: Mapping[str, str] = {}
        """The names of the present lease."""
        self.folders: Sequence[str] = ()
        """The folders that only this process has."""

    def wait(self) -> int:
        """Waits for a trial, and takes its names; returns a descriptor of its log. A process that is no longer
        needed ends here, without a trace."""
        message, descriptors = b"", list[int]()
        with suppress(ConnectionError):
            message, descriptors, _, _ = socket.recv_fds(self._daemon, _MESSAGE_BYTES, 1)
        if not message and self._waiting:
            leave(0)  # trials have run here: what is registered for the exit of the process is theirs
        if not message:
            os._exit(0)
        word = json.loads(message)
        self.variables, self.folders = word["names"], word["folders"]
        if not self._waiting:
            self._waiting = {name: os.environ[name] for name in self.variables if name in os.environ}
        return descriptors[0]

    def take_names(self) -> None:
        """From now on, the process carries the names of its lease."""
        _rename(self.variables)

    def close(self) -> None:
        """The daemon gives this process no further trial."""
        self._daemon.close()

    def end(self, left_behind: str, kind: str = "") -> None:
        """Says why this process runs no further trial: because a trial `left` something, changed the `state` of its
        modules or a `setting` for good, because its `code` has changed, or as it has run `many`."""
        self._say(left_behind=WARNING.kept(left_behind), kind=kind)
        self.close()

    def offer(self, expected: Sequence[int] = ()) -> int:
        """Offers the process for another trial, and waits for it; returns a descriptor of its log. `expected` are the
        processes that may run meanwhile: those of its gang, and resource trackers."""
        _flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.close(nowhere)
        _rename(self._waiting)
        title.show_waiting()
        self._say(waits=True, expected=expected)
        return self.wait()

    def _say(
        self, *, waits: bool = False, left_behind: str = "", kind: str = "", expected: Sequence[int] = ()
    ) -> None:
        word = {"waits": waits, "left_behind": left_behind, "kind": kind, "expected": expected}
        with suppress(OSError):  # the daemon is gone, and this process soon
            self._daemon.send(json.dumps(word).encode())


def turn_to(log: int) -> int:
    """Sends all output to the log from now on; returns a descriptor of the earlier output."""
    _flush()
    before = os.dup(1)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    return before


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)


def _rename(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        _rename_in_place(name, value)
        os.environ[name] = value


def _rename_in_place(name: str, value: str) -> None:
    """Overwrites a variable where the kernel shows it, in /proc/PID/environ, where the daemon looks for a
    trial's processes.

    The daemon left space. The remainder is filled with a nameless entry, because readers stop at an empty one.
    """
    place = _places.get(name)
    if place is None:
        libc = ctypes.CDLL(None)
        libc.getenv.restype = ctypes.c_void_p
        address = libc.getenv(name.encode())
        if address is None:
            return
        place = _places[name] = (address, len(ctypes.string_at(address)))
    address, room = place
    data = os.fsencode(value)
    if len(data) + 1 < room:
        data += b"\0" + b"." * (room - len(data) - 1)
    ctypes.memmove(address, data, min(len(data), room))


_places: dict[str, tuple[int, int]] = {}
"""Where each variable is in the environment that the process was started with, and how long its value may be. C's
own `getenv` finds another place once Python has set the variable."""
