"""What a pause costs and what it is worth: the seed's arithmetic, decided both ways."""

import math

import pytest
from policy_drive import Driver, study
from scipy.stats import beta

from headrace.spec import AshaPolicy, SuccessiveHalvingPolicy
from headrace_services.scheduler.core.policies import Action, RungCost
from headrace_services.scheduler.core.policies.pricing import promotion_probability

GB = 10**9
SEED = RungCost(step_s=120.0, checkpoint_bytes=84 * GB, write_s=42.0)
"""C = 84 GB at B = 2 GB/s takes 42 s to write; a rung of one step takes T = 120 s."""
PRICED = study(AshaPolicy(price_pauses=True, rungs=(1, 2, 3)), max_steps=3)


def ranked(place, count, cost=SEED, spec=PRICED, **trial):
    """The verdict on the trial that arrives last and is at `place` of `count`."""
    driver = Driver(spec)
    for other in range(1, count):
        driver.record(other, float(other) if other < place else other + 1.0, cost=SEED)
    driver.promote_all()
    driver.record(0, place - 0.5, cost=cost, **trial)
    return driver, driver.policy.verdict(0, 0, 0)


def test_a_pause_that_pays():
    """The eighth of ten trials is hardly ever promoted: a wasted rung and pause are worth more than 84 s."""
    _, verdict = ranked(8, 10)
    price = verdict.explanation.pause_price
    assert verdict.action is Action.PAUSE
    assert (price.price_s, price.write_s, price.read_s) == (84.0, 42.0, 42.0)
    assert (price.rung_s, price.rest_s) == (120.0, 240.0)
    assert price.checkpoint_bytes == 84 * GB
    assert price.worth_s == pytest.approx((1 - price.promotion_probability) * 204.0)
    assert 200 < price.worth_s <= 204
    assert price.pays
    assert "a pause costs 84 s (42 s to write and 42 s to read)" in verdict.explanation.sentence
    assert "120 s to the next rung and a pause there would be wasted: it is paused" in (
        verdict.explanation.sentence
    )


def test_a_pause_that_does_not():
    """The fourth of ten trials, one rung before the end: finishing costs 120 s, which are probably not wasted."""
    spec = study(AshaPolicy(price_pauses=True, rungs=(1, 2)), max_steps=2)
    _, verdict = ranked(4, 10, spec=spec)
    price = verdict.explanation.pause_price
    assert verdict.action is Action.CONTINUE
    assert (price.price_s, price.rung_s, price.rest_s) == (84.0, 120.0, 120.0)
    assert price.promotion_probability == pytest.approx(0.4407, abs=1e-3)
    assert price.worth_s == pytest.approx(67.1, abs=0.1)
    assert not price.pays
    assert "120 s to the full budget would be wasted: it continues" in verdict.explanation.sentence


def test_short_rungs():
    """At 60 s per rung the fourth of ten continues. The last one is still worth a pause, but not before the last
    rung."""
    cheap = RungCost(step_s=60.0, checkpoint_bytes=84 * GB, write_s=42.0)
    assert ranked(4, 10, cost=cheap)[1].action is Action.CONTINUE
    assert ranked(10, 10, cost=cheap)[1].action is Action.PAUSE
    spec = study(AshaPolicy(price_pauses=True, rungs=(1, 2)), max_steps=2)
    assert ranked(10, 10, cost=cheap, spec=spec)[1].action is Action.CONTINUE


def test_a_measured_read_counts_as_measured():
    _, verdict = ranked(4, 10, cost=RungCost(step_s=120.0, write_s=42.0, read_s=150.0))
    assert verdict.explanation.pause_price.price_s == 192.0
    assert verdict.action is Action.CONTINUE


def test_unmeasured_costs_leave_the_decision_to_the_policy():
    for cost in (None, RungCost(step_s=120.0), RungCost(write_s=42.0)):
        _, verdict = ranked(4, 10, cost=cost)
        assert verdict.action is Action.PAUSE
        assert verdict.explanation.pause_price is None
        assert "its times were not measured" in verdict.explanation.sentence


def test_an_idle_slot_is_worth_nothing():
    driver, _ = ranked(8, 10)
    verdict = driver.policy.verdict(0, 0, 0, more=False)
    assert verdict.action is Action.CONTINUE
    assert "nothing else is waiting for its slot" in verdict.explanation.sentence
    driver.join(50)  # it may not have started yet
    assert driver.policy.verdict(0, 0, 0, more=False).action is Action.PAUSE


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_is_never_promoted_is_always_paused(value):
    driver = Driver(PRICED)
    driver.record(0, value, cost=RungCost(step_s=1e-3, write_s=1e6))
    verdict = driver.policy.verdict(0, 0, 0)
    assert verdict.action is Action.PAUSE
    assert verdict.explanation.pause_price is None


def test_a_trial_that_continued_is_not_promoted_again():
    driver, verdict = ranked(4, 10, cost=RungCost(step_s=60.0, write_s=42.0))
    assert verdict.action is Action.CONTINUE
    driver.call("promoted", 0, 0, 0)
    assert 0 not in driver.promote_all()
    driver.record(0, 0.5, rung=1, cost=SEED)
    assert driver.policy.verdict(0, 0, 1).explanation.results == 1


@pytest.mark.parametrize(
    ("rank", "results", "eta"), [(1, 1, 3), (1, 10, 3), (4, 10, 3), (10, 10, 4), (3, 8, 2)]
)
def test_the_probability(rank, results, eta):
    """The quantile of the r-th of n uniform draws is Beta(r, n + 1 - r)."""
    expected = beta.cdf(1 / eta, rank, results + 1 - rank)
    assert promotion_probability(rank, results, eta) == pytest.approx(expected)
    assert promotion_probability(1, 1, eta) == pytest.approx(1 / eta)


def test_at_a_barrier_too():
    """A priced trial need not wait for its cohort; it takes one of the places."""
    spec = study(SuccessiveHalvingPolicy(price_pauses=True, rungs=(1, 2), cohort=6), max_steps=2)
    driver = Driver(spec)
    driver.join(*range(6))
    driver.record(0, 0.0, cost=SEED)
    verdict = driver.policy.verdict(0, 0, 0)
    assert verdict.action is Action.CONTINUE  # worth 2/3 · 120 s = 80 s, because it is the last rung
    driver.call("promoted", 0, 0, 0)
    for trial in range(1, 6):
        driver.record(trial, float(trial), cost=SEED)
    assert driver.promote_all() == [1]
