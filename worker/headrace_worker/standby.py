"""Processes that wait for a slot's next trial, with its program already imported.

    a trial trains → a process is started for the next one → the slot's next trial takes it, or it is discarded
    a trial ends, and its study reuses processes → its process waits → the same

With `reuse` nothing is started ahead, since a trial's process is expected to run the next one too, unless the last
one on these slots did not.

The next trial on a slot is nearly always of the same study, and its program then differs from another start only
in the lease. So a process is taken only by a launch that is equal in everything else: program, environment (and
with it the visible devices), working directory, slots. Any other launch on one of its slots discards it first. So
does a slot that stays idle, and the daemon's end. If each process has folders of its own (`own_folders`), the
standby process has them too, and the trial that takes it runs there. The process itself checks what it imported
(`headrace.trial.standby`), and restarts if a file has changed.

What the module starts during its import carries the standby process's name, where other processes carry their
lease. By that name such a child is found when the process ends, as a trial or discarded, and when the next daemon
on this home starts (`family`).

Memory is limited: one process per grant is started ahead, and none if memory is short. It holds no GPU memory
unless its module allocates some during its import; such a template says `prestart: false`. A reused process holds
what its trials have left on the device: a CUDA context.
"""

import asyncio
import logging
import signal
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import psutil

from headrace.grants import BUNDLE
from headrace_worker import own_folders
from headrace_worker.launch import LEASE_VARIABLE, TRIAL_VARIABLE, Launch
from headrace_worker.logs import AttemptLog
from headrace_worker.process import CannotStartError, TrialProcess
from headrace_worker.reuse_counts import Counts
from headrace_worker.trial_line import TrialLine

log = logging.getLogger(__name__)

IDLE_S = 60.0
LEAVE_S = 2.0
"""How long a process that has run trials may take to exit."""
MEMORY_KEPT_FREE = 0.2
"""No process is started ahead if less than this fraction of the machine's memory is available."""
_ROOM = 384
"""The longest names of a lease and a trial that can replace the placeholders in a standby process's environment."""


@dataclass(slots=True)
class _Standby:
    launch: Launch
    """Without the lease's names."""
    process: TrialProcess
    line: TrialLine
    idle: asyncio.TimerHandle | None = None
    has_run: bool = False
    """Whether it has run a trial: then it may run the exit functions of its program before it ends."""

    def suits(self, launch: Launch) -> bool:
        """Whether it can run a launch, which has no names either."""
        return self.process.runs and own_folders.without(self.launch) == own_folders.without(launch)


