"""How far a few steps of training move each activation, at one width.

There are two measures. For an activation whose size grows with the width, it is the mean size of its coordinates'
changes; not the root mean square, which one unlucky channel in front of a batch norm can dominate. For an
activation of fixed size, such as logits, it is the change along the loss's gradient. The logits' change is a sum
of two parts. Learning directs the first, which is what must not depend on the width. The second is what the
initial readout makes of changed features, a random sum that fades as 1/sqrt(width). Over many outputs, the mean
size shows little but the second part.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from headrace_torch.hydro.errors import CoordinateCheckError
from headrace_torch.hydro.parametrize.hooks import Query, Readout
from headrace_torch.hydro.shrink.usage import tensors_in

Loss = Callable[[Any], Tensor]
ROOT = "(output)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How far an activation has moved since initialisation.

    `size` is the mean over the coordinates that the loss depends on; `along_gradient` is None if the loss did not
    depend on the activation at the start. Both are means over the last quarter of the steps. The shape excludes
    the batch. `from_zero`: all coordinates were zero, like those of queries whose weights start at zero.
    """

    shape: tuple[int, ...]
    size: float
    along_gradient: float | None
    from_zero: bool = False


def measure(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: tuple[Tensor, ...],
    loss_fn: Loss,
    *,
    steps: int,
) -> Mapping[str, Change]:
    """Trains on one batch, and compares its activations towards the end with those before the first step.

    It takes the mean over the last quarter of the steps, because single steps swing near the highest stable rate.

    Args:
        model: in the mode in which it is trained.
        optimizer: of the model's parameters.
        inputs: positional arguments of the forward pass.
        loss_fn: maps the model's output to a scalar.
        steps: how many steps to train.

    Raises:
        CoordinateCheckError: the loss is not finite.
    """
    before, downhill, silent = _start(model, inputs, loss_fn)
    moves: dict[str, list[Tensor]] = {}
    heard: dict[str, Tensor] = {}
    along: dict[str, list[float]] = {}
    for step in range(steps + 1):
        if step >= steps - steps // 4:
            now, gradients = _pass(model, inputs, loss_fn)
            for name, old in before.items():
                if name in now and now[name].shape == old.shape:
                    moved = now[name].detach().double() - old
                    moves.setdefault(name, []).append(moved.abs())
                    if (gradient := gradients.get(name)) is not None:
                        heard[name] = heard.get(name, torch.zeros_like(gradient)) + gradient.abs()
                    if name in downhill:
                        along.setdefault(name, []).append(abs(float((moved * downhill[name]).sum())))
        if step < steps:
            loss = train_step(model, optimizer, inputs, loss_fn)
            if not math.isfinite(loss):
                raise CoordinateCheckError(f"the loss is {loss} at step {step}; choose a lower lr")
    return {
        name: Change(
            shape=tuple(before[name].shape[1:]),
            size=fmean(float(one[counted].mean()) for one in found),
            along_gradient=fmean(along[name]) if name in along else None,
            from_zero=not before[name].any(),
        )
        for name, found in moves.items()
        if (counted := _counted(heard.get(name, silent.get(name)))) is not None
    }


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: tuple[Tensor, ...], loss_fn: Loss
) -> float:
    """Runs one step; returns the loss before it. If the loss is not finite, nothing is changed."""
    optimizer.zero_grad()
    with _same_dropout():
        loss = loss_fn(model(*inputs))
    if torch.isfinite(loss):
        loss.backward()  # type: ignore[no-untyped-call]  # torch's is untyped
        optimizer.step()
    return float(loss.detach())


def _start(
    model: nn.Module, inputs: tuple[Tensor, ...], loss_fn: Loss
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Activations before training, the unit vectors along which the loss falls, and the activations that no
    parameter moves."""
    live, gradients = _pass(model, inputs, loss_fn)
    downhill = {name: one / size for name, one in gradients.items() if (size := one.norm()) > 0}
    silent = {name: torch.ones_like(one) for name, one in live.items() if not one.requires_grad}
    return {name: one.detach().double() for name, one in live.items()}, downhill, silent


def _pass(
    model: nn.Module, inputs: tuple[Tensor, ...], loss_fn: Loss
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Activations, and the loss's gradients with respect to those that it depends on."""
    with _recording(model) as live, _same_dropout():
        loss = loss_fn(model(*inputs))
    reachable = {name: one for name, one in live.items() if one.requires_grad}
    found = torch.autograd.grad(loss, list(reachable.values()), allow_unused=True)
    gradients = {
        name: one.detach().double() for name, one in zip(reachable, found, strict=True) if one is not None
    }
    return live, gradients


def _counted(gradient: Tensor | None) -> Tensor | None:
    """Which coordinates the loss depends on: those that are in no slice, along any dim, whose gradients are all
    zero.

    None if there are none.

    In a transformer that reads out one position, the last block's outputs at the other positions are such slices.
    A unit that a ReLU has switched off for some rows is not.
    """
    if gradient is None:
        return None
    counted = torch.ones_like(gradient, dtype=torch.bool)
    for dim in range(gradient.dim()):
        others = [one for one in range(gradient.dim()) if one != dim]
        alive = gradient.amax(others) > 0 if others else gradient > 0
        counted &= alive.view([-1 if one == dim else 1 for one in range(gradient.dim())])
    return counted if bool(counted.any()) else None


@contextmanager
def _recording(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Keeps the outputs of layers, and of the model, during the pass that runs inside it.

    A layer contains no layers except those of its parametrizations. Markers are left out, and so are single
    numbers: a loss, or a term of one, has no coordinates that a width could move.
    """
    found: dict[str, Tensor] = {}
    handles = []
    for name, module in model.named_modules():
        if name and any(child != "parametrizations" for child, _ in module.named_children()):
            continue
        if isinstance(module, Readout | Query) or "parametrizations" in name.split("."):
            continue  # these pass on what a layer makes, or make a layer's weight: neither is an activation

        def keep(_module: nn.Module, _args: Any, output: Any, name: str = name or ROOT) -> Any:
            tensors = [one for one in tensors_in(output) if one.is_floating_point()]
            for number, one in enumerate(tensors):
                if one.dim() == 0:
                    continue
                key = name if len(tensors) == 1 else f"{name}[{number}]"
                while key in found:  # called again, a layer makes another activation
                    key += "'"
                found[key] = one
            # A copy, because what follows may work in place.
            return output.clone() if isinstance(output, Tensor) and name != ROOT else output

        handles.append(module.register_forward_hook(keep))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _same_dropout() -> Iterator[None]:
    """Makes every pass draw the same masks, so that a change of activations is due to parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
