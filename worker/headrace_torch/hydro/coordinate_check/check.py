"""`coordinate_check`: the gate that a surrogate passes before anything is spent on tuning it.

Two things can make hyperparameters of a small model wrong for a large one: multipliers that are not applied where
the rules require them, and a layer that computes with a width that the rules do not see. Both have the same
effect: the amount by which training moves some activation grows or falls with the width. The check trains a few
steps at several widths and fits that dependence. It measures the change of an activation, not its size, because at
the start the size comes from the initial values and hides the change. And it measures after something has been
learned, because the first changes are partly random.

A third problem shows in no slope: a model that diverges at rates at which its copy learns (see `stability`).
"""

import math
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.parametrize import is_parametrized

from headrace_torch.hydro.coordinate_check.looks import Looks, Prepare
from headrace_torch.hydro.coordinate_check.measure import Loss
from headrace_torch.hydro.coordinate_check.pilot import Course, Make, rate_and_steps_for, steps_for
from headrace_torch.hydro.coordinate_check.report import CoordinateReport, Outcome
from headrace_torch.hydro.errors import CoordinateCheckError
from headrace_torch.hydro.gate import same_rules
from headrace_torch.hydro.parametrize.kinds import Kind
from headrace_torch.hydro.shrink.surrogate import Surrogate
from headrace_torch.hydro.shrink.usage import tensors_in

TOLERANCE: Final = 0.25  # a change of width**s is compensated by a rate of 16**-s: one step of 2 at s = 1/4
WIDTHS: Final = 4
# A multiple of the rate at which the loss halves: about where Adam's best rate is. A weight that is divided by its
# norm turns by an angle, which is larger in a narrow model, all the more at a higher rate: so it is checked there
# too.
FAST: Final = 8
# Below this, averages over coordinates are too rough to detect a slope of 0.1.
LEAST_WIDTH: Final = 32
# A batch's random targets are memorised: with few rows that is soon done. No row may repeat, as it would have two
# targets.
BATCH: Final = 16
# Where the search for a rate starts. SGD's rate for hidden matrices does not depend on the width; a step of Adam
# moves an activation by rate × fan-in, so that product is given.
SGD_LR: Final = 0.1
ADAM_LR_TIMES_FAN_IN: Final = 0.2
LOWER: Final = 3  # how often the rate is halved if the narrowest member is stable with it and another is not


def coordinate_check(
    surrogate: Surrogate,
    *,
    widths: Sequence[int] | None = None,
    seeds: int | None = None,
    steps: int | None = None,
    optimizer: str = "adam",
    lr: float | None = None,
    inputs: tuple[Tensor, ...] | None = None,
    loss_fn: Loss | None = None,
    tolerance: float = TOLERANCE,
    prepare: Prepare | None = None,
) -> CoordinateReport:
    """Trains the family's members for a few steps and fits how the changes of activations depend on the width.

    If layers compute their weights (`torch.nn.utils.parametrizations`), Adam's check runs a second time, at eight
    times the rate that it has found; if that run fails, its report is returned. A check that chose its own rate
    and passed also looks for a rate at which the surrogate learns and the widest member diverges; it fails if
    there is one.

    Args:
        surrogate: from `shrink`.
        widths: the factory's widths, or the scales of a rebuilt module. None means four: the surrogate's width,
            but at least 32, and its doubles; for a module's scales, the surrogate's and its halves.
        seeds: initialisations per width. None means three, and as many more as it takes to tell pass from fail, up
            to twelve.
        steps: training steps; the change after the last is fitted. None means as many as halve the loss of the
            narrowest member: before that, what is learned does not stand out from chance (see `pilot`).
        optimizer: "sgd", "adam" or "adamw".
        lr: in terms of the target; None means a rate at which some tens of steps halve the narrowest member's
            loss.
        inputs: one batch; None means the first rows of the surrogate's example, or rows that fit the model.
        loss_fn: maps the model's output to a scalar; None means the cross-entropy (or squared error, for a single
            output) against fixed random targets.
        tolerance: a slope whose whole interval is steeper fails; one whose whole interval is less steep passes.
        prepare: makes the model and the optimizer from a member and a seed, in place of the rules; for
            experiments.

    Raises:
        CoordinateCheckError: fewer than two widths, a loss that is not finite, or one that does not halve at a given
            rate. A failed check does not raise: see `CoordinateReport.raise_if_failed`.
    """
    name = optimizer.lower()
    surrogate.parametrization(name)  # rejects an unknown optimizer before anything is spent
    members = members_of(surrogate, widths)
    if len(members) < 2:
        raise CoordinateCheckError("the check needs at least two widths; give more with widths=")
    looks = Looks(
        members=members,
        optimizer=name,
        inputs=_batch(surrogate) if inputs is None else inputs,
        loss_fn=loss_fn or fixed_targets(),
        seeds=seeds,
        tolerance=tolerance,
        prepare=prepare,
    )
    own_rate = lr is None and prepare is None  # a `prepare` has its own rate, which is not ours to change
    rate = _default_lr(surrogate, name) if lr is None else lr
    if steps is not None:
        report = looks.slopes(rate, steps, learnt=True)
    elif not own_rate:
        course = steps_for(_narrowest(looks), rate, looks.inputs, looks.loss_fn)
        report = looks.slopes(course.lr, max(1, course.steps), learnt=course.enough)
    else:
        report = _at_a_rate_that_all_bear(looks, rate)
        if report.passed:
            diverges = looks.divergence(surrogate, report.lr, report.steps)
            report = replace(report, divergence=diverges)
    if report.passed and own_rate and name != "sgd" and _normalised(members[0]):
        with suppress(CoordinateCheckError):  # too fast to measure
            fast = looks.slopes(FAST * report.lr, report.steps, learnt=report.learnt)
            report = fast if fast.outcome is Outcome.FAILED else report
    if prepare is None:
        surrogate.family.gates[same_rules(name)] = report
    return report


