"""A scalar that replicas can differ in: how to read it, how to write it, and the space it is explored in.

What it acts on decides where a signal can come from:

- `update`: it changes the step that follows the gradient (learning rate, weight decay). Replicas that share
  gradients still diverge, so `mode="shared_grad"` works, and the training loss of the next batches carries a
  signal.
- `gradient`: it changes the loss or the forward pass (dropout, label smoothing, attention temperature). With
  shared gradients every replica would take the same step, so it needs `mode="local_grad"`. Its own training
  loss is biased: less dropout lowers it at once, whatever that does to the model. It is therefore scored on
  a probe, with the hyperparameter switched off.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from headrace_torch.hdet.errors import HdetConfigError
from headrace_torch.hdet.transforms import Space, TransformName

SCALE = "hdet_scale"
"""The key of a parameter group that holds exp(μ)·ρ, by which `HDETScheduler` multiplies the schedule's rate."""


@dataclass(frozen=True, slots=True)
class ScalarHyperparameter:
    """A scalar to explore.

    Attributes:
        name: unique among the hyperparameters of a controller; records and designs are keyed by it.
        get: returns the current value; called once, when the controller is made.
        set: writes a value on this rank; called at every sync point.
        transform: the space; see `headrace_torch.hdet.transforms`.
        low: the lowest value that may be set.
        high: the highest value that may be set.
        spread: the half-width of the fan in that space, in [0, 1); 0 leaves the value unchanged.
        acts_on: what it changes; see the module.
        probe_value: what it is set to on every rank while the probe runs; `None` leaves it.
        patient: whether it must not fall while the loss or its schedule falls, as for learning rates: a lower rate
            reduces the loss at once and costs progress later.
    """

    name: str
    get: Callable[[], float]
    set: Callable[[float], None]
    transform: TransformName = "log"
    low: float = 1e-8
    high: float = 1e8
    spread: float = 1 / 9
    acts_on: Literal["update", "gradient"] = field(default="update", kw_only=True)
    probe_value: float | None = field(default=None, kw_only=True)
    patient: bool = field(default=False, kw_only=True)

    @property
    def space(self) -> Space:
        """The space in which it is explored."""
        return Space(transform=self.transform, low=self.low, high=self.high, spread=self.spread)

    def problem(self) -> str | None:
        """Says what is out of range, including the current value, if anything is."""
        found = self.space.problem(self.name)
        if found is None and not self.low <= (value := float(self.get())) <= self.high:
            found = f"{self.name}: its value {value} is outside its bounds [{self.low}, {self.high}]"
        return found


def learning_rates(
    optimizer: Optimizer, *, spread: float = 1 / 9, low: float = 1e-3, high: float = 1e3
) -> list[ScalarHyperparameter]:
    """Returns one hyperparameter per parameter group: the factor on the schedule's rate that `HDETScheduler` applies.

    A group's name is its key `name`, if it has one, else its number. The bounds apply to the factor, which starts
    at 1.
    """
    for group in optimizer.param_groups:
        group[SCALE] = 1.0  # what a checkpoint left here belongs to the controller's own state
    return [
        _factor(optimizer, number, f"lr/{group.get('name', number)}", spread=spread, low=low, high=high)
        for number, group in enumerate(optimizer.param_groups)
    ]


def weight_decay(
    optimizer: Optimizer,
    *,
    spread: float = 1 / 3,
    low: float = 1e-6,
    high: float = 10.0,
    group: int | None = None,
) -> ScalarHyperparameter:
    """Returns the weight decay of one parameter group, or of all groups that have any.

    Raises:
        HdetConfigError: no group has a weight decay above 0; groups without one (norms, biases) stay without.
    """
    numbers = range(len(optimizer.param_groups)) if group is None else [group]
    chosen = [n for n in numbers if float(optimizer.param_groups[n].get("weight_decay", 0)) > 0]
    if not chosen:
        raise HdetConfigError("weight_decay: no parameter group has a weight decay above 0 to start from")

    def read() -> float:
        return float(optimizer.param_groups[chosen[0]]["weight_decay"])

    def write(value: float) -> None:
        for number in chosen:
            optimizer.param_groups[number]["weight_decay"] = value

    name = "weight_decay" if group is None else f"weight_decay/{group}"
    return ScalarHyperparameter(name, read, write, "log", low, high, spread)


