"""Exactness over four real processes.

With α=0 it is DDP. Also rates from the first step, the formulas, generators, floors and resuming.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from rank_pool import RankPool

from headrace_torch.hdet import SyncReport
from headrace_torch.hdet.rules import multipliers

APIS = ("one_cycle", "controller")


@pytest.mark.full
@pytest.mark.parametrize("api", APIS)
def test_no_spread_is_ddp_with_the_plain_schedule_bit_for_bit_over_200_steps(
    ranks: RankPool, api: str
) -> None:
    assert ranks.run("ranks_exact:alpha_zero_equals_ddp", api=api) == [0.0] * 4


@pytest.mark.parametrize("api", APIS)
def test_rates_are_the_schedule_times_the_multiplier_from_the_first_step(ranks: RankPool, api: str) -> None:
    ratios = ranks.run("ranks_exact:rates_from_the_first_step", api=api, alpha=0.3)
    expected = [0.7, 0.9, 1.1, 1.3]
    for step in range(12):
        seen = [ratios[rank][step][0] for rank in range(4)]
        assert sorted(seen) == pytest.approx(expected, rel=1e-12)
        if api == "one_cycle":
            assert seen == sorted(seen)  # ρ_r on rank r


@pytest.mark.cases(1)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_paper_s_formulas_over_50_syncs_and_4_groups(ranks: RankPool, n: int) -> None:
    run = ranks.run("ranks_exact:paper_records", n=n)[0]
    reports = [SyncReport.from_json(line) for line in run["reports"]]
    assert sum(report.updated for report in reports) == 50
    centers = [one_cycle_rate(run["warmup"], run["total"], peak) for peak in run["peaks"]]
    floors = [peak / 25 / 1e4 for peak in run["peaks"]]
    gammas = [1 - (floor / center) ** (1 / 50) for floor, center in zip(floors, centers, strict=True)]
    velocities = [0.0] * 4
    fan = multipliers(n, 1 / 9)
    worst = 0.0
    for report in reports:
        first = report.step - run["interval"]
        losses = [math.fsum(run["losses"][r][first : report.step]) / run["interval"] for r in range(n)]
        worst = max([worst, *(abs(a - b) for a, b in zip(losses, report.losses, strict=True))])
        if not report.updated:
            continue
        mean = sum(losses) / n
        powers = [math.exp((mean - loss) / 0.1) for loss in losses]
        weights = [power / sum(powers) for power in powers]
        worst = max([worst, *(abs(a - b) for a, b in zip(weights, report.weights, strict=True))])
        for k, record in enumerate(report.hyperparameters):
            # The rates with which ranks really trained in the interval.
            used = [run["rates"][r][report.step - 2][k] for r in range(n)]
            assert used == pytest.approx(record.explored, rel=1e-14)
            delta = sum(w * rate for w, rate in zip(weights, used, strict=True)) - sum(used) / n
            velocities[k] = 0.9 * velocities[k] + 0.1 * delta
            centers[k] = max(centers[k] * (1 - gammas[k]) + 0.5 * velocities[k], floors[k])
            assert record.signal == pytest.approx(delta, abs=1e-10 * run["peaks"][k])
            assert record.velocity == pytest.approx(velocities[k], abs=1e-10 * run["peaks"][k])
            assert record.center == pytest.approx(centers[k], rel=1e-10)
            assert sorted(record.values) == pytest.approx([centers[k] * rho for rho in fan], rel=1e-10)
    assert worst < 1e-10


@pytest.mark.cases(1)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_controller_s_formulas_over_50_syncs_and_4_groups(ranks: RankPool, n: int) -> None:
    run = ranks.run("ranks_exact:controller_records", n=n)[0]
    reports = [SyncReport.from_json(line) for line in run["reports"]]
    assert len(reports) == 50
    centers, velocities, evidence, variances = ([0.0] * 4 for _ in range(4))
    usual: float | None = None
    square, held, moved = 0.0, 0, 0
    for report, losses in zip(reports, run["losses"], strict=True):
        weights = standardised_weights(losses)
        assert report.weights == pytest.approx(weights, abs=1e-10)
        part = [r for r in range(n) if losses[r] is not None]
        finite = [losses[r] for r in part if math.isfinite(losses[r])]
        improving = len(finite) == len(part)
        if usual is None or not finite:
            usual = sum(finite) / len(finite) if finite else usual
        else:
            below = usual - sum(finite) / len(finite)
            improving = improving and below > 0.5 * math.sqrt(square)
            usual, square = usual - 0.1 * below, 0.9 * square + 0.1 * below**2
        for k, record in enumerate(report.hyperparameters):
            places = [(value / math.exp(centers[k]) - 1) * 9 for value in record.explored]
            direction = by_chance = 0.0
            if len(part) > 1 and sum(weights):
                mean = sum(places[r] for r in part) / len(part)
                direction = sum(w * m for w, m in zip(weights, places, strict=True)) - mean
                orders = list(itertools.permutations([places[r] for r in part]))
                shares = [weights[r] for r in part]
                by_chance = sum(
                    (sum(w * m for w, m in zip(shares, order, strict=True)) - mean) ** 2 for order in orders
                ) / len(orders)
            velocities[k] = 0.5 * velocities[k] + 0.5 * direction
            evidence[k] = 0.9 * evidence[k] + 0.1 * direction
            variances[k] = 0.81 * variances[k] + 0.01 * by_chance
            step = max(-0.1, min(0.1, 0.15 * velocities[k]))
            if improving:  # a rate rises only with evidence, and does not fall
                supported = max(0.0, 1 - 4 * variances[k] / evidence[k] ** 2) if evidence[k] > 0 else 0.0
                held += supported == 0 or step < 0
                step = max(0.0, step) * supported
            moved += step != 0
            centers[k] += step
            assert record.signal == pytest.approx(direction, abs=1e-10)
            assert record.velocity == pytest.approx(velocities[k], abs=1e-10)
            assert math.log(record.center) == pytest.approx(centers[k], abs=1e-10)
    assert held > 20
    assert moved > 60


def test_multipliers_stay_a_permutation_whatever_one_rank_draws(ranks: RankPool) -> None:
    found, untouched = zip(*ranks.run("ranks_exact:generators_are_untouched"), strict=True)
    assert all(untouched)
    assert len(found[0]) == 10 * 4  # syncs × groups
    for row in found[0]:
        assert sorted(row) == pytest.approx(multipliers(4, 0.5), rel=1e-12)
    assert len({tuple(round(value, 6) for value in row) for row in found[0]}) > 5


def test_without_a_signal_the_rate_ends_at_the_floor_of_one_cycle(ranks: RankPool) -> None:
    assert ranks.run("ranks_exact:floor_without_signal") == pytest.approx([1.0] * 4, rel=1e-3)


@pytest.mark.cases(2)
@pytest.mark.parametrize("at", [10, 13], ids=["at a sync point", "in the middle of an interval"])
@pytest.mark.parametrize("api", APIS)
def test_resume_is_bitwise(ranks: RankPool, api: str, at: int) -> None:
    assert ranks.run("ranks_resume:resumed_equals_straight", api=api, at=at) == [True] * 4


def test_with_shared_gradients_the_mean_of_the_replicas_is_the_plain_trajectory(ranks: RankPool) -> None:
    """On a quadratic this is exact, whatever the spread.

    HDET is a line search along a direction (see the limits in the docs).
    """
    assert max(ranks.run("ranks_exact:mean_against_plain")) < 1e-12


def one_cycle_rate(step: int, total: int, peak: float) -> float:
    """OneCycle's cosine schedule, written independently.

    Up from peak/25 over 30 % of the steps, then down to peak/25/1e4.
    """
    initial, floor, top = peak / 25, peak / 25 / 1e4, 0.3 * total - 1
    start, end, share = (
        (initial, peak, step / top) if step <= top else (peak, floor, (step - top) / (total - 1 - top))
    )
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))


def standardised_weights(losses: Sequence[Any]) -> list[float]:
    """softmax((L̄ − L_r)/std) over finite losses, written independently."""
    finite = [r for r, loss in enumerate(losses) if loss is not None and math.isfinite(loss)]
    if not finite:
        return [0.0] * len(losses)
    mean = sum(losses[r] for r in finite) / len(finite)
    std = math.sqrt(sum((losses[r] - mean) ** 2 for r in finite) / len(finite))
    powers = {r: math.exp((mean - losses[r]) / std) if std > 1e-9 else 1.0 for r in finite}
    return [powers.get(r, 0.0) / sum(powers.values()) for r in range(len(losses))]
