"""What the benchmarks of this folder share: the example's models and data, plain training, and the standard control."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headrace_torch import hydro

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "examples" / "hydro"))

import tune  # noqa: E402 - it imports from the folder that the line above adds
from data import Text  # noqa: E402 - in the folder that the line above adds
from digits import MLP, Digits, ResNet  # noqa: E402 - stands with the others
from models import GPT  # noqa: E402 - in the folder that the line above adds

__all__ = [
    "GPT",
    "HERE",
    "MLP",
    "Digits",
    "ResNet",
    "Text",
    "by_rules",
    "hydro_sgd",
    "standard",
    "train",
    "tune",
]

OPTIMIZERS: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
Prepared = tuple[nn.Module, torch.optim.Optimizer]


def by_rules(optimizer: str, lr: float, **settings: Any) -> Callable[[hydro.Surrogate, int], Prepared]:
    """Our parametrization."""

    def prepare(member: hydro.Surrogate, seed: int) -> Prepared:
        model = member.build(seed)
        return model, member.optimizer(model, optimizer, lr=lr, **settings)

    return prepare


def standard(optimizer: str, lr: float, **settings: Any) -> Callable[[hydro.Surrogate, int], Prepared]:
    """The control: the user's initial values, no multiplier anywhere."""

    def prepare(member: hydro.Surrogate, seed: int) -> Prepared:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = member.family.source.make(member.sizes)
        return model, OPTIMIZERS[optimizer](model.parameters(), lr=lr, **settings)

    return prepare


def hydro_sgd(lr: float) -> Callable[[hydro.Surrogate, int], Prepared]:
    """The control: the published Hydro code's rule for SGD, which multiplies hidden matrices' rates by the scale."""

    def prepare(member: hydro.Surrogate, seed: int) -> Prepared:
        model, rules = member.build(seed), member.parametrization("sgd")
        groups = []
        for name, parameter in model.named_parameters():
            wrong = member.scale if rules[name].kind is hydro.Kind.HIDDEN else 1.0
            groups.append({"params": [parameter], "lr": lr * rules[name].lr * wrong})
        return model, torch.optim.SGD(groups, lr=lr)

    return prepare


def train(
    prepared: Prepared, data: Any, *, steps: int, rows: int, seed: int, tail: int = 10, decay: bool = True
) -> float:
    """The mean training loss of the last steps; infinity if it diverged.

    The rate falls linearly to zero: the optimum of a constant rate mostly reflects the noise.
    """
    model, optimizer = prepared
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps if decay else 1.0)
    losses = []
    for step in range(steps):
        inputs, wanted = data.batch(step, rows, seed)
        optimizer.zero_grad()
        loss = loss_of(model(inputs), wanted)
        if not torch.isfinite(loss) or loss > 50:
            return float("inf")
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return sum(losses[-tail:]) / tail


def loss_of(logits: Tensor, wanted: Tensor) -> Tensor:
    """The mean cross-entropy of all predictions."""
    return cross_entropy(logits.flatten(0, -2), wanted.flatten())
