"""PASHA: the ceiling rises when the top two rungs disagree, and stays while they agree."""

import math

import pytest
from policy_drive import Driver, study

from headrace.spec import PashaPolicy
from headrace_services.scheduler.core.policies.ranking import Ranking
from headrace_services.scheduler.core.policies.rung_pair import RungPair


def drive(**policy):
    return Driver(study(PashaPolicy(eta=2, **policy), max_steps=16))


def reach(driver, rung, values):
    """Record the trials of `values` at a rung, after they have been promoted to it."""
    for trial, value in values.items():
        driver.record(trial, value, rung=rung)


def test_rankings_that_agree_keep_the_ceiling():
    driver = drive()
    for trial in range(8):
        driver.record(trial, float(trial))
    assert driver.promote_all() == [0, 1, 2, 3]
    reach(driver, 1, {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0})
    assert driver.promote_all() == []
    assert "no trial is promoted while the rungs at steps 1 and 2 rank alike (ε = 0)" in (
        driver.policy.verdict(0, 0, 1).explanation.sentence
    )


def test_a_swap_raises_it():
    driver = drive(epsilon=0.0)
    for trial in range(8):
        driver.record(trial, float(trial))
    driver.promote_all()
    reach(driver, 1, {0: 1.0, 1: 0.0})
    assert driver.promote_all() == [1]
    reach(driver, 1, {2: 2.0, 3: 3.0})
    assert driver.promote_all() == [0]
    reach(driver, 2, {0: 5.0, 1: 6.0})  # they swap again, between rungs 1 and 2
    assert driver.promote_all() == [0]


def test_a_swap_within_epsilon_does_not():
    driver = drive(epsilon=1.0)
    for trial in range(8):
        driver.record(trial, float(trial))
    driver.promote_all()
    reach(driver, 1, {0: 1.0, 1: 0.0, 2: 2.0, 3: 3.0})
    assert driver.promote_all() == []


def test_ties_are_no_disagreement():
    driver = drive()
    for trial in range(8):
        driver.record(trial, 0.5)
    assert driver.promote_all() == [0, 1, 2, 3]
    reach(driver, 1, {3: 0.1, 2: 0.2, 1: 0.3, 0: 0.4})
    assert driver.promote_all() == []


def test_epsilon_is_the_90th_percentile_of_pairs_that_crossed_back():
    """Two pairs cross and cross back, at distances 0.2 and 1.0: ε = 0.2 + 0.9·0.8 = 0.92."""
    curves = {0: (1.0, 2.0, 1.0), 1: (2.0, 1.0, 1.2), 2: (5.0, 6.0, 5.0), 3: (6.0, 5.0, 6.0)}
    driver = Driver(study(PashaPolicy(eta=2), max_steps=4))
    rankings = [Ranking(maximize=False) for _ in range(3)]
    for rung, ranking in enumerate(rankings):
        for trial, curve in curves.items():
            ranking.add(driver.record(trial, curve[rung], rung=rung), waits=False)
    pair = RungPair(rankings, 0.5, estimate=True)
    assert pair.epsilon == pytest.approx(0.92)
    assert not pair.agree  # trials 0 and 1 differ by 1.0 at rung 1
    assert RungPair(rankings, 0.5, estimate=False).epsilon == 0.5
    assert RungPair(rankings, 1.0, estimate=False).agree


def test_a_pair_that_crosses_back_is_noise():
    """Trials that swap and swap back differ only by noise, so the swap does not raise the ceiling."""
    driver = drive()
    for trial in range(8):
        driver.record(trial, float(trial))
    driver.promote_all()
    reach(driver, 1, {0: 1.0, 1: 0.0})
    driver.promote_all()
    reach(driver, 1, {2: 2.0, 3: 3.0})
    driver.promote_all()
    reach(driver, 2, {0: 5.0, 1: 6.0})
    assert driver.promote_all() == []
    assert "(ε = 1)" in driver.policy.verdict(1, 0, 2).explanation.sentence


def test_the_top_of_the_ladder_is_the_last_ceiling():
    driver = Driver(study(PashaPolicy(eta=2), max_steps=2))
    for trial in range(4):
        driver.record(trial, float(trial))
    assert driver.promote_all() == [0, 1]
    reach(driver, 1, {0: 1.0, 1: 0.0})
    assert driver.promote_all() == []


def test_without_a_number_there_is_no_distance():
    driver = drive()
    for trial in range(8):
        driver.record(trial, float(trial))
    driver.promote_all()
    reach(driver, 1, {0: 0.0, 1: math.nan, 2: 2.0})
    assert driver.promote_all() == [0]  # trial 1 fell behind trial 2: the ranking is not settled
