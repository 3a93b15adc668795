"""Trial processes: spawned in their own session, ended as a group.

The daemon never runs Python code in a forked child (gRPC has threads). It executes `shim.py` at once, which does
in a fresh interpreter what must be done before the program. PR_SET_PDEATHSIG fires when the *thread* that spawned
the child ends, so processes are spawned on the event loop's thread, the main one, which lives as long as the
daemon.

A group is gone when none of its processes is left. Zombies do not count, because in a container without an init
nobody may ever reap them. A process that left the group (a program that calls setsid) is identified by the lease
in its environment, which it inherited. It is ended too, so that it does not hold on to the GPU. What a standby
process started before it had a lease carries the name that was there in the lease's place (`standby`). A process
may clear its environment; if trials run as another user, it is also identified by a group that it cannot leave
(`own_groups`). One that forks and exits faster than it is found is ended with its control group, if there is one
(`control_groups`).
"""

import asyncio
import errno
import logging
import os
import signal
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import psutil

from headrace_worker import control_groups, own_groups
from headrace_worker.job_signals import TermMark, in_batch_job
from headrace_worker.launch import LEASE_VARIABLE, Launch
from headrace_worker.outbox import RecordedLease
from headrace_worker.own_groups import Group
from headrace_worker.run_as import in_group, uid_of
from headrace_worker.trial_line import TrialLine

