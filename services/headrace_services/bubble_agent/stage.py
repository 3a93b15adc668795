"""What the agent knows of one stage: a fold over the stage's records, and the orders that follow."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from headrace_services.bubble_agent.budget import Level, free_memory_bytes
from headrace_services.bubble_agent.predictor import QUANTILE, Predictor

QUANTA: Final = 3
"""Windows of fewer quanta are skipped."""
DEFAULT_QUANTUM_NS: Final = 1_000_000
SHORTEST_QUANTUM_NS: Final = 200_000
"""Opening a gate for less is not worth it."""
STEPS_KEPT: Final = 200
REAL_WAIT_NS: Final = 200_000
"""A shorter wait may be the work of the instruction itself."""
RISKED: Final = 0.001
"""The share of a step that quanta which end after their window may cost. An overrun costs half a quantum on
average."""
BOLDEST: Final = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a rank says about itself.

    Attributes:
        job: name of the primary.
        replica: its data-parallel group.
        stage, stages: its place in the pipeline, from 0.
        micro_batches: per step.
        device: identifier of its device, or `cpu`.
        pid: the rank's process.
    """

    job: str
    replica: int
    stage: int
    stages: int
    micro_batches: int
    device: str
    pid: int

    @property
    def key(self) -> tuple[int, int]:
        """The replica and the stage."""
        return self.replica, self.stage


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSeen:
    """A window that has ended. Times are in nanoseconds."""

    step: int
    slot: int
    began: int
    ended: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeen:
    """A step that has ended. Times are in nanoseconds.

    Attributes:
        step: the engine's global step.
        began, ended: its times.
        control: whether no gate was opened in it.
        counts: whether it says something about trials: one runs, and the step was filled or left free by the draw.
    """

    step: int
    began: int
    ended: int
    control: bool
    counts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StretchSeen:
    """Consecutive quanta of a trial. Times are in nanoseconds; `late` is by how much the last one ended after its
    window."""

    began: int
    ended: int
    quanta: int
    late: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSeen:
    """What a trial says about itself. Times are in nanoseconds.

    Attributes:
        pid, started: its process.
        since: when it took the gate.
        harvested: work done in windows.
        quanta, overruns: how many were done, and how many ended too late.
        overrun_longest: by how much the worst was late.
        quantum, usual: the longest time between two points, and the usual one; 0 before the first window.
    """

    pid: int
    started: int
    since: int
    harvested: int
    quanta: int
    overruns: int
    overrun_longest: int
    quantum: int
    usual: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySeen:
    """Memory of the stage's device, in bytes."""

    free: int
    reserved: int
    peak: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What the agent writes for the rank.

    Attributes:
        generation: the generation of the table; the rank ignores that of another one.
        table: length of each slot's window, in nanoseconds; missing slots are skipped.
        begins: how long after its step's start each of them starts at the latest, in nanoseconds.
        slots: how many slots the stage's step has.
        permitted: whether gates may open.
    """

    generation: int
    table: dict[int, int] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)
    slots: int = 0
    permitted: bool = True


class Stage:
    """One stage of a primary on this machine."""

    def __init__(self, registration: Registration) -> None:
        """Takes what the rank said about itself."""
        self.registration = registration
        self.predictor = Predictor()
        self.memory = MemorySeen(free=0, reserved=0, peak=0)
        self._hints: dict[tuple[int, int], int] = {}
        self._windows: dict[int, list[WindowSeen]] = {}
        """Waits of steps that have not ended."""
        self._steps: deque[StepSeen] = deque(maxlen=STEPS_KEPT)
        self._waits: deque[int] = deque(maxlen=STEPS_KEPT)
        self.steps = self.slots = 0
        self._quantile = QUANTILE
        self.waited = 0
        """How long the stage has been known, in nanoseconds."""

    def observe(self, windows: Sequence[WindowSeen], steps: Sequence[StepSeen]) -> None:
        """Processes what ended since the last call."""
        for one in windows:
            hinted = self._hints.pop((one.step, one.slot), None)
            self.slots = max(self.slots, one.slot + 1)
            self.waited += one.ended - one.began
            # The pass may have started before the wait; if it had also ended, there was hardly a wait.
            led = hinted is not None and hinted <= one.ended and one.ended - one.began >= REAL_WAIT_NS
            lag = one.ended - hinted if hinted is not None and led else None
            self.predictor.observe(
                slot=one.slot, length=one.ended - one.began, generation=one.generation, lag=lag
            )
            self._windows.setdefault(one.step, []).append(one)
        for step in steps:
            seen = self._windows.pop(step.step, [])
            waited = sum(one.ended - one.began for one in seen)
            for one in seen:
                self.predictor.observe_begin(
                    slot=one.slot, after=one.began - step.began, generation=one.generation
                )
            self.steps += 1
            self._steps.append(step)
            self._waits.append(waited)
            self.predictor.observe_computing(max(0, step.ended - step.began - waited))
        if steps:
            self._hints = {at: one for at, one in self._hints.items() if at[0] > steps[-1].step}
            self._windows = {at: seen for at, seen in self._windows.items() if at > steps[-1].step}

    def hint(self, step: int, slot: int, arrived: int) -> int | None:
        """Records a hint that a slot's awaited pass has started; returns when the window will end, if that is
        known."""
        self._hints[step, slot] = arrived
        return self.predictor.end_after_hint(slot, arrived, self._quantile)

    def orders(self, level: Level, *, quantum: int) -> Orders:
        """Returns the table for the rank.

        Args:
            level: what trials get.
            quantum: the usual quantum of the stage's trial, in nanoseconds; 0 if it has none yet.
        """
        quantum = max(SHORTEST_QUANTUM_NS, quantum or DEFAULT_QUANTUM_NS)
        shortest, least = QUANTA * quantum, QUANTA * min(quantum, DEFAULT_QUANTUM_NS)
        self._quantile = self._bold(quantum)
        known = self.predictor.table(shortest=least, quantile=self._quantile)
        shares = {slot: int(length * level.windows) for slot, length in known.items()}
        table = {slot: length for slot, length in shares.items() if length >= shortest}
        if not table and shares:
            # A quantum may have been long only once. The gate tries again, rarely, if a window opens.
            longest = max(shares, key=lambda slot: shares[slot])
            table = {longest: shares[longest]} if shares[longest] >= least else {}
        return Orders(
            generation=self.predictor.generation,
            table=table,
            begins={
                slot: begin for slot in table if (begin := self.predictor.latest_begin(slot)) is not None
            },
            slots=self.slots,
        )

    def _bold(self, quantum: int) -> float:
        """Returns which quantile of the windows is predicted: short quanta may start later."""
        overruns = RISKED * self.step_ns() / (quantum / 2)
        return min(BOLDEST, max(QUANTILE, overruns / max(1, self.slots)))

    def duty(self, orders: Orders) -> float:
        """Returns the share of a step that trials may use, between 0 and 1."""
        if not self._steps:
            return 0.0
        length = fmean(step.ended - step.began for step in self._steps)
        return min(1.0, sum(orders.table.values()) / length) if length else 0.0

    def step_ns(self) -> float:
        """Returns the mean length of the kept steps; 0 while there is none."""
        return fmean(step.ended - step.began for step in self._steps) if self._steps else 0.0

    def waiting_share(self) -> float:
        """Returns the share of the kept steps that the stage waited, between 0 and 1."""
        total = sum(step.ended - step.began for step in self._steps)
        return min(1.0, sum(self._waits) / total) if total else 0.0

    def free_bytes(self) -> int:
        """Returns the memory that trials may allocate."""
        seen = self.memory
        return free_memory_bytes(free=seen.free, reserved=seen.reserved, peak=seen.peak, steps=self.steps)
