"""A trial's process that is started before its trial is known.

    the daemon starts it for a slot → it imports the study's module → it waits → it becomes the trial's process

It waits for one message on an inherited socket (`handover`): the variables that name the lease and, as a descriptor,
the trial's log. From then on it is indistinguishable from a process that was started for the trial: the log starts
with what it printed while it imported, its environment (including the one visible in /proc) names the lease, its
title in `ps` names the trial, and no random generator was seeded before. It runs one trial and ends, like any
other, unless the study reuses processes.

It is used only if what it imported is what would be imported now. If the import failed, or a file that it
executed was touched since, the process restarts itself (exec): the same process id, but none of the old memory.

It trusts local time for one thing: a file whose time is after the start was written after the start. For a file
system with its own clock there is a second check, against the files as they were right after the import.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from headrace import sources
from headrace.trial import title
from headrace.trial.handover import REUSE, Handover, turn_to
from headrace.trial.leaving import remember_files
from headrace.trial.output import PatientOutput
from headrace.trial.target import import_target

STANDBY = "--standby"
_CHUNK_BYTES = 1 << 16
_INSTALLED_EVERY_S = 10.0
"""How often the files of installed packages are compared between two trials."""
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


def arrive(arguments: list[str]) -> tuple[Ready | None, Handover | None]:
    """Waits for a trial, if this process was not started for one. Returns what was imported ahead, and the
    connection over which a process gets further trials.

    `arguments` are the program's; those for this function are removed from them.
    """
    match arguments[1:]:
        case [option, descriptor, target, working_dir, *more] if option == STANDBY:
            del arguments[1:5]
            if more[:1] == [REUSE]:
                del arguments[1]
            handover = Handover(int(descriptor))
            ready = _stand_by(handover, target, working_dir)
            if more[:1] != [REUSE]:
                handover.close()
                return ready, None
            return ready, handover
        case [option, descriptor, *_] if option == REUSE:
            del arguments[1:3]
            handover = Handover(int(descriptor))
            os.close(turn_to(handover.wait()))
            handover.take_names()
            return None, handover
        case _:
            return None, None


def _stand_by(handover: Handover, target: str, working_dir: str) -> Ready:
    """Imports, waits and returns as the trial's process."""
    title.show_standby(target)
    if working_dir:
        sources.watch(working_dir)
    environment, home, code = dict(os.environ), Path().stat(), Code()
    function = None
    # Whatever the error is, the restarted process meets it again, and reports it.
    with suppress(BaseException):
        function = import_target(target, working_dir)
    code.look()
    remember_files()
    printed = turn_to(handover.wait())
    environment |= handover.variables
    if function is None or code.touched() or not _still_at(home, working_dir):
        start_anew(environment, working_dir)
    handover.take_names()
    return Ready(function, target, working_dir, printed)


def start_anew(environment: Mapping[str, str], working_dir: str) -> NoReturn:
    """Restarts the process for the trial that it has: the same process id, but none of the old memory. It runs no
    other trial afterwards."""
    try:
        os.chdir(working_dir or ".")
    except OSError as error:
        print(f"working_dir {working_dir!r} cannot be entered: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(1)
    os.execve(sys.executable, [sys.executable, "-m", "headrace.trial.process"], environment)  # noqa: S606 - no shell


class Code:
    """The files that this process has executed, each as it was when it was first seen."""

    def __init__(self) -> None:
        self._began_ns = time.time_ns()
        self._files: dict[str, _State | None] = {}
        self._own: list[str] = []
        self._seen = (0, 0)
        self._all_looked_at_s = time.monotonic()

    def look(self) -> None:
        """Records the files of all modules, and of other executed files, that are not recorded yet."""
        executed = sources.executed()
        if self._seen == (seen := (len(sys.modules), len(executed))):
            return
        self._seen = seen
        named = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        for file in (*named, *executed):
            if isinstance(file, str) and file not in self._files:
                self._files[file] = _state(file)
        self._own = [file for file in self._files if not sources.is_installed(file)]

    def touched(self, *, quickly: bool = False) -> str:
        """A file that has changed, or may have, since it was executed; empty if there is none.

        `quickly` leaves out installed packages most of the time: they are a thousand files, and change when somebody
        installs something.
        """
        now_s = time.monotonic()
        if quickly and now_s - self._all_looked_at_s < _INSTALLED_EVERY_S:
            return self._first_touched(self._own)
        self._all_looked_at_s = now_s
        return self._first_touched(self._files)

    def _first_touched(self, files: Iterable[str]) -> str:
        for file in files:
            before, now = self._files[file], _state(file)
            if now != before or (now is not None and max(now[0], now[1]) >= self._began_ns):
                return file
        return ""


def _state(file: str) -> _State | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - there are a thousand, and a slot waits for them
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _still_at(home: os.stat_result, working_dir: str) -> bool:
    """Whether the working directory is still the one of this process: it may have been recreated."""
    try:
        return os.path.samestat(home, Path(working_dir).stat())
    except OSError:
        return False