log = logging.getLogger(__name__)
_SHIM = Path(__file__).with_name("shim.py")
_ENVIRON_BYTES = 1 << 14
_STATUS_BYTES = 4096
_OF_INTERPRETERS = ("LD_LIBRARY_PATH",)
"""What the daemon's own interpreter may need to start, and so the shim's."""
_POLL_S = (0.01, 0.5)
_START_TOLERANCE_S = 2.0
_TOO_LONG = frozenset({errno.E2BIG, errno.ENAMETOOLONG})
"""The errors that a study's command line or environment can cause."""
_OF_THE_MACHINE = frozenset(
    {
        *(errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT),
        *(errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    }
)
"""Why a program that exists cannot be started: no memory or process slots, a disk or a file server that fails."""


class CannotStartError(Exception):
    """The program could not be started; the text is for the user. `by_machine`: another machine could start it, or
    this one later."""

    def __init__(self, text: str, *, by_machine: bool = False) -> None:
        super().__init__(text)
        self.by_machine = by_machine


@dataclass(slots=True)
class TrialProcess:
    """A running program, the leader of its own process group and session."""

    pid: int
    # What its descendants may have in their environment as their lease.
    marks: tuple[str, ...]
    # When it started, by the kernel's clock, to recognise it after the daemon restarts.
    started: float
    _process: asyncio.subprocess.Process
    # The group that only it and its descendants have; None if it runs as the daemon's user.
    group: Group | None = None
    # The control group that only they are in; None if there is none.
    control_group: Path | None = None
    # How it was started.
    launch: Launch | None = None
    # The connection to a process that waits for a trial, or for another one.
    line: TrialLine | None = None
    # Set before SIGTERM is sent, if others may send it too; None if they do not.
    term_mark: TermMark | None = None

    @classmethod
    async def spawn(cls, launch: Launch, output: BinaryIO, inherited: tuple[int, ...] = ()) -> "TrialProcess":
        """Starts a program, with our own descriptors; returns when it runs. Raises `CannotStartError`."""
        read_end, write_end = os.pipe()
        user, group, control_group = launch.user, None, None
        if user and own_groups.exist():
            group = Group(own_groups.of_new_process(), uid=uid_of(user))
            user = in_group(user, group.number)
            control_group = control_groups.make(own_groups.among(user))
        mark = TermMark() if in_batch_job(os.environ) else None
        if mark is not None:
            inherited = (*inherited, mark.descriptor)
        try:
            with _readable({**launch.env, **(mark.variables if mark else {})}) as environment:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", str(_SHIM)),
                    *(str(os.getpid()), str(write_end), str(environment.fileno())),
                    *(_umask(launch), user, str(control_group or ""), launch.working_dir),
                    *launch.args,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={name: os.environ[name] for name in _OF_INTERPRETERS if name in os.environ},
                    start_new_session=True,
                    pass_fds=(write_end, environment.fileno(), *inherited),
                )
        except (OSError, ValueError) as error:  # too many processes; a NUL in an argument
            os.close(read_end)
            if mark is not None:
                mark.close()
            if control_group is not None:
                control_groups.remove(control_group)
            number = error.errno if isinstance(error, OSError) else None
            raise CannotStartError(
                f"program {launch.args[0]!r} cannot be started: {error}",
                # The shim is the worker's own: no study is at fault if it is missing, nor for a lack of processes.
                by_machine=number is not None and number not in _TOO_LONG,
            ) from error
        finally:
            os.close(write_end)
        try:
            problem = await asyncio.to_thread(_read_all, read_end)
        except asyncio.CancelledError:
            send(process.pid, signal.SIGKILL)
            if mark is not None:
                mark.close()
            if control_group is not None:
                await control_groups.end(control_group)
            raise
        if problem:
            await process.wait()
            if mark is not None:
                mark.close()
            if control_group is not None:
                await control_groups.end(control_group)
            code, _, text = problem.partition(" ")
            raise CannotStartError(text, by_machine=int(code) in _OF_THE_MACHINE)
        lease = launch.env.get(LEASE_VARIABLE, "")
        marks = (lease,) if lease else ()
        started = _start_time(process.pid)
        return cls(process.pid, marks, started, process, group, control_group, launch, term_mark=mark)

    @property
    def runs(self) -> bool:
        """Whether the leader is still running, as far as is known."""
        return self._process.returncode is None

    async def wait(self) -> int:
        """Waits for the leader; a negative code is a signal."""
        return await self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """Signals the whole group; nothing happens if it is gone."""
        if number == signal.SIGTERM and self.term_mark is not None:
            self.term_mark.set()
        send(self.pid, number)

    def others(self, expected: Collection[int]) -> list[int]:
        """The running processes that it has started, in its group or session or with its lease, except those that are
        expected. Safe in any thread."""
        found = {process.pid for process in _members(self.pid) if alive(process)}
        found.update(stray.pid for stray in _strays(self.marks, "", self.group))
        return sorted(found - {self.pid, *expected})

    async def group_gone(self) -> None:
        """Kills what the leader left behind and waits until none of it is left."""
        if self.control_group is not None:
            await control_groups.end(self.control_group)
        await end_group(self.pid)
        await end_strays(*self.marks, group=self.group)
        if self.term_mark is not None:
            self.term_mark.close()


def _readable(env: Mapping[str, str]) -> BinaryIO:
    """A nameless file that holds an environment, positioned at its start. Raises `ValueError` for an invalid
    environment."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"environment variable {name!r} has a name or a value that no process can have")
    file = os.fdopen(os.memfd_create("environment"), "w+b")
    file.write(b"\0".join(os.fsencode(f"{name}={value}") for name, value in env.items()))
    file.seek(0)
    return file


def _umask(launch: Launch) -> str:
    return "" if launch.umask is None else f"{launch.umask:o}"


def send(group: int, number: signal.Signals) -> None:
    """Signals a process group, if it exists."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


async def end_group(group: int) -> None:
    """Kills a process group and waits, however long it takes, until none of it is left."""
    pause_s, longest_s = _POLL_S
    while _running(group):
        send(group, signal.SIGKILL)
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, longest_s)


async def end_strays(*marks: str, family: str = "", group: Group | None = None) -> None:
    """Kills every process that has one of the leases in its environment, or has the group, and waits until none of
    them is left.

    `family` is a prefix of names that were used in a lease's place; processes with such a name are killed too.
    """
    pause_s, longest_s = _POLL_S
    while strays := await asyncio.to_thread(_kill_strays, marks, family, group):
        log.warning("killed %s, which had left the trial's process group", strays)
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, longest_s)