def dropout(
    model: nn.Module,
    *,
    spread: float = 0.5,
    low: float = 0.0,
    high: float = 0.9,
    start: float | None = None,
    transform: TransformName = "logit",
) -> ScalarHyperparameter:
    """Returns the probability of every dropout layer of a model; evaluation mode, as in a probe, switches it off.

    The effect of dropout is proportional to p if p is small, so in log-odds the fan around a small p is too narrow
    to be distinguished from noise. From a start near 0 explore it under `transform="identity"`, whose fan is as
    wide everywhere; there the rule's `gain` and `cap` are in units of the range (a cap of 0.03 crosses it in some
    30 syncs), and a spread above 0.4 pulls the centre away from what a narrower one finds.

    Raises:
        HdetConfigError: the model has no dropout layer, or they differ and no `start` is given.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, nn.modules.dropout._DropoutNd)]
    if not layers:
        raise HdetConfigError("dropout: the model has no dropout layer")
    return _gradient_scalar(
        "dropout", layers, "p", transform=transform, low=low, high=high, spread=spread, start=start
    )


def label_smoothing(
    loss: nn.CrossEntropyLoss,
    *,
    spread: float = 0.5,
    low: float = 0.0,
    high: float = 0.5,
    transform: TransformName = "logit",
) -> ScalarHyperparameter:
    """Returns the label smoothing of a loss module; 0 while the probe runs. For `transform` see `dropout`."""
    return _gradient_scalar(
        "label_smoothing",
        [loss],
        "label_smoothing",
        transform=transform,
        low=low,
        high=high,
        spread=spread,
        off=0.0,
    )


def attention_temperature(
    layers: Iterable[nn.Module],
    *,
    attribute: str = "temperature",
    spread: float = 1 / 9,
    low: float = 0.1,
    high: float = 10.0,
) -> ScalarHyperparameter:
    """Returns a float attribute of attention layers.

    It is part of the model, so the probe runs with each replica's own value.
    """
    return _gradient_scalar(
        "attention_temperature", list(layers), attribute, transform="log", low=low, high=high, spread=spread
    )


def _gradient_scalar(
    name: str,
    owners: list[Any],
    attribute: str,
    *,
    transform: TransformName,
    low: float,
    high: float,
    spread: float,
    start: float | None = None,
    off: float | None = None,
) -> ScalarHyperparameter:
    """A float attribute of one or more modules."""
    if not owners:
        raise HdetConfigError(f"{name}: no module given")
    present = {float(getattr(owner, attribute)) for owner in owners}
    if start is None and len(present) > 1:
        raise HdetConfigError(f"{name}: modules start from different values {sorted(present)}; pass start=")

    def write(value: float) -> None:
        for owner in owners:
            setattr(owner, attribute, value)

    if start is not None:
        write(start)
    return ScalarHyperparameter(
        name,
        lambda: float(getattr(owners[0], attribute)),
        write,
        transform,
        low,
        high,
        spread,
        acts_on="gradient",
        probe_value=off,
    )


def _factor(
    optimizer: Optimizer, number: int, name: str, *, spread: float, low: float, high: float
) -> ScalarHyperparameter:
    """The factor of one parameter group, found again each time.

    Loading a checkpoint replaces the groups' dictionaries.
    """

    def read() -> float:
        return float(optimizer.param_groups[number].get(SCALE, 1.0))

    def write(value: float) -> None:
        optimizer.param_groups[number][SCALE] = value

    return ScalarHyperparameter(name, read, write, "log", low, high, spread, patient=True)


def write_lr(group: dict[str, Any], rate: float) -> None:
    """Writes a group's learning rate, in the form in which it is stored.

    A float is replaced; a tensor (capturable) is filled in place.
    """
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
