"""The verdict has an error and three outcomes, counts only what the loss depends on, and must be checked."""

import warnings
from typing import Any

import pytest
import torch
from hydro_models import MLP, rows
from torch import Tensor, nn

from headrace_torch import hydro
from headrace_torch.hydro.coordinate_check.check import TOLERANCE
from headrace_torch.hydro.coordinate_check.report import MOST_SEEDS, trend_of
from headrace_torch.hydro.coordinate_check.student import quantile

WIDTHS = [1, 2, 4, 8]
DEVIATIONS = (-1.0, 0.0, 1.0)


def report(*slopes: tuple[float, float], seeds: int = 3, learnt: bool = True) -> hydro.CoordinateReport:
    """Activations with a slope and a spread over seeds."""
    trends = [
        trend_of(
            f"layer{number}",
            WIDTHS,
            [[width ** (slope + spread * DEVIATIONS[seed % 3]) for seed in range(seeds)] for width in WIDTHS],
        )
        for number, (slope, spread) in enumerate(slopes)
    ]
    return hydro.CoordinateReport(
        widths=WIDTHS,
        labels=[str(one) for one in WIDTHS],
        trends=trends,
        tolerance=TOLERANCE,
        optimizer="adam",
        lr=0.1,
        steps=9,
        seeds=seeds,
        learnt=learnt,
    )