def bury(recorded: RecordedLease) -> list[int]:
    """Kills what is left of a group that an earlier daemon started; returns the pids that were killed.

    A pid may have been reused since. A process is killed only if the group's leader is still the process that was
    started then, or if the process itself has the lease in its environment.
    """
    pid, started = recorded.pid, recorded.started
    if pid is None or started is None:  # it died before its process was recorded
        return []
    members = _members(pid)
    leader_is_ours = any(p.pid == pid and abs(_created(p) - started) < _START_TOLERANCE_S for p in members)
    killed = []
    for process in members:
        if leader_is_ours or _carries(process, recorded.carried):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process.kill()  # psutil checks the start time again
                killed.append(process.pid)
    return killed


def _running(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return any(alive(process) for process in _members(group))


def _members(group: int) -> list[psutil.Process]:
    found = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getpgid(pid) == group or os.getsid(pid) == group:
                found.append(psutil.Process(pid))
    return found


def _kill_strays(marks: Collection[str], family: str, group: Group | None) -> list[int]:
    """Kills processes that have a lease or a group, each at once: some fork faster than all can be checked. Returns
    their ids."""
    killed = []
    for stray in _strays(marks, family, group):
        with suppress(psutil.Error):
            stray.kill()
            killed.append(stray.pid)
    return killed


def _strays(marks: Collection[str], family: str, group: Group | None) -> Iterator[psutil.Process]:
    """The running processes that have a lease or a group, the newest first. A freed slot waits for this, so the files
    are read directly and not through psutil."""
    entries = {f"{LEASE_VARIABLE}={mark}".encode() for mark in marks}
    beginning = f"{LEASE_VARIABLE}={family}".encode() if family else None
    if not entries and beginning is None and group is None:
        return
    within = entries if beginning is None else {*entries, beginning}

    def is_one(pid: int) -> bool:
        if group is not None and group.has(pid):
            return True
        text = _environ(pid)
        if not any(entry in text for entry in within):  # nearly always
            return False
        environ = text.split(b"\0")
        return not entries.isdisjoint(environ) or (
            beginning is not None and any(entry.startswith(beginning) for entry in environ)
        )

    for pid in sorted(psutil.pids(), reverse=True):
        with suppress(OSError, psutil.Error):
            if is_one(pid) and alive(stray := psutil.Process(pid)):
                yield stray


def _environ(pid: int) -> bytes:
    """What a process was started with. A Python file object would cost as much as all the rest. Raises `OSError`."""
    descriptor = os.open(f"/proc/{pid}/environ", os.O_RDONLY)
    try:
        text = b""
        while part := os.read(descriptor, _ENVIRON_BYTES):
            text += part
        return text
    finally:
        os.close(descriptor)


def alive(process: psutil.Process) -> bool:
    """Whether one of its threads runs: the first may end before the others, and the process then looks like a
    zombie."""
    try:
        if process.status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
            return True
        return any(_runs(task) for task in Path(f"/proc/{process.pid}/task").iterdir())
    except (psutil.NoSuchProcess, OSError):
        return False


def _runs(task: Path) -> bool:
    with suppress(OSError, IndexError):
        return (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    return False


def _created(process: psutil.Process) -> float:
    try:
        return process.create_time()
    except psutil.NoSuchProcess:
        return 0.0


def _carries(process: psutil.Process, lease_id: str) -> bool:
    try:
        return process.environ().get(LEASE_VARIABLE) == lease_id
    except (psutil.Error, OSError):
        return False


def _start_time(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return 0.0


def _read_all(descriptor: int) -> str:
    with os.fdopen(descriptor, "rb") as pipe:
        return pipe.read(_STATUS_BYTES).decode(errors="replace")
