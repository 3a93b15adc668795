"""How long to train before activations are compared: until the narrowest model has learned half of its task.

The rules hold constant the change that learning *directs*. In the first steps there is another change, which
learning does not direct: a random sum over n coordinates, of size 1/sqrt(n). Queries of heads that get wider show
it best. The gradient of an attention score is a product v·(dL/do) of two vectors that are independent at the
start. So the first moves of queries fall with the width although every rule is right. Only when values have
learned from dL/do, which takes as many steps as learning itself, do the products have a mean that does not depend
on n. So a few steps prove nothing: the measurement waits until the loss has halved, when chance matters less,
though it is not gone. The rate cannot be found from slopes either: it is the first in a series of factors of two
at which that takes `FEWEST` to `PATIENCE` steps and never goes wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from headrace_torch.hydro.coordinate_check.measure import Loss, train_step
from headrace_torch.hydro.errors import CoordinateCheckError

LEARNT: Final = 0.5  # of the loss at the start
FEWEST: Final = 10  # steps, if the rate is ours to choose; of fewer, the first dominates
PATIENCE: Final = 64  # steps, if the rate is ours to choose
MOST_STEPS: Final = 256  # steps, if it is given
TRIES: Final = 8  # rates
UNSTABLE: Final = 0.1  # of the loss at the start: a rise by more
Make = Callable[[float], tuple[nn.Module, torch.optim.Optimizer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A rate, and how many steps with it; `stable` if the loss has not risen much on the way."""

    lr: float
    steps: int
    fallen: float
    stable: bool

    @property
    def enough(self) -> bool:
        """Whether enough was learned."""
        return self.stable and self.fallen >= LEARNT


def run(
    make: Make, lr: float, inputs: tuple[Tensor, ...], loss_fn: Loss, *, most: int, swings: bool
) -> Course:
    """Trains until the loss has halved, or for `most` steps; with `swings` the loss may rise, but not above its
    start.

    A loss that is not finite ends the training. Nobody knows what a loss that starts below zero should fall to:
    there the fall is measured against its size.
    """
    model, optimizer = make(lr)
    first = last = least = 0.0
    for step in range(most + 1):
        loss = train_step(model, optimizer, inputs, loss_fn)
        if step == 0:
            first = least = loss
        last = loss
        size = max(abs(first), 1e-12)
        if not loss - (first if swings else least) <= UNSTABLE * size:  # or NaN
            return Course(lr=lr, steps=step, fallen=0.0, stable=False)
        least = min(least, loss)
        if first - loss >= LEARNT * size:
            return Course(lr=lr, steps=step, fallen=(first - loss) / size, stable=True)
    return Course(lr=lr, steps=most, fallen=(first - last) / max(abs(first), 1e-12), stable=True)


def steps_for(make: Make, lr: float, inputs: tuple[Tensor, ...], loss_fn: Loss) -> Course:
    """How many steps a given rate takes.

    Raises:
        CoordinateCheckError: it is too low to measure anything, or too high.
    """
    found = run(make, lr, inputs, loss_fn, most=MOST_STEPS, swings=True)
    if not found.stable:
        raise CoordinateCheckError(
            f"the loss of the narrowest model rises at lr {lr:g} (step {found.steps}); choose a lower lr"
        )
    if not found.enough:
        raise CoordinateCheckError(
            f"in {MOST_STEPS} steps at lr {lr:g} the loss of the narrowest model fell by {found.fallen:.0%} only, too "
            f"little to tell what learning changes from what chance does (it should fall by {LEARNT:.0%}); choose "
            "a higher lr, leave it to the check, or give steps="
        )
    return found


def rate_and_steps_for(make: Make, lr: float, inputs: tuple[Tensor, ...], loss_fn: Loss) -> Course:
    """Finds a rate, from `lr` up or down by factors of two; the best one found, if none learns enough.

    Raises:
        CoordinateCheckError: the loss rises at every rate.
    """
    tried: dict[float, Course] = {}
    while lr not in tried and len(tried) < TRIES:
        found = tried[lr] = run(make, lr, inputs, loss_fn, most=PATIENCE, swings=False)
        if found.enough and found.steps >= FEWEST:
            return found
        slow = found.stable and not found.enough
        if slow and found.fallen < tried.get(lr / 2, found).fallen:
            break  # it learns less than at half the rate
        lr = lr * 2 if slow else lr / 2
    best = max((one for one in tried.values() if one.stable), key=lambda one: one.fallen, default=None)
    if best is None:
        raise CoordinateCheckError(
            f"the loss of the narrowest model rises at lr {min(tried):g} to {max(tried):g}; give lr= and steps="
        )
    if best.enough:
        return best
    # It learns too slowly at every rate without a rise; with more steps, try lower rates until one does not blow
    # up.
    for rate in (best.lr, best.lr / 2, best.lr / 4):
        found = run(make, rate, inputs, loss_fn, most=MOST_STEPS, swings=True)
        if found.enough:
            return found
    return best
