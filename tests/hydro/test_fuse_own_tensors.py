"""A step that takes a tensor out of its member's row, or adds one, is refused by name, and the remedy works."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headrace_torch import hydro

ENGINES = ["auto", "separate", "vmap"]
X = torch.linspace(-1, 1, 40).reshape(10, 4)
MEMBERS = [{"lr": 0.01}, {"lr": 0.02}]
LAST: Any = None


class Momentum(nn.Module):
    """An encoder that follows another one from some step on, written in place or not."""

    def __init__(self, at: int, *, in_place: bool) -> None:
        super().__init__()
        self.fast, self.slow = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)
        self.register_buffer("mean", torch.zeros(3))
        self.calls, self.at, self.in_place = 0, at, in_place

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out = self.fast(x) - self.slow(x) - self.mean
        for old, new in ((self.slow.weight, self.fast.weight), (self.mean, out.mean(0))):
            if self.calls >= self.at:
                self.follow(old, new.detach())
        return out

    def follow(self, old: Tensor, new: Tensor) -> None:
        if not self.in_place:
            old.data = 0.9 * old.data + 0.1 * new
            return
        with torch.no_grad():
            old.copy_(0.9 * old + 0.1 * new)


class Late(nn.Module):
    """Registers a tensor in its first step, or fills one that was None."""

    def __init__(self, *, known: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        if known:
            self.register_buffer("mean", None)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        if getattr(self, "mean", None) is None:
            self.register_buffer("mean", torch.zeros(3))
        return out - self.mean


class Keeps(nn.Module):
    """Keeps its output in a global."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        global LAST
        LAST = self.layer(x)
        return LAST


def mean_square(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def trained(make: Callable[[], nn.Module], engine: Any, steps: int = 1) -> list[float]:
    group = hydro.fuse(make, MEMBERS, engine=engine)
    return [float(group.step(X, mean_square)[0]) for _ in range(steps)]


@pytest.mark.parametrize("engine", ENGINES)
def test_data_that_is_set_is_refused_with_the_remedy(engine: Any) -> None:
    expected = r"a step gives slow\.weight other memory, as `\.data =` does.*copy_\(\)"
    with pytest.raises(hydro.FuseError, match=expected):
        trained(lambda: Momentum(1, in_place=False), engine)


def test_data_that_is_set_later_is_refused_too() -> None:
    group = hydro.fuse(lambda: Momentum(3, in_place=False), MEMBERS, engine="separate")
    group.step(X, mean_square)
    group.step(X, mean_square)
    with pytest.raises(hydro.FuseError, match=r"a step gives slow\.weight other memory"):
        group.step(X, mean_square)


def test_what_is_written_in_place_trains_as_alone() -> None:
    torch.manual_seed(0)
    alone = Momentum(2, in_place=True)
    optimizer, losses = torch.optim.AdamW(alone.fast.parameters(), lr=0.01), []
    for _ in range(5):
        optimizer.zero_grad()
        loss = mean_square(alone, X)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert trained(lambda: Momentum(2, in_place=True), "separate", 5) == pytest.approx(losses, rel=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("known", [False, True])
def test_a_buffer_of_the_first_step_is_refused_by_name(engine: Any, *, known: bool) -> None:
    with pytest.raises(hydro.FuseError, match="a step registers mean, which the model did not have"):
        trained(lambda: Late(known=known), engine)


def test_a_global_that_holds_an_output_is_alive() -> None:
    """A pass that was tried and refused restores it. Separate members leave the first member's."""
    before = globals()["LAST"] = torch.ones(1)
    with pytest.raises(hydro.FusionGapError, match="the loss keeps a tensor after the step"):
        trained(Keeps, "vmap")
    assert LAST is before
    losses = trained(Keeps, "auto", 2)
    assert float(LAST.detach().square().mean()) == pytest.approx(losses[-1])
