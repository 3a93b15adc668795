"""The claim itself, in short forms: the best learning rate stays the same when the model gets wider, or deeper.

The long forms (width × 16 for an MLP and a GPT, depth 2 to 16) are in `benchmarks/hydro_transfer`.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hydro_models import ResidualMLP
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu

from headrace_torch import hydro

pytestmark = pytest.mark.full

STEPS = 30


class Net(nn.Module):
    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.first, self.second, self.readout = (
            nn.Linear(20, width),
            nn.Linear(width, width),
            nn.Linear(width, 10),
        )
        nn.init.zeros_(self.readout.weight)

    def forward(self, x: Tensor) -> Any:
        return self.readout(relu(self.second(relu(self.first(x)))))


def problem() -> tuple[Tensor, Tensor]:
    """A teacher's classes for random points."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(256, 20, generator=generator)
    teacher = torch.randn(20, 40, generator=generator), torch.randn(40, 10, generator=generator)
    return inputs, (relu(inputs @ teacher[0]) @ teacher[1]).argmax(dim=1)


def best_exponent(prepare: Callable[[float], tuple[nn.Module, Any]], exponents: range) -> int:
    """The exponent e of the rate 2^e, decaying linearly, that ends with the least training loss."""
    inputs, wanted = problem()
    ends = {}
    for exponent in exponents:
        model, optimizer = prepare(2.0**exponent)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / STEPS)
        for step in range(STEPS):
            rows = torch.randint(256, (64,), generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            cross_entropy(model(inputs[rows]), wanted[rows]).backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            end = float(cross_entropy(model(inputs), wanted))
        ends[exponent] = end if end == end else float("inf")
    return min(ends, key=lambda one: ends[one])


def by_rules(member: hydro.Surrogate) -> Callable[[float], tuple[nn.Module, Any]]:
    def prepare(lr: float) -> tuple[nn.Module, Any]:
        model = member.build(seed=0)
        return model, member.optimizer(model, "adam", lr=lr)

    return prepare


def test_the_best_rate_stays_when_the_width_grows_16_times() -> None:
    narrow = hydro.shrink(Net, width=32, inputs=problem()[0])
    ours = [best_exponent(by_rules(narrow.at(width=width)), range(-13, -3)) for width in (32, 512)]
    assert abs(ours[0] - ours[1]) <= 1, ours

    def standard(width: int) -> Callable[[float], tuple[nn.Module, Any]]:
        def prepare(lr: float) -> tuple[nn.Module, Any]:
            torch.manual_seed(0)
            model = Net(width)
            return model, torch.optim.Adam(model.parameters(), lr=lr)

        return prepare

    control = [best_exponent(standard(width), range(-13, 0)) for width in (32, 512)]
    assert control[0] - control[1] >= 3, control


def test_the_best_rate_stays_when_the_depth_grows_from_2_to_16() -> None:
    shallow = hydro.shrink(ResidualMLP, depth=2, target={"width": 32, "depth": 16}, inputs=problem()[0])
    ours = [best_exponent(by_rules(shallow.at(depth=depth)), range(-9, -3)) for depth in (2, 16)]
    assert abs(ours[0] - ours[1]) <= 1, ours


@pytest.mark.parametrize("sizes", [{"width": 8}, {"width": 8, "depth": 2}])
def test_a_surrogate_trains(sizes: dict[str, int]) -> None:
    surrogate = hydro.shrink(ResidualMLP, inputs=problem()[0], **sizes)
    inputs, wanted = problem()
    model = surrogate.build(seed=0)
    optimizer = surrogate.optimizer(model, "adamw", lr=4e-3)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
