"""Standby processes: one for each busy grant of slots, with the program of the running trial already imported.

    its trial trains → a process is started for the next one → the slot's next trial takes it, or it is discarded

The next trial on a slot is nearly always of the same study, and its program then differs from another start only
in the lease. So a process is taken only by a launch that is equal in everything else: program, environment (and
with it the visible devices), working directory, slots. Any other launch on one of its slots discards it first. So
does a slot that stays idle, and the daemon's end. If each process has folders of its own (`own_folders`), the
standby process has them too, and the trial that takes it runs there. The process itself checks what it imported
(`headrace.trial.standby`), and restarts if a file has changed.

What the module starts during its import carries the standby process's name, where other processes carry their
lease. By that name such a child is found when the process ends, as a trial or discarded, and when the next daemon
on this home starts (`family`).

Memory is limited: one process per grant, and none is started if memory is short. A standby process holds no GPU
memory unless its module allocates some during its import; such a template says `prestart: false`.
"""

import asyncio
import json
import logging
import signal
import socket
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from headrace.grants import BUNDLE
from headrace_worker import own_folders
from headrace_worker.launch import LEASE_VARIABLE, TRIAL_VARIABLE, Launch
from headrace_worker.logs import AttemptLog
from headrace_worker.process import CannotStartError, TrialProcess

log = logging.getLogger(__name__)

IDLE_S = 60.0
MEMORY_KEPT_FREE = 0.2
"""No process is started ahead if less than this fraction of the machine's memory is available."""
_ROOM = 384
"""The longest names of a lease and a trial that can replace the placeholders in a standby process's environment."""


@dataclass(slots=True)
class _Standby:
    launch: Launch
    """Without the lease's names."""
    process: TrialProcess
    line: socket.socket
    idle: asyncio.TimerHandle | None = None


class Standbys:
    """The standby processes of one daemon."""

    def __init__(self, home: Path, *, enabled: bool) -> None:
        self._enabled = enabled
        self._family = family(home)
        self._ready: dict[tuple[int, ...], _Standby] = {}
        self._starting: dict[tuple[int, ...], asyncio.Task[None]] = {}
        # Slots whose trial ended before their standby process had started.
        self._idle: set[tuple[int, ...]] = set()
        self._leaving: set[asyncio.Task[None]] = set()

    def prepare(self, launch: Launch, slots: tuple[int, ...]) -> None:
        """Starts a process for the next trial on these slots, unless there is one."""
        if self._enabled and launch.target and slots not in self._ready and slots not in self._starting:
            self._starting[slots] = asyncio.create_task(self._start(_nameless(launch), slots))

    async def acquire(
        self, launch: Launch, slots: tuple[int, ...], attempt_log: AttemptLog
    ) -> TrialProcess | None:
        """Turns a standby process into the launch's process; None if no standby process is suitable.

        Unsuitable ones, on any of the slots, are gone when this returns.
        """
        self._idle.discard(slots)
        if starting := self._starting.get(slots):
            await asyncio.wait({starting})
        found = self._ready.get(slots)
        if (
            found is not None
            and own_folders.without(found.launch) == own_folders.without(_nameless(launch))
            and found.process.runs
        ):
            del self._ready[slots]
            if _tell(found, launch, attempt_log):
                marks = (*found.process.marks, launch.env[LEASE_VARIABLE])
                return replace(found.process, marks=marks)
            await _end(found)
        unfit = [held for held in {*self._ready, *self._starting} if set(held) & set(slots)]
        await asyncio.gather(*(self._throw_away(held) for held in unfit))
        return None

    def idle(self, slots: tuple[int, ...]) -> None:
        """A trial on these slots is over: their standby process stays a little longer."""
        if slots in self._starting:
            self._idle.add(slots)
        elif found := self._ready.get(slots):
            self._arm(found, slots)

    async def close(self) -> None:
        """Ends all standby processes, and starts no more."""
        self._enabled = False
        await asyncio.gather(*(self._throw_away(slots) for slots in {*self._ready, *self._starting}))
        await asyncio.gather(*self._leaving)

    def reopen(self, *, enabled: bool) -> None:
        """Starts processes again for later trials, after a `close`."""
        self._enabled = enabled

    async def _start(self, launch: Launch, slots: tuple[int, ...]) -> None:
        launch = own_folders.of_another_process(launch)
        try:
            memory = psutil.virtual_memory()
            if memory.available >= MEMORY_KEPT_FREE * memory.total:
                if own_folders.has_some(launch):
                    await asyncio.to_thread(own_folders.make, launch)
                self._ready[slots] = started = await _spawn(launch, self._family)
                if slots in self._idle:
                    self._arm(started, slots)
        except (CannotStartError, OSError) as error:
            await _clear(launch)
            log.debug("no standby process on slots %s: %s", list(slots), error)
        finally:
            del self._starting[slots]
            self._idle.discard(slots)

    def _arm(self, standby: _Standby, slots: tuple[int, ...]) -> None:
        if standby.idle is not None:
            standby.idle.cancel()
        standby.idle = asyncio.get_running_loop().call_later(IDLE_S, self._expire, slots)

    def _expire(self, slots: tuple[int, ...]) -> None:
        task = asyncio.create_task(self._throw_away(slots))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _throw_away(self, slots: tuple[int, ...]) -> None:
        if starting := self._starting.get(slots):
            await asyncio.wait({starting})
        if found := self._ready.pop(slots, None):
            await _end(found)


