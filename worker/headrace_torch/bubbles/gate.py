"""The gate of a trial: work passes it in quanta, and only while the stage beside it waits.

A *point* is a place in the trial's step where it can pause: before a layer's forward pass, before its backward
pass, before each part of the optimizer's step. The work from one point to the next is a *quantum*. At a point the
trial continues if the gate is open and

    now + what this quantum takes + guard < the window's predicted end,

and sleeps until the next window otherwise. So it closes by itself at the deadline, without a signal. The time that
a quantum takes is learned for each point, as a maximum that decays by 1/64 with each shorter one; this is about
its 99th percentile. A quantum that was once too long for every window, perhaps because it was the first, is tried
again after 16 windows, then after 32, and so on.

The states of a trial: *going*, in a window; *waiting*, asleep on the gate's word. It publishes its state in shared
memory. If a trial is still going when its gate has been closed for two quanta, the agent stops it with a signal.

On a GPU each point waits for the kernels before it, so that a quantum's work is over when the point says so. None
of this has been run on a GPU yet.
"""

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from headrace_torch.bubble_shm import AT, StageFile, StageFileError, is_alive, started_ticks
from headrace_torch.bubble_shm.futex import Futex
from headrace_torch.bubble_shm.layout import RECORD, RINGS, STRETCH_RING

log = logging.getLogger("headrace.bubbles")

VARIABLE: Final = "HEADRACE_BUBBLE_GATE"
"""The environment variable for the stage's file of a trial in a bubble."""
FIRST_NS: Final = 500_000
"""The assumed duration of a quantum that has never run."""
DECAY: Final = 6
"""A shorter quantum lowers it by 2⁻⁶ of the difference."""
_OUTSIDE: Final = -1
"""The epoch outside any window; a word is never negative."""
PATIENCE: Final = 16
"""Windows that pass before a quantum that fitted none is tried again; the number doubles after each failure."""
MOST_PATIENCE: Final = 1 << 14
STARVED: Final = 64
"""Windows in a row without room for one quantum, before the gate reports it."""
WHOLE: Final = 1 << 16
NAP_S: Final = 0.25
"""The longest sleep at the gate: after it, a lost wake-up or a restarted primary is noticed."""

now: Final = time.monotonic_ns
EPOCH, DEADLINE, CLOSED, LEASE = AT["gate_epoch"], AT["gate_deadline"], AT["gate_closed"], AT["lease"]
HINT_EPOCH, HINT_DEADLINE, GUARD = AT["hint_epoch"], AT["hint_deadline"], AT["guard"]
WAITING, ACKNOWLEDGED = AT["trial_waiting"], AT["trial_acknowledged"]
QUANTUM, USUAL, STRETCHES = AT["trial_quantum"], AT["trial_usual"], AT["trial_stretches"]
HARVESTED, QUANTA = AT["trial_harvested"], AT["trial_quanta"]
OVERRUNS, OVERRUN_LONGEST = AT["trial_overruns"], AT["trial_overrun_longest"]


class GateError(StageFileError):
    """The gate cannot be taken; the message says why, and the remedy."""


