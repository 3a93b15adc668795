"""Programs that keep state in Python and in an extra state, for the tests of what a member's state contains."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headrace_torch import hydro

ENGINES = ["separate", "grouped", "vmap"]
X = torch.linspace(-1, 1, 40).reshape(10, 4)
MEMBERS = [{"lr": 0.01, "seed": seed} for seed in range(3)]


class Annealed:
    """A loss whose weight grows for sixty steps."""

    def __init__(self) -> None:
        self.calls = 0
        self.betas: list[float] = []

    def __call__(self, model: nn.Module, batch: Tensor) -> Tensor:
        self.calls += 1
        self.betas.append(min(1.0, self.calls / 60))
        return model(batch).square().mean() * self.betas[-1]


class Scaled(nn.Module):
    """Its scale is in the extra state. A step changes it, or nothing does."""

    def __init__(self, factor: float = 1.1) -> None:
        super().__init__()
        self.layer, self.scale, self.factor = nn.Linear(4, 3), 1.0, factor

    def forward(self, x: Tensor) -> Tensor:
        self.scale *= self.factor
        return self.layer(x) * self.scale

    def get_extra_state(self) -> Any:
        return {"scale": self.scale}

    def set_extra_state(self, state: Any) -> None:
        self.scale = state["scale"]


class Deep(nn.Module):
    """A layer with an extra state, in a model with a cache of its own."""

    def __init__(self, factor: float = 1.1) -> None:
        super().__init__()
        self.inner = nn.Sequential(Scaled(factor), nn.Tanh())
        self.shapes: dict[torch.Size, int] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.shapes.setdefault(x.shape, len(self.shapes))
        return self.inner(x)


def linear() -> nn.Module:
    return nn.Linear(4, 3)


def mean_square(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def trained(make: Callable[[], nn.Module], loss: Any, steps: int, engine: Any = "auto") -> hydro.Group:
    group = hydro.fuse(make, MEMBERS, engine=engine)
    for _ in range(steps):
        group.step(X, loss)
    return group
