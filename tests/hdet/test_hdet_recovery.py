"""A rate that starts far off is recovered: on a noisy quadratic over four real processes, 20 seeds."""

from rank_pool import RankPool


def test_a_rate_far_too_low_rises_at_least_threefold_in_all_of_20_seeds(ranks: RankPool) -> None:
    factors = ranks.run("ranks_quadratic:study", variant="probe", seeds=20, lr=0.01, interval=3)[0]
    assert len(factors) == 20
    assert min(factors) >= 3, factors


def test_a_rate_too_high_falls_at_least_twofold_in_all_of_20_seeds(ranks: RankPool) -> None:
    factors = ranks.run("ranks_quadratic:study", variant="probe", seeds=20, lr=1.9, interval=3)[0]
    assert len(factors) == 20
    assert max(factors) <= 0.5, factors
