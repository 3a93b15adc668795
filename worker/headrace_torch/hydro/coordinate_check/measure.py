"""How far a few steps of training move each activation, at one width.

Two measures. For an activation whose size grows with the width: the mean size of its coordinates' changes; not the
root mean square, which one unlucky channel in front of a batch norm decides. For one of fixed size, such as logits:
the change along the loss's gradient. The logits' change is a sum of a part that learning directs, which is what
must not depend on the width, and of what the initial readout makes of changed features, a random sum that fades as
1/sqrt(width). Over many outputs their mean size shows little but the second.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headrace_torch.hydro.errors import CoordinateCheckError
from headrace_torch.hydro.shrink.usage import tensors_in

Loss = Callable[[Any], Tensor]
ROOT = "(output)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How far an activation has moved since initialisation.

    `size` is the mean over coordinates; `along_gradient` is None where the loss does not depend on the activation.
    The shape is without the batch.
    """

    shape: tuple[int, ...]
    size: float
    along_gradient: float | None


def measure(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: tuple[Tensor, ...],
    loss_fn: Loss,
    *,
    steps: int,
) -> Mapping[str, Change]:
    """Trains on one batch, and compares its activations after the last step with those before the first.

    Args:
        model: in the mode that it is to be trained in.
        optimizer: of the model's parameters.
        inputs: positional arguments of the forward pass.
        loss_fn: from the model's output to a scalar.
        steps: how many.

    Raises:
        CoordinateCheckError: the loss is not finite.
    """
    before, downhill = _start(model, inputs, loss_fn)
    for step in range(steps):
        loss = train_step(model, optimizer, inputs, loss_fn)
        if not math.isfinite(loss):
            raise CoordinateCheckError(f"the loss is {loss} at step {step}; choose a lower lr")
    with torch.no_grad(), _recording(model) as after, _same_dropout():
        model(*inputs)
    found = {}
    for name, old in before.items():
        if name in after and after[name].shape == old.shape:
            moved = after[name].detach().double() - old
            along = abs(float((moved * downhill[name]).sum())) if name in downhill else None
            found[name] = Change(
                shape=tuple(old.shape[1:]), size=float(moved.abs().mean()), along_gradient=along
            )
    return found


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: tuple[Tensor, ...], loss_fn: Loss
) -> float:
    """One step; returns the loss before it. After a loss that is not finite nothing is changed."""
    optimizer.zero_grad()
    with _same_dropout():
        loss = loss_fn(model(*inputs))
    if torch.isfinite(loss):
        loss.backward()  # type: ignore[no-untyped-call]  # torch's is untyped
        optimizer.step()
    return float(loss.detach())


def _start(
    model: nn.Module, inputs: tuple[Tensor, ...], loss_fn: Loss
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Activations before training, and the unit vectors along which the loss falls."""
    with _recording(model) as live, _same_dropout():
        loss = loss_fn(model(*inputs))
    reachable = {name: one for name, one in live.items() if one.requires_grad}
    gradients = torch.autograd.grad(loss, list(reachable.values()), allow_unused=True)
    downhill = {}
    for name, gradient in zip(reachable, gradients, strict=True):
        if gradient is not None and (size := gradient.double().norm()) > 0:
            downhill[name] = gradient.double() / size
    return {name: one.detach().double() for name, one in live.items()}, downhill


@contextmanager
def _recording(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Keeps the outputs of layers without layers inside, and of the model, of the pass that is run meanwhile."""
    found: dict[str, Tensor] = {}
    handles = []
    for name, module in model.named_modules():
        if name and any(True for _ in module.children()):
            continue

        def keep(_module: nn.Module, _args: Any, output: Any, name: str = name or ROOT) -> Any:
            tensors = [one for one in tensors_in(output) if one.is_floating_point()]
            for number, one in enumerate(tensors):
                key = name if len(tensors) == 1 else f"{name}[{number}]"
                while key in found:  # called again, a layer makes another activation
                    key += "'"
                found[key] = one
            # What follows works on a copy, for it may work in place.
            return output.clone() if isinstance(output, Tensor) and name != ROOT else output

        handles.append(module.register_forward_hook(keep))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _same_dropout() -> Iterator[None]:
    """Every pass draws the same masks, so that a change of activations is one of parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
