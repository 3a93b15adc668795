"""A pipeline on a simulated clock: production hooks write their words, and a production agent reads them.

Nothing sleeps. `pipeline.step` says when each stage waits and computes. The events of all stages are played in the
order of their times, and the agent checks ten times a second in between, as in production.
"""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from headrace_services.bubble_agent import pipeline
from headrace_services.bubble_agent.agent import GUARD_NS, Agent
from headrace_torch.bubble_shm import AT, Awaits, StageFile, StageHeader, started_ticks
from headrace_torch.bubbles import hook as hooks

MS: Final = 1_000_000
LOOK_NS: Final = 100 * MS

Event = tuple[int, int, Callable[[], None]]


@dataclass
class Opened:
    """A window in which the gate was open. Times in nanoseconds."""

    step: int
    stage: int
    length: int
    predicted: int

    @property
    def overrun(self) -> bool:
        """Whether a trial could still have started a quantum when the stage resumed."""
        return self.length < self.predicted - GUARD_NS


@dataclass
class SimulatedPrimary:
    """A job of several stages. `forward` and `backward` are the times of a pass, in nanoseconds."""

    folder: Path
    stages: int = 4
    micro_batches: int = 8
    forward: float = 10.0 * MS
    backward: float = 20.0 * MS
    shape: int = 64
    dynamic: bool = False
    """Whether shapes change without notice; otherwise the script announces it before the step
    (`reset_activation_shape`)."""
    jitter: float = 0.0
    now: int = MS
    step: int = 0
    stalls: dict[tuple[int, pipeline.Pass, int], float] = field(default_factory=dict)
    """By stage, kind and micro-batch: how much longer a pass takes in the next step, because the stage's process
    is stopped."""
    opened: list[Opened] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    """The lengths of the steps."""

    def start(self, patch: pytest.MonkeyPatch) -> None:
        """Attach hooks and an agent to the clock."""
        patch.setattr(hooks, "now", lambda: self.now)
        self._random = random.Random(5)
        self._looked = 0
        self.hooks = [self._hook(stage) for stage in range(self.stages)]
        self.agent = Agent(self.folder, clock=lambda: self.now)

    def reshape(self, times: float) -> None:
        """Change the sequence length: every pass takes `times` as long."""
        self.forward, self.backward = self.forward * times, self.backward * times
        self.shape += 1
        if not self.dynamic:
            for one in self.hooks:
                one.changed()

    def run(self, steps: int, *, pause_ns: float = 0) -> None:
        """Run steps of the job. Before the first one every rank does something else for a while."""
        self._pass_time(self.now + int(pause_ns))
        for _ in range(steps):
            events, end = self._events()
            for at, _, happen in sorted(events, key=lambda event: event[:2]):
                self._pass_time(at)
                happen()
            self.lengths.append(end - events[0][0])
            self.step += 1
            self.stalls = {}

    def overruns(self, since: int) -> list[Opened]:
        """Windows since a step that ended while a trial could still work."""
        return [one for one in self.opened if one.step >= since and one.overrun]

    def covered(self, since: int, until: int) -> int:
        """How long gates were open in some steps, in nanoseconds."""
        return sum(min(one.length, one.predicted) for one in self.opened if since <= one.step < until)

    def first_used(self, since: int) -> int | None:
        """The first step in which a gate opened again."""
        return min((one.step for one in self.opened if one.step >= since), default=None)

    def _hook(self, stage: int) -> hooks.Hook:
        header = StageHeader(
            job="gpt",
            replica=0,
            stage=stage,
            stages=self.stages,
            rank=stage,
            device="cpu",
            pid=os.getpid(),
            started=started_ticks(os.getpid()) or 0,
        )
        return hooks.Hook(StageFile.create(self.folder, header), lambda: None, dynamic=self.dynamic)

    def _pass_time(self, until: int) -> None:
        while self._looked + LOOK_NS <= until:
            self._looked += LOOK_NS
            self.now = max(self.now, self._looked)
            self.agent.scan()
            self.agent.look()
        self.now = max(self.now, until)

    def _events(self) -> tuple[list[Event], int]:
        """The calls of all stages' hooks in a step, each with its time and its order among equal times."""
        events: list[Event] = []

        def at(when: float, happen: Callable[[], None]) -> None:
            events.append((int(when), len(events), happen))

        waits, free = pipeline.step(
            stages=self.stages,
            micro_batches=self.micro_batches,
            time=self._time,
            begin=[float(self.now)] * self.stages,
        )
        end = int(max(free))
        for stage, hook in enumerate(self.hooks):
            at(self.now, lambda hook=hook: hook.begin_step(self.step, self.micro_batches))
            mine = [wait for wait in waits if wait.stage == stage]
            order = pipeline.order(stage=stage, stages=self.stages, micro_batches=self.micro_batches)
            for wait, (kind, _) in zip(mine, order, strict=True):
                if wait.hinted is not None:
                    awaits = Awaits.FORWARD if kind == "F" else Awaits.BACKWARD
                    at(wait.began, lambda hook=hook, awaits=awaits: hook.begin_wait(awaits))
                    at(wait.ended, lambda stage=stage: self._end_wait(stage))
                began = hook.begin_backward if kind == "B" else self._begin_forward(hook)
                at(wait.ended, began)
            at(free[stage], lambda hook=hook: hook.begin_wait())
            at(end, lambda stage=stage: self._end_wait(stage))
            at(end, hook.end_step)
        return events, end

    def _begin_forward(self, hook: hooks.Hook) -> Callable[[], None]:
        return lambda: hook.begin_forward(self.shape)

    def _end_wait(self, stage: int) -> None:
        words = self.hooks[stage].words
        began, deadline = words[AT["wait_began"]], words[AT["gate_deadline"]]
        if words[AT["gate_epoch"]] & 1:
            self.opened.append(Opened(self.step, stage, self.now - began, deadline - began))
        self.hooks[stage].end_wait()

    def _time(self, stage: int, kind: pipeline.Pass, micro_batch: int) -> float:
        usual = self.forward if kind == "F" else self.backward
        noise = self._random.lognormvariate(0, self.jitter)
        return usual * noise + self.stalls.get((stage, kind, micro_batch), 0.0)
