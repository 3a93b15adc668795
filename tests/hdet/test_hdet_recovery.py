"""A rate that starts far off recovers: on a noisy quadratic over four real processes.

`make long` uses `HEADRACE_SEEDS=20`.
"""

import os

import pytest
from rank_pool import RankPool

pytestmark = pytest.mark.full

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "6"))


def test_a_rate_far_too_low_rises_at_least_threefold_with_every_seed(ranks: RankPool) -> None:
    factors = ranks.run("ranks_quadratic:study", variant="probe", seeds=SEEDS, lr=0.01, interval=3)[0]
    assert len(factors) == SEEDS
    assert min(factors) >= 3, factors


def test_a_rate_too_high_falls_at_least_twofold_with_every_seed(ranks: RankPool) -> None:
    factors = ranks.run("ranks_quadratic:study", variant="probe", seeds=SEEDS, lr=1.9, interval=3)[0]
    assert len(factors) == SEEDS
    assert max(factors) <= 0.5, factors