@pytest.mark.parametrize(
    ("slopes", "outcome"),
    [
        ([(0.0, 0.02)] * 5, "passed"),
        ([(0.12, 0.03)] * 5, "passed"),  # certainly not 0, and certainly less than a step of 2
        ([(0.0, 0.02)] * 5 + [(0.5, 0.05)], "failed"),
        ([(0.0, 0.02)] * 5 + [(-0.5, 0.05)], "failed"),
        ([(0.15, 0.1)] * 5, "inconclusive"),
        ([(0.3, 0.1)] * 5, "inconclusive"),
        ([(0.0, 0.3)] * 5, "inconclusive"),
    ],
)
def test_the_three_outcomes(slopes: list[tuple[float, float]], outcome: str) -> None:
    found = report(*slopes)
    assert found.outcome == outcome
    assert found.passed == (outcome == "passed")
    if outcome == "inconclusive":
        with pytest.raises(
            hydro.CoordinateCheckError, match=rf"more seeds would tell, seeds={found.seeds_needed}"
        ):
            found.raise_if_failed()
        assert found.raise_if_refuted() is found
        more = report(*slopes, seeds=3 * (found.seeds_needed // 3 + 1))
        assert more.outcome == ("passed" if abs(found.worst.slope or 0) < TOLERANCE else "failed")


def test_many_activations_make_an_interval_wider() -> None:
    one, many = report((0.0, 0.1)), report(*[(0.0, 0.1)] * 200)
    assert many.reach(many.trends[0]) > 1.5 * one.reach(one.trends[0])


def test_a_check_adds_seeds_until_it_tells() -> None:
    surrogate = hydro.shrink(MLP, width=32, inputs=rows())

    def check(tolerance: float, seeds: int | None = None) -> hydro.CoordinateReport:
        return hydro.coordinate_check(
            surrogate, widths=[32, 64], steps=2, lr=1e-3, tolerance=tolerance, seeds=seeds
        )

    easy = check(10.0)
    assert (easy.outcome, easy.seeds) == ("passed", 3)
    on_the_line = abs(easy.worst.slope or 0.0) + 0.5 * easy.reach(easy.worst)
    assert check(on_the_line, seeds=3).seeds == 3
    assert check(on_the_line, seeds=3).outcome == "inconclusive"
    more = check(on_the_line)
    assert 3 < more.seeds <= 12
    assert all(len(row) == more.seeds for one in more.trends for row in one.changes)
    assert [one.changes[0][:3] for one in more.trends] == [list(one.changes[0]) for one in easy.trends]


class WeightNormed(nn.Module):
    """Adam's best rate falls by more than a factor of two from a width of 16 to 256."""

    def __init__(self, width: int = 256, norm: bool = True) -> None:
        super().__init__()
        wrap = nn.utils.parametrizations.weight_norm if norm else nn.Identity()
        self.first, self.second = wrap(nn.Linear(20, width)), wrap(nn.Linear(width, width))
        self.readout = nn.Linear(width, 5)
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(torch.relu(self.second(torch.relu(self.first(x)))))


@pytest.mark.full
def test_weights_that_are_normalised_are_looked_at_near_the_best_rate() -> None:
    inputs = (torch.randn(16, 20, generator=torch.Generator().manual_seed(0)),)
    normed = hydro.coordinate_check(hydro.shrink(WeightNormed, width=16, inputs=inputs))
    assert normed.outcome == "failed"
    assert normed.worst.name == "second"
    plain = hydro.coordinate_check(
        hydro.shrink(lambda width=256: WeightNormed(width, norm=False), width=16, inputs=inputs)
    )
    assert plain.passed
    assert normed.lr == 8 * plain.lr


def test_three_seeds_say_little_of_a_spread() -> None:
    """A slope whose three seeds agree by chance: with Student's quantile the interval contains what nine seeds
    give."""
    quiet = [(0.0, 0.04)] * 14
    three = report(*quiet, (0.34, 0.025))
    assert three.outcome == "inconclusive"
    assert report(*quiet, (0.34, 0.025), seeds=9).outcome == "failed"
    assert report(*quiet, (TOLERANCE + 0.001, 0.04)).seeds_needed == MOST_SEEDS


def test_students_quantile_is_scipys() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    for degrees in (1, 2, 3, 6, 7, 30):
        for probability in (0.5, 0.9, 0.999, 0.99999):
            expected = scipy_stats.t.ppf(probability, degrees)
            assert quantile(probability, degrees) == pytest.approx(expected, rel=1e-6, abs=1e-8)


def test_one_seed_has_no_verdict() -> None:
    assert report((0.0, 0.0), seeds=1).outcome is hydro.Outcome.INCONCLUSIVE


class ClassToken(nn.Module):
    """One block over positions, the first of which the loss reads, with a marker and a parametrized layer."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.patches = nn.Linear(12, width)
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.wide = nn.utils.parametrizations.weight_norm(nn.Linear(width, width))
        self.marked, self.readout = hydro.Readout(), nn.Linear(width, 5, bias=False)
        nn.init.zeros_(self.readout.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), self.patches(x)], 1)
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        x = self.last(x + self.wide(x))
        return self.marked(x[:, 0]) @ self.readout.weight.T


def test_only_what_the_loss_depends_on_is_measured() -> None:
    """The report has only the change at the class token for the last layers; markers and weights are left out."""
    from headrace_torch.hydro.coordinate_check.measure import measure

    torch.manual_seed(0)
    model, x = ClassToken(), torch.randn(8, 6, 12)
    before: dict[str, Tensor] = {}
    seen: dict[str, Tensor] = {}
    handle = model.last.register_forward_hook(lambda _m, _i, out: seen.update(last=out.detach()))
    model(x)
    before["last"] = seen["last"]
    targets = torch.arange(8) % 5
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    found = measure(model, optimizer, (x,), lambda out: nn.functional.cross_entropy(out, targets), steps=3)
    model(x)
    handle.remove()
    moved = (seen["last"] - before["last"]).abs()
    assert found["last"].size == pytest.approx(float(moved[:, 0].mean()), rel=1e-4)
    assert found["last"].size != pytest.approx(float(moved.mean()), rel=1e-2)
    assert "wide" in found
    assert not any("parametrizations" in name or name == "marked" for name in found)


def test_fuse_asks_for_the_gate() -> None:
    surrogate = hydro.shrink(MLP, width=16, inputs=rows())
    members: Any = [{"lr": 0.01}]
    with pytest.warns(hydro.UngatedWarning, match="no coordinate check of the surrogate is known"):
        hydro.fuse(surrogate, members)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hydro.fuse(surrogate, members, gate=False)
        hydro.fuse(surrogate, members, gate=report((0.0, 0.01)))
        hydro.fuse(surrogate.target(), members)  # the user's own model
        surrogate.family.gates["adam"] = report((0.0, 0.01))
        hydro.fuse(surrogate, members, "adamw")
        hydro.fuse(surrogate.at(width=32), members, "adam")
    with pytest.raises(hydro.CoordinateCheckError, match="layer0"):
        hydro.fuse(surrogate, members, gate=report((0.9, 0.01)))
    with pytest.warns(hydro.UngatedWarning, match="inconclusive"):
        hydro.fuse(surrogate, members, gate=report((0.0, 0.5)))
    with pytest.raises(hydro.CoordinateCheckError, match="gate must be a report"):
        hydro.fuse(surrogate, members, gate=True)  # type: ignore[arg-type]  # wrong on purpose


def test_a_check_is_remembered_by_the_family() -> None:
    surrogate = hydro.shrink(MLP, width=32, inputs=rows())
    found = hydro.coordinate_check(surrogate, widths=[32, 64], seeds=2, steps=4, lr=1e-3, optimizer="adamw")
    assert surrogate.family.gates["adam"] is found
    assert surrogate.at(width=64).family.gates["adam"] is found


def test_transfer_and_choose_scale_ask_for_the_gate() -> None:
    trials = [hydro.Trial(hyperparameters={"lr": 10.0**-one}, score=float(one)) for one in range(3)]
    with pytest.warns(hydro.UngatedWarning, match="transfer: no coordinate check"):
        hydro.transfer(trials, lambda _: 1.0)
    hydro.transfer(trials, lambda _: 1.0, gate=False)
    pilot = [{"lr": 0.1 * (one + 1)} for one in range(10)]
    with pytest.warns(hydro.UngatedWarning, match="choose_scale: no coordinate check"):
        hydro.choose_scale(pilot, lambda _scale, some: [float(one["lr"]) for one in some])
    asked: list[Any] = []
    with pytest.raises(hydro.CoordinateCheckError, match="layer0"):
        hydro.transfer(trials, asked.append, gate=report((0.9, 0.01)))  # type: ignore[arg-type,func-returns-value]  # it must not be asked
    with pytest.raises(hydro.CoordinateCheckError, match="layer0"):
        hydro.choose_scale(pilot, lambda scale, _some: asked.append(scale), gate=report((0.9, 0.01)))  # type: ignore[arg-type,func-returns-value]  # it must not be asked
    assert asked == []  # refused before anything is trained
