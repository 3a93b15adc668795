"""The gate passes our parametrization, and rejects each of the wrong ones by a wide margin."""

import math
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from hydro_models import CLASSES, MLP, ResNet, images, rows
from torch import Tensor, nn
from torch.nn.functional import relu, scaled_dot_product_attention

from headrace_torch import hydro
from headrace_torch.hydro.coordinate_check.report import ActivationTrend, trend_of

WIDTHS = (64, 128, 256, 512)


class Net(nn.Module):
    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(20, width), nn.Linear(width, width)
        self.norm, self.readout = nn.LayerNorm(width), nn.Linear(width, CLASSES)
        nn.init.zeros_(self.readout.weight)

    def forward(self, x: Tensor) -> Any:
        return self.readout(relu(self.norm(self.second(relu(self.first(x))))))


@pytest.fixture(scope="module")
def surrogate() -> hydro.Surrogate:
    return hydro.shrink(Net, width=WIDTHS[0], inputs=rows())


def check(surrogate: hydro.Surrogate, optimizer: str, **settings: Any) -> hydro.CoordinateReport:
    return hydro.coordinate_check(
        surrogate, widths=WIDTHS, seeds=3, steps=4, optimizer=optimizer, inputs=(rows(),), **settings
    )


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_our_rules_pass(surrogate: hydro.Surrogate, optimizer: str) -> None:
    report = check(surrogate, optimizer).raise_if_failed()
    assert [one.name for one in report.trends] == ["first", "second", "norm", "readout", "(output)"]
    assert all(abs(one.slope or 0) <= 0.1 for one in report.trends), str(report)
    assert report.labels == ["64", "128", "256", "512"]


