"""A trial's process that is started before its trial is known.

    the daemon starts it for a slot → it imports the study's module → it waits → it becomes the trial's process

It waits for one message on an inherited socket: the variables that name the lease and, as a descriptor, the
trial's log. From then on it is indistinguishable from a process that was started for the trial: the log starts
with what it printed while it imported, its environment (including the one visible in /proc) names the lease, its
title in `ps` names the trial, and no random generator was seeded before. It runs one trial and ends, like any
other.

It is used only if what it imported is what would be imported now. If the import failed, or a file that it
executed was touched since, the process restarts itself (exec): the same process id, but none of the old memory.

It trusts local time for one thing: a file whose time is after the start was written after the start. For a file
system with its own clock there is a second check, against the files as they were right after the import.
"""

import ctypes
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from headrace import sources
from headrace.trial import title
from headrace.trial.leaving import remember_files
from headrace.trial.output import PatientOutput
from headrace.trial.target import import_target

OPTION = "--standby"
_MESSAGE_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 16
_State = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Ready:
    """A process that has become its trial's."""

    function: Callable[..., Any]
    target: str
    working_dir: str
    _printed: int

    def show_what_was_printed(self) -> None:
        """Writes the output of the import to the log, after the line that names the trial."""
        sys.stdout.flush()
        sys.stderr.flush()
        os.lseek(self._printed, 0, os.SEEK_SET)
        log = PatientOutput(1)
        while chunk := os.read(self._printed, _CHUNK_BYTES):
            while chunk:
                chunk = chunk[log.write(chunk) :]
        os.close(self._printed)


def stand_by(arguments: list[str]) -> Ready | None:
    """Imports, waits and returns as the trial's process; None for a process that was started for its trial.

    `arguments` are the program's; those for this function are removed from them.
    """
    if arguments[1:2] != [OPTION]:
        return None
    descriptor, target, working_dir = int(arguments[2]), *arguments[3:5]
    del arguments[1:5]
    os.set_inheritable(descriptor, False)
    title.show_standby(target)
    if working_dir:
        sources.watch(working_dir)
    environment, home, started_ns = dict(os.environ), Path().stat(), time.time_ns()
    function = None
    # Whatever the error is, the restarted process meets it again, and reports it.
    with suppress(BaseException):
        function = import_target(target, working_dir)
    files = _files()
    remember_files()
    variables, log = _wait(descriptor)
    printed = _turn_to(log)
    environment |= variables
    if function is None or _touched(files, started_ns) or not _still_at(home, working_dir):
        _start_anew(environment, working_dir)
    for name, value in variables.items():
        _rename_in_place(name, value)
        os.environ[name] = value
    return Ready(function, target, working_dir, printed)


def _wait(descriptor: int) -> tuple[dict[str, str], int]:
    """Waits for the daemon's message. A process that is no longer needed ends here, without a trace."""
    with socket.socket(fileno=descriptor) as daemon:
        message, descriptors, _, _ = socket.recv_fds(daemon, _MESSAGE_BYTES, 1)
    if not message:
        os._exit(0)
    return json.loads(message), descriptors[0]


def _turn_to(log: int) -> int:
    """Sends all output to the log from now on; returns a descriptor of the earlier output."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    printed = os.dup(1)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    return printed


def _start_anew(environment: Mapping[str, str], working_dir: str) -> NoReturn:
    try:
        os.chdir(working_dir or ".")
    except OSError as error:
        print(f"working_dir {working_dir!r} cannot be entered: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(1)
    os.execve(sys.executable, [sys.executable, "-m", "headrace.trial.process"], environment)  # noqa: S606 - no shell


def _files() -> dict[str, _State | None]:
    """The current state of the files of all modules, and of other executed files."""
    named = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return {file: _state(file) for file in (*named, *sources.executed()) if isinstance(file, str)}


def _state(file: str) -> _State | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - there are a thousand, and a slot waits for them
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _touched(files: Mapping[str, _State | None], started_ns: int) -> bool:
    for file, before in files.items():
        now = _state(file)
        if now != before or (now is not None and max(now[0], now[1]) >= started_ns):
            return True
    return False


def _still_at(home: os.stat_result, working_dir: str) -> bool:
    """Whether the working directory is still the one of this process: it may have been recreated."""
    try:
        return os.path.samestat(home, Path(working_dir).stat())
    except OSError:
        return False


def _rename_in_place(name: str, value: str) -> None:
    """Overwrites a variable where the kernel shows it, in /proc/PID/environ, where the daemon looks for a
    trial's processes.

    The daemon left space. The remainder is filled with a nameless entry, because readers stop at an empty one.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    place = libc.getenv(name.encode())
    if place is None:
        return
    room = len(ctypes.string_at(place))
    data = os.fsencode(value)
    if len(data) + 1 < room:
        data += b"\0" + b"." * (room - len(data) - 1)
    ctypes.memmove(place, data, min(len(data), room))
