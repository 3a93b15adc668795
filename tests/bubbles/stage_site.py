"""A rank of a primary, in the test's own process, that waits when the test says so."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from headrace_torch.bubble_shm import AT, Awaits, StageFile, StageHeader, started_ticks
from headrace_torch.bubble_shm.layout import BEGINS, TABLE
from headrace_torch.bubbles.hook import Hook

MS = 1_000_000
FAR = 2**62


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


class Stage:
    """A rank of a primary that waits when the test says so."""

    def __init__(self, folder: Path, *, stage: int = 0, stages: int = 2, device: str = "cpu") -> None:
        pid = os.getpid()
        header = StageHeader(
            job="gpt",
            replica=0,
            stage=stage,
            stages=stages,
            rank=stage,
            device=device,
            pid=pid,
            started=started_ticks(pid) or 0,
        )
        self.file = StageFile.create(folder, header)
        self.words = self.file.words
        self.hook = Hook(self.file, lambda: None)
        self.permit()

    def permit(self, length: int = FAR) -> None:
        for slot in range(4):
            self.words[TABLE + slot], self.words[BEGINS + slot] = length, FAR
        self.words[AT["permitted"]], self.words[AT["lease"]] = 1, FAR
        self.hook.begin_step(0, 4)
        self.words[AT["table_generation"]] = self.words[AT["generation"]]

    def open(self, length: int = FAR) -> None:
        self.permit(length)
        self.hook.begin_step(1, 4)
        self.hook.begin_wait()

    def close(self) -> None:
        self.hook.end_wait()
        self.hook.end_step()

    def says(self, name: str) -> int:
        return int(self.words[AT[name]])

    def play(self, steps: int, *, first: int = 0, window_s: float = 0.004, micro_batches: int = 4) -> None:
        """Steps with one window each, in which the stage waits for the next stage's backward pass."""
        for step in range(first, first + steps):
            self.hook.begin_step(step, micro_batches)
            self.hook.begin_forward(8)
            self.hook.begin_wait(Awaits.BACKWARD)
            time.sleep(window_s)
            self.hook.end_wait()
            self.hook.begin_backward()
            self.hook.end_step()