class Standbys:
    """The waiting processes of one daemon."""

    def __init__(self, home: Path, *, enabled: bool) -> None:
        self._enabled = enabled
        self._open = True
        self._family = family(home)
        self._ready: dict[tuple[int, ...], _Standby] = {}
        self._starting: dict[tuple[int, ...], asyncio.Task[None]] = {}
        # Those that have run a trial; several where slots are shared.
        self._reused: dict[tuple[int, ...], list[_Standby]] = {}
        # Slots whose trial ended before their standby process had started.
        self._idle: set[tuple[int, ...]] = set()
        # Slots whose last process with `reuse` ran no other trial.
        self._spent: set[tuple[int, ...]] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self.counts = Counts()

    def prepare(self, launch: Launch, slots: tuple[int, ...]) -> None:
        """Starts a process for the next trial on these slots, unless there is one or none is expected to be needed."""
        needed = not launch.reuse or slots in self._spent
        if (
            self._enabled
            and needed
            and launch.target
            and slots not in self._ready
            and slots not in self._starting
        ):
            self._starting[slots] = asyncio.create_task(self._start(_nameless(launch), slots))

    async def acquire(
        self, launch: Launch, slots: tuple[int, ...], attempt_log: AttemptLog
    ) -> TrialProcess | None:
        """Turns a waiting process into the launch's process; None if none is suitable.

        Unsuitable ones, on any of the slots, are gone when this returns.
        """
        self._idle.discard(slots)
        wanted = _nameless(launch)
        for found in self._suitable(wanted, slots):
            if process := await self._take(found, launch, attempt_log):
                self.counts.again += 1
                return process
        if starting := self._starting.get(slots):
            await asyncio.wait({starting})
        ready = self._ready.get(slots)
        if ready is not None and ready.suits(wanted):
            del self._ready[slots]
            if process := await self._take(ready, launch, attempt_log):
                return process
        held = {*self._ready, *self._starting, *self._reused}
        await asyncio.gather(*(self._throw_away(one) for one in held if set(one) & set(slots)))
        return None

    def _suitable(self, wanted: Launch, slots: tuple[int, ...]) -> Iterator[_Standby]:
        """Takes out the processes that have run a trial and can run this one, the last first."""
        held = self._reused.get(slots, [])
        while fit := next((one for one in reversed(held) if one.suits(wanted)), None):
            held.remove(fit)
            yield fit

    async def _take(self, found: _Standby, launch: Launch, attempt_log: AttemptLog) -> TrialProcess | None:
        """Makes it the launch's process; None if it is gone."""
        if found.idle is not None:
            found.idle.cancel()
        if not found.line.give(_named(launch), own_folders.names(found.launch), attempt_log):
            await _end(found)
            return None
        if not launch.reuse:
            found.line.close()
        line = found.line if launch.reuse else None
        return replace(found.process, marks=(found.process.marks[0], launch.env[LEASE_VARIABLE]), line=line)

    async def spawn(self, launch: Launch, attempt_log: AttemptLog) -> TrialProcess:
        """Starts the launch's process, which may run further trials. Raises `CannotStartError`."""
        found = await _spawn(launch, _nameless(launch), self._family, attempt_log.file)
        # If it has ended already, its exit status says why.
        found.line.give(_named(launch), own_folders.names(launch), attempt_log)
        marks = (found.process.marks[0], launch.env[LEASE_VARIABLE])
        return replace(found.process, marks=marks, line=found.line)

    async def keep(self, process: TrialProcess, slots: tuple[int, ...]) -> None:
        """A process offers itself for another trial. It is ended if the daemon keeps none."""
        assert process.line is not None
        assert process.launch is not None
        waiting = replace(process, marks=process.marks[:1], line=None)
        found = _Standby(process.launch, waiting, process.line, has_run=True)
        self._spent.discard(slots)
        if not self._open:
            await _end(found)
            return
        self._reused.setdefault(slots, []).append(found)
        self._arm(found, slots)

    def spent(self, slots: tuple[int, ...], kind: str) -> None:
        """A process with `reuse` ran its last trial on these slots, for this kind of reason."""
        self._spent.add(slots)
        self.counts.ended(kind)

    def idle(self, slots: tuple[int, ...]) -> None:
        """A trial on these slots is over: their standby process stays a little longer."""
        if slots in self._starting:
            self._idle.add(slots)
        elif found := self._ready.get(slots):
            self._arm(found, slots)

    async def close(self) -> None:
        """Ends all waiting processes, and starts and keeps no more."""
        self._enabled = self._open = False
        held = {*self._ready, *self._starting, *self._reused}
        await asyncio.gather(*(self._throw_away(slots) for slots in held))
        await asyncio.gather(*self._leaving)

    async def end_waiting(self, variable: str) -> None:
        """Ends the waiting processes that were started with this variable in their environment."""
        held = {
            slots
            for slots, found in self._reused.items()
            if any(variable in standby.launch.env for standby in found)
        }
        await asyncio.gather(*map(self._throw_away, held))

    def reopen(self, *, enabled: bool) -> None:
        """Keeps and starts processes again for later trials, after a `close`."""
        self._enabled, self._open = enabled, True

    async def _start(self, launch: Launch, slots: tuple[int, ...]) -> None:
        launch = own_folders.of_another_process(launch)
        try:
            memory = psutil.virtual_memory()
            if memory.available >= MEMORY_KEPT_FREE * memory.total:
                if own_folders.has_some(launch):
                    await asyncio.to_thread(own_folders.make, launch)
                self._ready[slots] = started = await _spawn(launch, launch, self._family)
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
        standby.idle = asyncio.get_running_loop().call_later(IDLE_S, self._expire, standby, slots)

    def _expire(self, standby: _Standby, slots: tuple[int, ...]) -> None:
        if self._ready.get(slots) is standby:
            del self._ready[slots]
        elif standby in (held := self._reused.get(slots, [])):
            held.remove(standby)
        else:
            return
        task = asyncio.create_task(_end(standby))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _throw_away(self, slots: tuple[int, ...]) -> None:
        if starting := self._starting.get(slots):
            await asyncio.wait({starting})
        found = self._reused.pop(slots, [])
        if ready := self._ready.pop(slots, None):
            found.append(ready)
        await asyncio.gather(*map(_end, found))


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


def _named(launch: Launch) -> dict[str, str]:
    return {name: launch.env[name] for name in _names(launch)}


async def _spawn(launch: Launch, nameless: Launch, family: str, output: BinaryIO | None = None) -> _Standby:
    """Starts a process that imports its program and then waits for its trial; with `output` one that waits first, and
    prints there."""
    ours, theirs = TrialLine.pair()
    waits = ("--standby", str(theirs.fileno()), launch.target, launch.working_dir)
    reuse = ("--reuse",) if launch.reuse else ()
    arguments = (*waits, *reuse) if output is None else (*reuse, str(theirs.fileno()))
    nobody = f"{family}{uuid.uuid4().hex}".ljust(_ROOM, ".")  # its own: it marks what the process starts
    env = {**launch.env, **dict.fromkeys(_names(launch), nobody)}
    with theirs, nullcontext(output) if output else tempfile.TemporaryFile() as printed:
        try:
            process = await TrialProcess.spawn(
                replace(launch, args=(*launch.args, *arguments), env=env),
                printed,
                inherited=(theirs.fileno(),),
            )
        except BaseException:
            ours.close()
            raise
    return _Standby(nameless, replace(process, launch=nameless), ours)


async def _end(standby: _Standby) -> None:
    if standby.idle is not None:
        standby.idle.cancel()
    standby.line.close()
    if standby.has_run:
        with suppress(TimeoutError):
            await asyncio.wait_for(standby.process.wait(), LEAVE_S)
    standby.process.send(signal.SIGKILL)
    await standby.process.wait()
    await standby.process.group_gone()
    await _clear(standby.launch)


async def _clear(launch: Launch) -> None:
    if own_folders.has_some(launch):
        await asyncio.to_thread(own_folders.clear, launch)
