"""Learning rates over a member's own steps, as functions of the step: nothing to keep or restore.

Each equals its namesake in `torch.optim.lr_scheduler`, stepped once per optimizer step. A late joiner's schedule
starts when it joins. Any frozen object with `setting` can serve as a custom schedule.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What an optimizer step runs with.

    Attributes:
        lr: the rate.
        momentum: replaces SGD's momentum or Adam's β₁; None leaves them.
    """

    lr: float
    momentum: float | None = None


@runtime_checkable
class Schedule(Protocol):
    """A rate, and possibly a momentum, for every step."""

    def setting(self, step: int, lr: float) -> Setting:
        """Returns the setting of the optimizer step number `step`, from 0, for a member with rate `lr`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDecay:
    """lr · γ^⌊step/every⌋, torch's StepLR."""

    every: int
    gamma: float = 0.1

    def setting(self, step: int, lr: float) -> Setting:
        """See `Schedule`."""
        return Setting(lr=lr * self.gamma ** (step // self.every))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cosine:
    """From lr to `floor` in `steps`, torch's CosineAnnealingLR; stays at the floor after that."""

    steps: int
    floor: float = 0.0

    def setting(self, step: int, lr: float) -> Setting:
        """See `Schedule`."""
        at = min(step, self.steps) / self.steps
        return Setting(lr=self.floor + (lr - self.floor) * (1 + math.cos(math.pi * at)) / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """Linear from `start`·lr to lr in `steps`, torch's LinearLR; then another schedule, if any, from its own step 0.

    With `after` this is torch's SequentialLR with a milestone at `steps`.
    """

    steps: int
    start: float = 1 / 3
    after: Schedule | None = None

    def setting(self, step: int, lr: float) -> Setting:
        """See `Schedule`."""
        if step >= self.steps and self.after is not None:
            return self.after.setting(step - self.steps, lr)
        return Setting(lr=lr * (self.start + (1 - self.start) * min(step, self.steps) / self.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class OneCycle:
    """Torch's OneCycleLR in two phases, whose peak is the member's lr; momentum moves inversely to the rate."""

    steps: int
    warm_part: float = 0.3
    divide_start: float = 25.0
    divide_end: float = 1e4
    anneal: Literal["cos", "linear"] = "cos"
    cycle_momentum: bool = True
    least_momentum: float = 0.85
    greatest_momentum: float = 0.95

    def setting(self, step: int, lr: float) -> Setting:
        """See `Schedule`."""
        start, end = lr / self.divide_start, lr / self.divide_start / self.divide_end
        peak, last = self.warm_part * self.steps - 1, self.steps - 1
        at = min(step, last)
        low, high = self.least_momentum, self.greatest_momentum
        if at <= peak:
            rate, momentum = self._between(start, lr, at / peak), self._between(high, low, at / peak)
        else:
            part = (at - peak) / (last - peak)
            rate, momentum = self._between(lr, end, part), self._between(low, high, part)
        return Setting(lr=rate, momentum=momentum if self.cycle_momentum else None)

    def _between(self, start: float, end: float, part: float) -> float:
        if self.anneal == "linear":
            return (end - start) * part + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * part) + 1)