def family(home: Path) -> str:
    """Returns the prefix of the names of all present and past standby processes of a daemon on this home.

    The folder itself distinguishes two homes: in containers that see each other's processes, paths may be equal.
    Its identity distinguishes it from a new home that replaced a deleted one, whose inode may get the same number.
    """
    found = home.stat()
    try:
        identity = (home / "id").read_text().strip()
    except FileNotFoundError:
        identity = ""
    return f"standby-{found.st_dev:x}-{found.st_ino:x}-{identity}-"


def _nameless(launch: Launch) -> Launch:
    """A launch without the lease: what two launches must have in common to use one process."""
    env: Mapping[str, str] = {**launch.env, **dict.fromkeys(_names(launch), "")}
    return replace(launch, env=env, log_path=launch.log_path.parent)


def _names(launch: Launch) -> list[str]:
    """The variables that say which lease a process belongs to."""
    return [name for name in (LEASE_VARIABLE, TRIAL_VARIABLE, BUNDLE) if name in launch.env]


async def _spawn(launch: Launch, family: str) -> _Standby:
    ours, theirs = socket.socketpair()
    arguments = (*launch.args, "--standby", str(theirs.fileno()), launch.target, launch.working_dir)
    nobody = f"{family}{uuid.uuid4().hex}".ljust(_ROOM, ".")  # its own: it marks what the process starts
    env = {**launch.env, **dict.fromkeys(_names(launch), nobody)}
    with theirs, tempfile.TemporaryFile() as printed:
        try:
            process = await TrialProcess.spawn(
                replace(launch, args=arguments, env=env), printed, inherited=(theirs.fileno(),)
            )
        except BaseException:
            ours.close()
            raise
    ours.setblocking(False)
    return _Standby(launch, process, ours)


def _tell(standby: _Standby, launch: Launch, attempt_log: AttemptLog) -> bool:
    """Tells a process which lease it runs; False if it does not listen any more."""
    if standby.idle is not None:
        standby.idle.cancel()
    names = {name: launch.env[name] for name in _names(launch)}
    try:
        with standby.line as line:
            socket.send_fds(line, [json.dumps(names).encode()], [attempt_log.file.fileno()])
    except OSError:
        return False
    return True


async def _end(standby: _Standby) -> None:
    if standby.idle is not None:
        standby.idle.cancel()
    standby.line.close()
    standby.process.send(signal.SIGKILL)
    await standby.process.wait()
    await standby.process.group_gone()
    await _clear(standby.launch)


async def _clear(launch: Launch) -> None:
    if own_folders.has_some(launch):
        await asyncio.to_thread(own_folders.clear, launch)