def _narrowest(looks: Looks) -> Make:
    """Makes the narrowest member with the first seed."""
    return lambda rate: looks.made(looks.members[0], 0, rate)


def _at_a_rate_that_all_bear(looks: Looks, rate: float) -> CoordinateReport:
    """Finds a rate for the narrowest member; halves it if a wider member, or another seed, diverges at it."""
    make = _narrowest(looks)
    course: Course = rate_and_steps_for(make, rate, looks.inputs, looks.loss_fn)
    for _ in range(LOWER):
        try:
            return looks.slopes(course.lr, max(1, course.steps), learnt=course.enough)
        except CoordinateCheckError as error:
            try:
                course = steps_for(make, course.lr / 2, looks.inputs, looks.loss_fn)
            except CoordinateCheckError:  # too slow to measure
                raise error from None
    return looks.slopes(course.lr, max(1, course.steps), learnt=course.enough)


def members_of(surrogate: Surrogate, widths: Sequence[int] | None) -> list[Surrogate]:
    """The members that a check compares, the narrowest first; see `coordinate_check`.

    Raises:
        ShrinkError: there is no member of such a size.
    """
    key = "scale" if "scale" in surrogate.sizes else "width"
    if widths is None:
        own = surrogate.sizes[key]
        if key == "scale":
            found = [own // 2**power for power in range(WIDTHS) if own % 2**power == 0]
        else:
            start = own
            while start < LEAST_WIDTH:
                start *= 2
            found = [start * 2**power for power in range(WIDTHS)]
    else:
        found = list(dict.fromkeys(widths))
    return sorted((surrogate.at(**{key: size}) for size in found), key=lambda one: -one.scale)


def fixed_targets() -> Loss:
    """A loss against random targets that are the same in every call; the first tensor of the output counts."""

    def loss(output: Any) -> Tensor:
        logits = next((one for one in tensors_in(output) if one.is_floating_point() and one.dim()), None)
        if logits is None:
            raise CoordinateCheckError("the model's outputs are single numbers: give the loss with loss_fn=")
        generator = torch.Generator().manual_seed(0)
        classes = logits.shape[-1]
        if classes == 1:
            wanted = torch.randn(logits.shape, generator=generator).to(logits)
            return (logits - wanted).square().mean()
        rows = logits.reshape(-1, classes)
        labels = torch.randint(classes, (rows.shape[0],), generator=generator)
        return cross_entropy(rows, labels.to(rows.device))

    return loss


def _normalised(member: Surrogate) -> bool:
    """Whether some layer computes its weight, as weight norm does."""
    return any(is_parametrized(one) for one in member.build(0).modules())


def _default_lr(surrogate: Surrogate, optimizer: str) -> float:
    """In terms of the target; for Adam it follows from the median fan-in of the target's hidden matrices."""
    if optimizer == "sgd":
        return SGD_LR
    fans = [math.prod(one.base_shape[1:]) for one in surrogate.growths.values() if one.kind is Kind.HIDDEN]
    return ADAM_LR_TIMES_FAN_IN / (statistics.median(fans) if fans else surrogate.scale * LEAST_WIDTH)


def _batch(surrogate: Surrogate) -> tuple[Tensor, ...]:
    given = surrogate.family.inputs.given
    return tuple(one[:BATCH] for one in given) if given else surrogate.example_inputs(BATCH)
