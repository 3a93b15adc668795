"""Whether the model trains wherever its copy does: the highest rate at which the copy learns is tried on a wide
member.

Slopes are measured at a rate where the loss halves in some tens of steps. A search goes higher, to where training
becomes unstable, and that limit depends on the width in its own way. In a narrow network gains are smaller by
chance, and a model that multiplies them (a graph network that sums over neighbours, layer after layer without a
norm) tolerates a higher rate when it is narrow. The copy's best rate may then be above what the model survives.

The narrow member's rate is doubled, from the check's rate on, for as long as most seeds learn. The wide one is
then tried at the rate that was reached. A network that has died on the way, as ReLU networks do, has a steady loss
and has learned nothing: it does not count as training.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import torch
from torch import Tensor, nn

from headrace_torch.hydro.coordinate_check.measure import Loss, train_step
from headrace_torch.hydro.coordinate_check.pilot import LEARNT, UNSTABLE

SEEDS: Final = 3
CLIMB: Final = 5  # doublings above the check's rate, at most
Make = Callable[[int, float], tuple[nn.Module, torch.optim.Optimizer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The rate at which the narrow member learns and the wide one diverges."""

    lr: float
    narrow: str
    wide: str

    def __str__(self) -> str:
        return f"at lr {self.lr:g} the model of width {self.narrow} learns, and that of width {self.wide} diverges"


def divergence(
    narrow: Make, wide: Make, lr: float, inputs: tuple[Tensor, ...], loss_fn: Loss, *, steps: int
) -> float | None:
    """The highest rate at which most seeds of the narrow member learn, if most seeds of the wide one diverge
    there.

    Args:
        narrow: makes the narrow member and its optimizer from a seed and a rate; `wide` likewise.
        lr: the check's rate; the climb starts at twice as much.
        inputs: one batch.
        loss_fn: maps the model's output to a scalar.
        steps: per training.

    Returns:
        None if the wide member does not diverge, or the narrow one does not learn above `lr`.
    """

    def most(make: Make, rate: float, so: Callable[[float], bool]) -> bool:
        votes = [0, 0]
        for seed in range(SEEDS):
            votes[so(fall(*make(seed, rate), inputs, loss_fn, steps))] += 1
            if max(votes) > SEEDS / 2:
                break
        return votes[True] > votes[False]

    reached: float | None = None
    # At `lr` itself the loss has halved at the last step, not before.
    for rate in (math.ldexp(lr, power) for power in range(1, CLIMB + 1)):
        if not most(narrow, rate, lambda fallen: fallen >= LEARNT):
            break
        reached = rate
    # A NaN compares as no fall.
    if reached is not None and most(wide, reached, lambda fallen: not fallen >= -UNSTABLE):
        return reached
    return None


def fall(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: tuple[Tensor, ...],
    loss_fn: Loss,
    steps: int,
) -> float:
    """The fraction of its start by which the loss has fallen in the last quarter of the steps; NaN if it has none."""
    losses = []
    for _ in range(steps + 1):
        losses.append(train_step(model, optimizer, inputs, loss_fn))
        if not math.isfinite(losses[-1]):
            return math.nan
    first = losses[0]
    return (first - fmean(losses[-(steps // 4 + 1) :])) / max(abs(first), 1e-12)