def test_the_standard_parametrization_fails(surrogate: hydro.Surrogate) -> None:
    for optimizer, kind in (("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)):

        def standard(member: hydro.Surrogate, seed: int, kind: Any = kind, optimizer: str = optimizer) -> Any:
            torch.manual_seed(seed)
            model = Net(**member.sizes)
            return model, kind(model.parameters(), lr={"sgd": 0.1, "adam": 2e-4}[optimizer])

        report = check(surrogate, optimizer, prepare=standard)
        assert max(one.slope or 0 for one in report.trends) >= 0.3, str(report)
        with pytest.raises(
            hydro.CoordinateCheckError, match=r"depends on the width .* slopes .*tolerated is ±0.25"
        ):
            report.raise_if_failed()


@pytest.mark.full
def test_hydros_rule_for_sgd_fails(surrogate: hydro.Surrogate) -> None:
    """The published code multiplies the rates of hidden matrices by the scale; in muP the factor is 1."""

    def published(member: hydro.Surrogate, seed: int) -> Any:
        model, rules = member.build(seed), member.parametrization("sgd")
        return model, torch.optim.SGD(
            [
                {
                    "params": [one],
                    "lr": 0.1 * rules[name].lr * (member.scale if rules[name].kind == "hidden" else 1),
                }
                for name, one in model.named_parameters()
            ]
        )

    report = check(surrogate, "sgd", prepare=published)
    assert min(one.slope or 0 for one in report.trends) <= -0.5, str(report)
    assert not report.passed
    assert report.failures[0].name == report.worst.name == "second"


@pytest.mark.parametrize("forgotten", ["readout", "rates"])
def test_a_forgotten_multiplier_fails(surrogate: hydro.Surrogate, forgotten: str) -> None:
    def mutant(member: hydro.Surrogate, seed: int) -> Any:
        model: Any = member.build(seed)
        if forgotten == "readout":
            model.readout._forward_pre_hooks.clear()
            return model, member.optimizer(model, "adam", lr=2e-4)
        return model, torch.optim.Adam(model.parameters(), lr=2e-4)

    assert not check(surrogate, "adam", prepare=mutant).passed


@pytest.mark.full
def test_a_width_out_of_sight_fails() -> None:
    """The factory multiplies by the root of a width inside an activation: the shapes are right, but the training
    is not."""

    class Hidden(Net):
        def forward(self, x: Tensor) -> Any:
            x = relu(self.first(x)) * self.first.out_features**0.5
            return self.readout(relu(self.second(x)))

    surrogate = hydro.shrink(lambda width=512: Hidden(width), width=64, inputs=rows())
    with pytest.raises(hydro.CoordinateCheckError, match="second"):
        check(surrogate, "sgd", lr=1e-3).raise_if_failed()


def test_the_gate_by_default_takes_four_widths_that_are_wide_enough() -> None:
    report = hydro.coordinate_check(hydro.shrink(MLP, width=8, inputs=rows()), seeds=3).raise_if_failed()
    assert report.labels == ["32", "64", "128", "256"]
    assert report.widths == pytest.approx([0.5, 1.0, 2.0, 4.0])
    with pytest.raises(hydro.CoordinateCheckError, match="at least two widths"):
        hydro.coordinate_check(hydro.shrink(MLP, scale=2, inputs=rows()), widths=[32])


def test_a_rebuilt_module_is_checked_at_its_scales() -> None:
    torch.manual_seed(0)
    report = hydro.coordinate_check(hydro.shrink(ResNet(32), scale=8, inputs=images()), seeds=1, steps=1)
    assert report.labels == ["1/8", "1/4", "1/2", "1/1"]
    assert {"stem", "blocks.0.conv1", "readout", "(output)"} <= {one.name for one in report.trends}


@pytest.mark.full
def test_a_divergent_rate_says_so(surrogate: hydro.Surrogate) -> None:
    with pytest.raises(
        hydro.CoordinateCheckError, match=r"the loss is (nan|inf) at step \d; choose a lower lr"
    ):
        check(surrogate, "sgd", lr=1e30)
    with pytest.raises(hydro.ParametrizationError, match="'lion' has no rules"):
        check(surrogate, "lion")


@pytest.mark.full
def test_the_plot_names_what_is_steep(surrogate: hydro.Surrogate, tmp_path: Path) -> None:
    path = tmp_path / "check.svg"
    good = hydro.draw_coordinate_check(check(surrogate, "adam"), path)
    assert path.read_text(encoding="utf-8") == good
    root = ElementTree.fromstring(good)
    assert len(root.findall("{*}polyline")) == 5
    assert "passed" in good
    bad = hydro.draw_coordinate_check(check(surrogate, "adam", tolerance=-1.0))  # any slope is too steep
    assert "failed" in bad
    assert bad.count("#c0392b") == 10  # five lines and their names


def test_slopes_are_those_of_powers() -> None:
    widths = [1, 2, 4]
    assert trend_of("x", widths, [[width**0.3] for width in widths]).slope == pytest.approx(0.3)
    assert trend_of("x", widths, [[2.0, 8.0], [4.0, 4.0], [4.0, 4.0]]).slope == pytest.approx(0)
    assert trend_of("x", widths, [[0.0], [0.0], [0.0]]).slope is None
    assert trend_of("x", widths, [[0.0], [1.0], [1.0]]).slope == float("inf")


class Asking(nn.Module):
    """Attention whose queries start at zero: chance moves them first. Two heads, or as many heads of width 32 as
    fit."""

    def __init__(self, width: int = 256, head_width: int | None = None) -> None:
        super().__init__()
        self.heads = 2 if head_width is None else width // head_width
        self.words, self.places = nn.Embedding(64, width), nn.Parameter(0.02 * torch.randn(16, width))
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        nn.init.normal_(self.words.weight, std=0.02)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.readout = nn.Linear(width, 64)
        for layer in (self.query, self.readout):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, text: Tensor) -> Any:
        x = self.words(text) + self.places
        normed = self.norm(x)
        heads = [
            layer(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        mixed = scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        return self.readout(self.last(x + self.out(mixed)))


PROSE = (
    "Tuning a large model means training it many times. With Hydro you train a narrow copy instead, many copies at "
    "once, and the best learning rate, schedule and momentum"
)


def prose() -> Tensor:
    """Eight rows of sixteen letters: unlike random rows, they repeat."""
    return torch.tensor(list(PROSE.encode()))[:128].view(8, 16) % 64


def asking(head_width: int | None = None, text: Tensor | None = None) -> tuple[hydro.Surrogate, Tensor]:
    if text is None:
        text = torch.randint(64, (8, 16), generator=torch.Generator().manual_seed(0))
    return hydro.shrink(partial(Asking, head_width=head_width), width=64, inputs=text), text


@pytest.mark.full
def test_queries_that_start_at_zero_fall_less_once_something_is_learnt() -> None:
    """A + B/n: chance contributes most of the change in the first steps, and little in the later ones."""
    surrogate, text = asking()
    query = {}
    for steps in (2, 24, 48):
        report = hydro.coordinate_check(
            surrogate, widths=WIDTHS, optimizer="sgd", lr=0.05, steps=steps, inputs=(text,)
        )
        query[steps] = next(one for one in report.trends if one.name == "query")
        assert query[steps].from_zero
    assert (query[2].slope or 0) < -0.15
    assert (query[2].slope or 0) + 0.05 < (query[24].slope or 0) < (query[48].slope or 0) - 0.05
    assert -0.12 <= (query[48].slope or 0) <= 0.1


@pytest.mark.full
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_model_that_grows_by_heads_passes_as_the_gate_runs_by_itself(optimizer: str) -> None:
    """On text. If no two rows have anything in common, queries fall for another reason (see the next test)."""
    surrogate, text = asking(head_width=32, text=prose())
    report = hydro.coordinate_check(surrogate, widths=WIDTHS, optimizer=optimizer, inputs=(text,))
    assert next(one for one in report.trends if one.name == "query").from_zero
    report.raise_if_failed()


@pytest.mark.full
def test_chance_in_the_first_steps_is_less_with_heads_of_a_fixed_width_and_with_rows_that_repeat() -> None:
    """Each head's score has a gradient of a constant number of products; products of unlike inputs add noise as
    well."""

    def after_two_steps(head_width: int | None, text: Tensor) -> float:
        surrogate, _ = asking(head_width, text)
        report = hydro.coordinate_check(
            surrogate, widths=WIDTHS, optimizer="sgd", lr=0.05, steps=2, seeds=6, inputs=(text,)
        )
        return next(one.slope or 0 for one in report.trends if one.name == "query")

    unlike = torch.randint(64, (32, 16), generator=torch.Generator().manual_seed(0))
    wider, more = after_two_steps(None, prose()), after_two_steps(32, prose())
    assert wider < -0.25
    assert more > wider + 0.1
    assert after_two_steps(32, unlike) < more - 0.05


@pytest.mark.cases(1)
@pytest.mark.parametrize("head_width", [None, 32])
def test_a_wrong_rate_of_queries_fails_though_they_start_at_zero(head_width: int | None) -> None:
    """Hydro's published rule: what is learnt shrinks with the width as well, and nothing remains."""
    surrogate, text = asking(head_width, None if head_width is None else prose())

    def published(member: hydro.Surrogate, seed: int) -> Any:
        model, rules = member.build(seed), member.parametrization("sgd")
        groups = [
            {"params": [one], "lr": 0.1 * rules[name].lr * (member.scale if "query.weight" in name else 1)}
            for name, one in model.named_parameters()
        ]
        return model, torch.optim.SGD(groups, lr=0.1)

    report = hydro.coordinate_check(
        surrogate, widths=WIDTHS[:3], optimizer="sgd", inputs=(text,), prepare=published
    )
    assert report.worst.name == "query", str(report)
    assert (report.worst.slope or 0) <= -0.3, str(report)


@pytest.mark.full
def test_what_starts_at_zero_is_measured_like_the_rest_and_explained() -> None:
    widths, chance = [1, 4, 16], [[(1 + 4 / width) ** 0.5] * 3 for width in (1, 4, 16)]
    query = trend_of("query", widths, chance, from_zero=True)
    assert query.slope == trend_of("x", widths, chance).slope
    assert query.slope == pytest.approx(math.log(1.25 / 5) / math.log(16) / 2)

    def message(*trends: ActivationTrend) -> str:
        report = hydro.CoordinateReport(
            widths=widths,
            labels=["1", "4", "16"],
            trends=trends,
            tolerance=0.1,
            optimizer="sgd",
            lr=0.1,
            steps=8,
            seeds=3,
        )
        with pytest.raises(hydro.CoordinateCheckError) as error:
            report.raise_if_failed()
        return str(error.value)

    assert "query starts at zero, and what moves it first is chance" in message(query)
    assert "chance" not in message(trend_of("x", widths, chance))
    grows = trend_of("query", widths, [[1] * 3, [2] * 3, [4] * 3], from_zero=True)
    assert "chance" not in message(grows)


@pytest.mark.full
def test_a_rate_that_teaches_nothing_is_refused_and_one_that_diverges_too(surrogate: hydro.Surrogate) -> None:
    with pytest.raises(hydro.CoordinateCheckError, match=r"fell by 0% only, .* choose a higher lr"):
        hydro.coordinate_check(surrogate, widths=WIDTHS[:2], optimizer="sgd", lr=1e-7)
    with pytest.raises(hydro.CoordinateCheckError, match=r"narrowest model rises at lr 1e\+30 .* lower lr"):
        hydro.coordinate_check(surrogate, widths=WIDTHS[:2], optimizer="sgd", lr=1e30)


@pytest.mark.full
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_loss_that_cannot_halve_ends_with_a_verdict(optimizer: str) -> None:
    surrogate = hydro.shrink(Net, width=64, inputs=rows())
    report = hydro.coordinate_check(
        surrogate, widths=WIDTHS[:2], optimizer=optimizer, loss_fn=lambda out: 100 + out.square().mean()
    )
    assert report.outcome is hydro.Outcome.INCONCLUSIVE
    assert not report.passed
    with pytest.raises(hydro.CoordinateCheckError, match=r"inconclusive .* did not learn enough"):
        report.raise_if_failed()