class Gate:
    """A trial's gate. Use it as a context manager, or close it. One thread of the trial passes through it.

    Args:
        path: the stage's file. Without one, the gate is always open, so the same script runs anywhere.
        idle_priority: on a CPU stage, let the kernel run the trial only while nobody else wants the core. The trial
            also moves to the rank's cores: others belong to other stages.

    Raises:
        GateError: there is no such file, or another living process has this gate.
    """

    def __init__(self, path: Path | None, *, idle_priority: bool = True) -> None:
        """Takes the gate; the trial counts as going from the first point on."""
        self._file: StageFile | None = None
        self._path, self._idle = path, idle_priority
        self._needs: list[int] = []
        self._key = 0
        self._epoch = _OUTSIDE
        self._until = self._last = 0
        self._wall_began = self._cpu_began = self._lost = 0
        self._lends = False
        """Whether the trial gets the core only while nobody else wants it."""
        self._quanta = self._harvested = self._overruns = self._worst = self._stretches = 0
        self._patience: dict[int, int] = {}
        self._leaving = False
        self._skipped = self._starved = self._quanta_began = 0
        self.synchronize: Callable[[], None] | None = None
        """Waits for the device's work, if the trial runs on a device."""
        if path is not None:
            self._occupy(path)

    @classmethod
    def from_environment(cls, *, idle_priority: bool = True) -> Self:
        """Returns the gate that HEADRACE_BUBBLE_GATE names, or one that is always open if it names none."""
        named = os.environ.get(VARIABLE)
        return cls(Path(named) if named else None, idle_priority=idle_priority)

    def __enter__(self) -> Self:
        """Returns the gate."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        self.close()

    def new_point(self) -> int:
        """Returns the number of another point, for `point`."""
        self._needs.append(FIRST_NS)
        return len(self._needs) - 1

    def point(self, key: int) -> None:
        """Continues, or sleeps until the next window. Takes half a microsecond while the window lasts."""
        if self._file is None:
            return
        if self.synchronize is not None:
            self.synchronize()
        here, needs, words = now(), self._needs, self._file.words
        if words[EPOCH] == self._epoch:
            took, need = here - self._last, needs[self._key]
            if took > need and self._lends:
                took -= self._off_the_core(here)
            needs[self._key] = took if took > need else need - (need - took >> DECAY)
            self._quanta += 1
            if words[HINT_EPOCH] == self._epoch:
                self._until = words[HINT_DEADLINE] - words[GUARD]
            if here + needs[key] < self._until:
                self._key, self._last = key, here
                return
        self._pause(key, here)

    @contextmanager
    def collective(self) -> Iterator[None]:
        """A context in which the trial is not stopped by a signal: its peers would wait for it."""
        if self._file is None:
            yield
            return
        words = self._file.words
        words[AT["trial_collective"]] = 1
        try:
            yield
        finally:
            words[AT["trial_collective"]] = 0

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A context in which the trial waits for others, such as a store or the scheduler's decision on a report.

        No quantum is running, and no time counts until its next point. What it computes here is not gated.
        """
        if self._file is not None:
            self._leave_window(now())
            self._file.words[WAITING] = 1
        yield

    @property
    def must_leave(self) -> bool:
        """Whether the trial should save a checkpoint and end, because it was stopped three times."""
        return self._file is not None and bool(self._file.words[AT["evict"]])

    def members(self, fitting: int) -> int:
        """Returns how many of the fitting members of a fused trial may run: at least one.

        The agent lowers the share if the primary is slowed; a trial drops members at a rung or a checkpoint.
        """
        share = WHOLE if self._file is None else self._file.words[AT["members_share"]] or WHOLE
        return max(1, fitting * share // WHOLE)

    @property
    def memory_bytes(self) -> int | None:
        """What this trial may allocate on the stage's device; None while that is unknown."""
        return None if self._file is None else self._file.words[AT["memory"]] or None

    def require(self, memory_bytes: int) -> None:
        """Rejects a stage with too little memory for one member.

        Raises:
            GateError: less memory is known to be free.
        """
        free = self.memory_bytes
        if free is not None and free < memory_bytes:
            raise GateError(
                f"one member needs {memory_bytes / 2**20:.0f} MiB and the stage has {free / 2**20:.0f} MiB to spare: "
                "choose a later stage, which holds fewer activations, or a smaller model"
            )

    @property
    def harvested_s(self) -> float:
        """The seconds of work done inside windows."""
        return self._harvested / 1e9

    @property
    def overruns(self) -> int:
        """The number of quanta that ended after their window."""
        return self._overruns

    @property
    def quanta(self) -> int:
        """The number of quanta that ended inside their window."""
        return self._quanta

    def leave(self) -> None:
        """The trial must end: if the primary is gone, points no longer wait. While the primary lives, work stays
        in its windows.

        A handler of SIGTERM may call it: a trial that waits for a primary that never comes back would never end.
        """
        self._leaving = True

    def close(self) -> None:
        """Releases the gate. From here on every point continues."""
        if self._file is not None:
            self._leave_window(now())
            words = self._file.words
            words[AT["trial_pid"]] = words[WAITING] = 0
            self._drop()

    def _occupy(self, path: Path) -> None:
        file = StageFile.open(path)
        words = file.words
        with path.open("rb") as locked:
            fcntl.flock(locked, fcntl.LOCK_EX)  # two trials that start at the same time
            other, since = words[AT["trial_pid"]], words[AT["trial_started"]]
            if other and other != os.getpid() and is_alive(other, since):
                file.close()
                raise GateError(f"process {other} already uses {path.name}: a stage has room for one trial")
            self._introduce(file)
        self._file, self._futex = file, Futex(file.map, EPOCH)
        self._lends = self._idle and file.header.device == "cpu"
        if self._lends:
            _on_the_cores_of(file.header.pid)
            _only_when_idle()

    def _introduce(self, file: StageFile) -> None:
        words = file.words
        words[AT["trial_pid"]] = 0  # until all others are written
        words[AT["trial_started"]] = started_ticks(os.getpid()) or 0
        words[AT["trial_since"]] = now()
        for name in (
            "trial_quantum",
            "trial_usual",
            "trial_collective",
            "trial_harvested",
            "trial_quanta",
            "trial_overruns",
            "trial_overrun_longest",
        ):
            words[AT[name]] = 0
        words[WAITING] = 1  # until the first point: what a trial does before does not count
        words[AT["trial_pid"]] = os.getpid()
        self._stretches = words[STRETCHES]  # those of an earlier trial

    def _drop(self) -> None:
        assert self._file is not None
        self._futex.close()
        self._file.close()
        self._file = None

    def _leave_window(self, here: int) -> None:
        """Counts the work done since the window opened, and whether the last quantum ended too late."""
        assert self._file is not None
        if self._epoch == _OUTSIDE:
            return
        words, late = self._file.words, 0
        spent = time.thread_time_ns() - self._cpu_began
        if words[EPOCH] != self._epoch:
            # The rank closed the gate in the middle of a quantum. The quantum's duration is its own work, without
            # the time in which the rank had the core.
            took = max(0, spent - (self._last - self._wall_began - self._lost))
            self._needs[self._key] = max(took, self._needs[self._key])
            self._patience[self._key] = min(MOST_PATIENCE, 2 * self._patience.get(self._key, PATIENCE))
            late = max(0, here - words[CLOSED])
            self._overruns += 1
            self._worst = max(self._worst, late)
            words[OVERRUNS], words[OVERRUN_LONGEST] = self._overruns, self._worst
        self._harvested += spent
        words[HARVESTED], words[QUANTA] = self._harvested, self._quanta
        words[QUANTUM] = max(self._needs)
        words[USUAL] = self._harvested // max(1, self._quanta + self._overruns)
        record = RINGS[2] + self._stretches % STRETCH_RING * RECORD
        words[record], words[record + 1] = self._wall_began, here
        words[record + 2], words[record + 3] = self._quanta - self._quanta_began, late
        self._stretches += 1
        words[STRETCHES] = self._stretches
        words[ACKNOWLEDGED] = self._epoch
        self._epoch = _OUTSIDE

    def _pause(self, key: int, here: int) -> None:
        """Sleeps until a window has room for the quantum that starts at `key`."""
        assert self._file is not None
        self._leave_window(here)
        words = self._file.words
        words[WAITING] = 1
        while True:
            epoch = words[EPOCH]
            here = now()
            if epoch & 1 and words[LEASE] > here:
                hinted = words[HINT_EPOCH] == epoch
                deadline = words[HINT_DEADLINE] if hinted else words[DEADLINE]
                until = deadline - words[GUARD]
                if here + self._needs[key] < until and words[EPOCH] == epoch:
                    break
                self._skip(key, epoch, until)
            self._futex.wait(epoch, NAP_S)
            if (self._leaving or words[AT["evict"]]) and not self._file.alive():
                self.close()
                return
            if words[EPOCH] == epoch and self._file.replaced():
                words = self._follow()
        words[WAITING] = 0
        self._skipped, self._starved = epoch, 0
        self._quanta_began = self._quanta
        self._epoch, self._until = epoch, until
        self._key, self._last, self._wall_began = key, here, here
        self._cpu_began, self._lost = time.thread_time_ns(), 0

    def _off_the_core(self, here: int) -> int:
        """Returns how long others have had the core since the last call: that is not part of a quantum."""
        computed = time.thread_time_ns() - self._cpu_began
        lost = max(0, here - self._wall_began - computed - self._lost)
        self._lost += lost
        return lost

    def _skip(self, key: int, epoch: int, until: int) -> None:
        """A window has no room for the quantum at `key`. Each window counts once."""
        if epoch == self._skipped:
            return
        self._skipped = epoch
        self._starved += 1
        need = self._needs[key]
        if self._starved == STARVED:
            log.warning(
                "headrace bubbles: no window has been long enough for the work that starts here, of %.1f ms (the "
                "last one left %.1f ms): put more points into the step, with `watch` or `Gate.point`",
                need / 1e6,
                max(0, until - now()) / 1e6,
            )
        if self._starved % self._patience.get(key, PATIENCE) == 0:
            self._needs[key] = min(need, FIRST_NS)

    def _follow(self) -> memoryview:
        """The primary has restarted and made a new file; until it has, the old one stays, and never opens."""
        assert self._file is not None
        assert self._path is not None
        with suppress(StageFileError):
            old, futex = self._file, self._futex
            self._occupy(self._path)
            futex.close()
            old.close()
        return self._file.words


def _on_the_cores_of(rank: int) -> None:
    """Makes every thread of this process run where the rank does."""
    with suppress(OSError):
        cores = os.sched_getaffinity(rank)
        for task in _threads():
            with suppress(OSError):
                os.sched_setaffinity(task, cores)


def _only_when_idle() -> None:
    """Sets the kernel's idle class for every thread of this process: whoever needs the core gets it at once."""
    if not hasattr(os, "SCHED_IDLE"):
        return
    for task in _threads():
        with suppress(OSError):
            os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))


def _threads() -> set[int]:
    return {threading.get_native_id(), *(int(path.name) for path in Path("/proc/self/task").iterdir())}
