"""What the gate counts as an activation, what a pass requires, and what it detects besides slopes: divergence."""

import math
from typing import Any

import pytest
import torch
from hydro_models import CLASSES, rows
from test_hydro_gate import report
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headrace_torch import hydro
from headrace_torch.hydro.coordinate_check.stability import Divergence, divergence


class Balanced(nn.Module):
    """A perceptron that returns a term of its loss before or after its logits."""

    def __init__(self, width: int = 64, first: bool = False) -> None:
        super().__init__()
        self.wide, self.readout, self.first = nn.Linear(20, width), nn.Linear(width, CLASSES), first
        nn.init.zeros_(self.readout.weight)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.relu(self.wide(x))
        logits, term = self.readout(h), h.mean().square()
        return (term, logits) if self.first else (logits, term)


def test_a_single_number_is_no_activation() -> None:
    surrogate = hydro.shrink(Balanced, width=32, inputs=rows())
    labels = torch.arange(len(rows())) % CLASSES
    found = hydro.coordinate_check(
        surrogate,
        widths=[32, 64],
        steps=2,
        lr=1e-3,
        inputs=(rows(),),
        loss_fn=lambda output: cross_entropy(output[0], labels) + output[1],
    )
    assert [one.name for one in found.trends] == ["wide", "readout", "(output)[0]"]


def test_default_targets_are_for_the_first_output_with_coordinates() -> None:
    surrogate = hydro.shrink(lambda width=64: Balanced(width, first=True), width=32, inputs=rows())
    assert hydro.coordinate_check(surrogate, widths=[32, 64], steps=2, lr=1e-3).moved

    class Energy(Balanced):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x)[1]

    with pytest.raises(hydro.CoordinateCheckError, match=r"single numbers: give the loss with loss_fn="):
        hydro.coordinate_check(hydro.shrink(lambda width=64: Energy(width), width=32, inputs=rows()))


def test_a_pass_needs_each_interval_and_a_failure_all_at_once() -> None:
    """Correct activations, however many, do not make a pass harder. A steep one is still judged among all of them."""
    one, many = [(0.1, 0.07)], [(0.1, 0.07)] * 40
    assert report(*one).passed
    assert report(*many).passed
    found = report(*many)
    assert found.reach(found.trends[0], alone=True) < 0.15 < found.reach(found.trends[0])
    steep = (0.42, 0.07)
    assert report(steep).outcome == "failed"
    assert report(*many, steep).outcome == "inconclusive"


class Valley(nn.Module):
    """One weight with a curvature. Plain gradient descent diverges above 2 / curvature."""

    def __init__(self, curvature: float) -> None:
        super().__init__()
        self.weight, self.root = nn.Parameter(torch.ones(1)), math.sqrt(curvature)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * self.root * x


@pytest.mark.parametrize(
    ("wide", "expected"),
    [
        (8.0, 1.0),  # overshoots by a factor of 7 per step
        (1.0, None),
        (0.1, None),
    ],
)
def test_the_wide_member_is_tried_at_the_rate_that_the_narrow_one_bears(
    wide: float, expected: float | None
) -> None:
    def make(curvature: float) -> Any:
        def made(_seed: int, rate: float) -> tuple[nn.Module, torch.optim.Optimizer]:
            model = Valley(curvature)
            return model, torch.optim.SGD(model.parameters(), lr=rate)

        return made

    x = (torch.ones(1),)
    found = divergence(make(1.0), make(wide), 1 / 16, x, lambda output: 0.5 * output.square().sum(), steps=8)
    assert found == expected


def test_what_does_not_learn_is_no_measure_for_the_wide_member() -> None:
    """A dead network tolerates any rate: its loss is steady."""

    def dead(_seed: int, rate: float) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = Valley(1.0)
        return model, torch.optim.SGD(model.parameters(), lr=rate * 1e-9)

    def wild(_seed: int, _rate: float) -> tuple[nn.Module, torch.optim.Optimizer]:
        raise AssertionError("it is not asked")

    assert (
        divergence(dead, wild, 1.0, (torch.ones(1),), lambda output: output.square().sum(), steps=8) is None
    )


def test_a_divergence_fails_the_check_and_says_where() -> None:
    found = report((0.0, 0.01))
    found = hydro.CoordinateReport(
        **{name: getattr(found, name) for name in found.__dataclass_fields__ if name != "divergence"},
        divergence=Divergence(lr=0.01, narrow="16", wide="256"),
    )
    assert found.outcome == "failed"
    assert "at lr 0.01 the model of width 16 learns, and that of width 256 diverges" in str(found)
    with pytest.raises(
        hydro.CoordinateCheckError, match=r"diverges where its copy learns .* take a wider copy"
    ):
        found.raise_if_refuted()


class Sums(nn.Module):
    """Sums messages over neighbours three times, and only tanh bounds them."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.first, self.readout = nn.Linear(6, width), nn.Linear(width, 1)
        self.rounds = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        for one in self.rounds:
            x = torch.tanh(one(x + edges @ x))
        return self.readout(x.mean(1))[:, 0]


@pytest.mark.full
def test_sums_over_neighbours_diverge_where_the_copy_learns() -> None:
    """Under SGD, without any visible slope."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 12, 6, generator=generator)
    upper = torch.triu(torch.rand(64, 12, 12, generator=generator) < 0.27, 1).float()
    edges = upper + upper.mT
    wanted = (torch.tanh(edges @ x) + x).mean((1, 2))
    wanted = ((wanted - wanted.mean()) / wanted.std())[:16]
    found = hydro.coordinate_check(
        hydro.shrink(Sums, width=32, inputs=(x[:16], edges[:16])),
        optimizer="sgd",
        loss_fn=lambda output: (output - wanted).square().mean(),
    )
    assert found.outcome == "failed"
    assert found.divergence is not None
    assert not found.failures
