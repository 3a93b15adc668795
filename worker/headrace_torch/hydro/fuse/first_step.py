"""What the first step of a group costs: it inspects the model, and tries engines."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch

LATER: Final = 5
"""This many of the following steps are timed; the shortest counts."""


@dataclass(slots=True, kw_only=True)
class FirstStep:
    """The step at which a group last picked its engine, compared with those that followed; in wall-clock time.

    Attributes:
        members: how many members trained in it.
        time_s: the time of that step.
        later_s: the shortest time of the first few steps after it; 0 before there was one.
    """

    members: int
    time_s: float
    later_s: float = 0.0

    @property
    def steps(self) -> float:
        """How many later steps it took as long as; 0 if unknown."""
        return self.time_s / self.later_s if self.later_s else 0.0


class FirstSteps:
    """Times a group's steps, as far as they are of interest."""

    def __init__(self) -> None:
        """No step has been timed."""
        self.last: FirstStep | None = None
        self._left = 0

    def wants(self, *, picks: bool) -> bool:
        """Whether the next step must be timed; `picks` says whether it picks an engine."""
        return picks or self._left > 0

    @contextmanager
    def timed(self, members: int, device: torch.device, *, picks: bool) -> Iterator[None]:
        """Times a step; one that raises does not count."""
        _wait(device)
        begun = time.perf_counter()
        yield
        _wait(device)
        taken_s = time.perf_counter() - begun
        if picks:
            self.last, self._left = FirstStep(members=members, time_s=taken_s), LATER
        elif self.last is not None:
            self._left -= 1
            if members == self.last.members:
                self.last.later_s = min(self.last.later_s or taken_s, taken_s)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
