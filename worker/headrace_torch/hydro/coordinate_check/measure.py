"""How far a few steps of training move each activation, at one width."""

from collections.abc import Callable, Iterator, Sequence
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
class Movement:
    """Root mean square of the change of each activation's coordinates since initialisation.

    `by_step[t][name]` is the change after t + 1 steps.
    """

    by_step: Sequence[dict[str, float]]
    losses: Sequence[float]


def measure(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: tuple[Tensor, ...], loss_fn: Loss, *, steps: int
) -> Movement:
    """Trains on one batch, and compares the activations of that batch after each step with those before the first.

    Args:
        model: in the mode that it is to be trained in.
        optimizer: of the model's parameters.
        inputs: positional arguments of the forward pass.
        loss_fn: from the model's output to a scalar.
        steps: how many.

    Raises:
        CoordinateCheckError: the loss or an activation is not finite.
    """
    before = _activations(model, inputs)
    moved, losses = [], []
    for step in range(steps):
        optimizer.zero_grad()
        with _same_dropout():
            loss = loss_fn(model(*inputs))
        if not torch.isfinite(loss):
            raise CoordinateCheckError(f"the loss is {float(loss)} at step {step}; choose a lower lr")
        loss.backward()  # type: ignore[no-untyped-call]  # torch's is untyped
        optimizer.step()
        losses.append(float(loss))
        now = _activations(model, inputs)
        moved.append({name: _distance(before[name], now[name]) for name in before if name in now})
    return Movement(by_step=moved, losses=losses)


def _distance(one: Tensor, two: Tensor) -> float:
    return float((two - one).square().mean().sqrt())


@torch.no_grad()
def _activations(model: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    handles = []
    for name, module in model.named_modules():
        if name and any(True for _ in module.children()):
            continue

        def keep(_module: nn.Module, _args: Any, output: Any, name: str = name or ROOT) -> None:
            tensors = [one for one in tensors_in(output) if one.is_floating_point()]
            for number, one in enumerate(tensors):
                # A layer that is called again is another activation; copied, for an in-place ReLU may follow.
                key = name if len(tensors) == 1 else f"{name}[{number}]"
                while key in found:
                    key += "'"
                found[key] = one.detach().double().clone()

        handles.append(module.register_forward_hook(keep))
    try:
        with _same_dropout():
            model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found


@contextmanager
def _same_dropout() -> Iterator[None]:
    """Every pass draws the same masks, so that a change of activations is one of parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
