"""One stage's file, mapped: the words of the rank and of the trial as values, and the agent's orders as words."""

from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace_services.bubble_agent.backstop import GateSeen
from headrace_services.bubble_agent.hints import Progress, Waiting
from headrace_services.bubble_agent.stage import (
    MemorySeen,
    Orders,
    Registration,
    StepSeen,
    StretchSeen,
    TrialSeen,
    WindowSeen,
)
from headrace_torch.bubble_shm import AT, BEGINS, SLOTS, TABLE, Awaits, StageFile, StepKind
from headrace_torch.bubble_shm.futex import Futex

WHOLE: Final = 1 << 16
STARTING_NS: Final = 30_000_000_000
"""How long a trial that took its gate may prepare; after that it is expected at its first point."""
RECENT: Final = 20_000
"""How many records of each kind are kept for the timeline."""
_RECORDS: Final = {"windows": 0, "steps": 1, "trial_stretches": 2}


class Link:
    """The file of one rank."""

    def __init__(self, file: StageFile) -> None:
        """Starts with what is written from now on."""
        self.file = file
        self._words = file.words
        self._futex = Futex(file.map, AT["gate_epoch"])
        self._read = {name: self._words[AT[name]] for name in _RECORDS}
        self.windows: deque[WindowSeen] = deque(maxlen=RECENT)
        self.steps: deque[StepSeen] = deque(maxlen=RECENT)
        self.stretches: deque[StretchSeen] = deque(maxlen=RECENT)

    def says(self, name: str) -> int:
        """Returns one word."""
        return self._words[AT[name]]

    def registration(self) -> Registration | None:
        """Returns what the rank said about itself; None before its first step."""
        header, micro_batches = self.file.header, self.says("micro_batches")
        if not micro_batches:
            return None
        return Registration(
            job=header.job,
            replica=header.replica,
            stage=header.stage,
            stages=header.stages,
            micro_batches=micro_batches,
            device=header.device,
            pid=header.pid,
        )

    def drain(self, *, busy_since: int | None) -> tuple[list[WindowSeen], list[StepSeen]]:
        """Returns the windows and steps that ended since the last call.

        Args:
            busy_since: since when a trial of the job runs; None if none does. Other steps say nothing about
                trials.
        """
        windows = [
            WindowSeen(step=at >> 16, slot=at & 0xFFFF, began=began, ended=ended, generation=generation)
            for at, began, ended, generation in self._new("windows")
            if began <= ended
        ]
        steps = [
            StepSeen(
                step=number,
                began=began,
                ended=ended,
                control=kind != StepKind.FILLED,
                counts=kind != StepKind.UNUSED and busy_since is not None and began >= busy_since,
            )
            for number, began, ended, kind in self._new("steps")
        ]
        self.windows.extend(windows)
        self.steps.extend(steps)
        self.stretches.extend(
            StretchSeen(began=began, ended=ended, quanta=quanta, late=late)
            for began, ended, quanta, late in self._new("trial_stretches")
        )
        return windows, steps

    def progress(self) -> Progress:
        """Returns the rank's progress."""
        return Progress(
            step=self.says("step"),
            forwards=self.says("forwards"),
            forward_began=self.says("forward_began"),
            backwards=self.says("backwards"),
            backward_began=self.says("backward_began"),
        )

    def waiting(self) -> Waiting | None:
        """Returns what the rank waits for with its gate open; None otherwise."""
        epoch, awaits = self.says("gate_epoch"), self.says("awaits")
        if not epoch & 1 or awaits == Awaits.NOTHING:
            return None
        seen = Waiting(
            epoch=epoch,
            step=self.says("step"),
            slot=self.says("slot"),
            began=self.says("wait_began"),
            kind="forward" if awaits == Awaits.FORWARD else "backward",
            micro_batch=self.says("awaits_index"),
        )
        return seen if self.says("gate_epoch") == epoch else None

    def gate(self, now: int) -> GateSeen:
        """Returns the gate and its trial at this instant."""
        epoch, deadline = self.says("gate_epoch"), self.says("gate_deadline")
        if self.says("hint_epoch") == epoch:
            deadline = self.says("hint_deadline")
        wide_open = bool(epoch & 1) and now < deadline and now < self.says("lease")
        starting = not self.says("trial_quantum") and now - self.says("trial_since") < STARTING_NS
        waiting = bool(self.says("trial_waiting")) and (starting or bool(self.says("trial_quantum")))
        return GateSeen(
            open=wide_open,
            ran=max(0, now - (min(deadline, now) if epoch & 1 else self.says("gate_closed"))),
            waiting=waiting,
            collective=bool(self.says("trial_collective")),
            quantum=self.says("trial_quantum"),
        )

    def trial(self) -> TrialSeen | None:
        """Returns what the trial says about itself; None if there is none."""
        pid = self.says("trial_pid")
        if not pid:
            return None
        return TrialSeen(
            pid=pid,
            started=self.says("trial_started"),
            since=self.says("trial_since"),
            harvested=self.says("trial_harvested"),
            quanta=self.says("trial_quanta"),
            overruns=self.says("trial_overruns"),
            overrun_longest=self.says("trial_overrun_longest"),
            quantum=self.says("trial_quantum"),
            usual=self.says("trial_usual"),
        )

    def memory(self) -> MemorySeen:
        """Returns the memory of the stage's device, as far as it is known."""
        if self.file.header.device == "cpu":
            return _cpu_memory(self.file.header.pid)
        return MemorySeen(
            free=self.says("memory_free"),
            reserved=self.says("memory_reserved"),
            peak=self.says("memory_peak"),
        )

    def order(self, orders: Orders, *, lease: int, share: float, members: float, memory: int) -> None:
        """Writes the orders. The rank uses only the table of its own generation."""
        words = self._words
        if orders.generation < 0 or not orders.permitted:
            words[AT["permitted"]] = 0
        else:
            if words[AT["table_generation"]] != orders.generation:
                words[AT["permitted"]] = 0
            for slot in range(min(SLOTS, orders.slots)):
                words[BEGINS + slot] = orders.begins.get(slot, 0)
                words[TABLE + slot] = orders.table.get(slot, 0)
            words[AT["table_generation"]] = orders.generation
            words[AT["permitted"]] = 1
        words[AT["control_share"]] = int(share * WHOLE)
        words[AT["members_share"]] = max(1, int(members * WHOLE))
        words[AT["memory"]] = memory
        words[AT["lease"]] = lease

    def hint(self, epoch: int, deadline: int) -> None:
        """Writes when the window of this epoch will end, and wakes the trial if that gives it more time."""
        later = deadline > self.says("gate_deadline")
        self._words[AT["hint_deadline"]] = deadline
        self._words[AT["hint_epoch"]] = epoch
        if later and self.says("trial_waiting"):
            self._futex.wake()

    def write(self, name: str, value: int) -> None:
        """Writes one of the agent's words."""
        self._words[AT[name]] = value

    def forbid(self) -> None:
        """Closes the gate for good: it does not open from now on."""
        self.write("lease", 0)
        self.write("permitted", 0)

    def close(self) -> None:
        """Unmaps the file."""
        self._futex.close()
        self.file.close()

    def _new(self, name: str) -> list[tuple[int, ...]]:
        since, count = self._read[name], self.says(name)
        if count == since:
            return []
        self._read[name] = count
        return self.file.records(_RECORDS[name], AT[name], min(since, count))


def _cpu_memory(pid: int) -> MemorySeen:
    """The machine's memory, and what the rank holds of it."""
    found = {"MemAvailable": 0, "VmRSS": 0, "VmHWM": 0}
    for path in (Path("/proc/meminfo"), Path(f"/proc/{pid}/status")):
        with suppress(OSError):
            for line in path.read_text(encoding="ascii", errors="replace").splitlines():
                name, _, rest = line.partition(":")
                if name in found:
                    found[name] = int(rest.split()[0]) * 1024
    return MemorySeen(free=found["MemAvailable"], reserved=found["VmRSS"], peak=found["VmHWM"])
