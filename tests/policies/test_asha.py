"""ASHA in both variants: the figures of the design, ties, missing values, and the explanations."""

import math

import pytest
from policy_drive import PROMOTION, STOPPING, Driver, kept_at_first_rung, study
from tiers import processor_time

from headrace.spec import AshaPolicy
from headrace_services.scheduler.core.policies import Action

WORSENING = [float(i) for i in range(243)]
TIES = [0.5] * 243


@pytest.mark.parametrize(
    ("policy", "values", "kept"),
    [(PROMOTION, WORSENING, 81), (STOPPING, WORSENING, 1), (PROMOTION, TIES, 81), (STOPPING, TIES, 243)],
)
@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_243_arrivals(policy, values, kept, goal):
    signed = [-value for value in values] if goal == "maximize" else values
    trials = kept_at_first_rung(study(policy, goal=goal), signed)
    assert trials == list(range(kept))


def test_improving_arrivals_are_all_kept_by_stopping():
    assert kept_at_first_rung(study(STOPPING), WORSENING[::-1]) == list(range(243))


def test_ties_are_promoted_in_order_of_arrival():
    driver = Driver(study())
    for trial in (7, 3, 9, 1, 5, 2):
        driver.record(trial, 1.0)
    assert driver.promote_all() == [7, 3]


def test_one_result_at_a_rung_is_not_enough_to_be_promoted():
    driver = Driver(study())
    driver.record(0, 0.1)
    driver.record(1, 0.2)
    assert driver.policy.next_promotion() is None
    driver.record(2, 0.3)
    assert driver.promote_all() == [0]


def test_the_highest_rung_is_served_first():
    driver = Driver(study(max_steps=27))
    for trial in range(12):
        driver.record(trial, float(trial))
    assert driver.promote_all() == [0, 1, 2, 3]
    for trial in range(3):
        driver.record(trial, float(trial), rung=1)
    for trial in (12, 13, 14):
        driver.record(trial, float(trial))
    promotion = driver.policy.next_promotion()
    assert (promotion.trial, promotion.rung, promotion.to_milestone) == (0, 1, 9)
    assert driver.promote_all() == [0, 4]


def test_a_trial_paused_for_long_is_promoted_when_peers_turn_out_worse():
    driver = Driver(study())
    for trial, value in enumerate([0.1, 0.2, 0.3]):
        driver.record(trial, value)
    assert driver.promote_all() == [0]
    driver.record(3, 0.9)
    driver.record(4, 0.8)
    assert driver.promote_all() == []
    driver.record(5, 0.7)
    assert driver.promote_all() == [1]


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("goal", ["minimize", "maximize"])
class TestWithoutAFiniteValue:
    def test_is_never_promoted_and_ranks_last(self, value, goal):
        driver = Driver(study(goal=goal))
        driver.record(0, value)
        for trial in range(1, 7):
            driver.record(trial, value)
        assert driver.promote_all() == []
        driver.record(7, 1e300 if goal == "minimize" else -1e300)
        verdict = driver.policy.verdict(0, 0, 0)
        assert verdict.action is Action.PAUSE
        assert verdict.explanation.rank == 2
        assert "never promoted" in verdict.explanation.sentence
        assert driver.promote_all() == [7]

    def test_counts_as_a_peer(self, value, goal):
        driver = Driver(study(goal=goal))
        driver.record(0, 5.0)
        driver.record(1, value)
        driver.record(2, value)
        assert driver.promote_all() == [0]

    def test_is_stopped_even_when_it_is_alone(self, value, goal):
        driver = Driver(study(STOPPING, goal=goal))
        driver.record(0, value)
        verdict = driver.policy.verdict(0, 0, 0)
        assert verdict.action is Action.STOP
        assert "it stops" in verdict.explanation.sentence
        word = "missing" if value is None else "not a finite number"
        assert word in verdict.explanation.sentence


def test_a_withdrawn_trial_keeps_its_rank_and_is_not_promoted():
    driver = Driver(study())
    for trial, value in enumerate([0.1, 0.2, 0.3]):
        driver.record(trial, value)
    driver.call("withdraw", 0)
    assert driver.promote_all() == []  # trial 1 has rank 2 of 3
    for trial in (3, 4, 5):
        driver.record(trial, 0.5)
    assert driver.promote_all() == [1]


def test_a_trial_withdrawn_before_its_result_does_not_wait():
    driver = Driver(study())
    driver.call("withdraw", 0)
    for trial in range(3):
        driver.record(trial, float(trial))
    assert driver.promote_all() == []


@pytest.mark.parametrize("policy", [PROMOTION, STOPPING])
def test_a_report_across_two_milestones_is_a_result_at_both(policy):
    driver = Driver(study(policy, max_steps=27))
    for trial in range(1, 6):
        driver.record(trial, float(trial))
    driver.record(0, 0.0, rung=0)
    driver.record(0, 0.0, rung=1)
    assert driver.policy.verdict(0, 0, 0).explanation.results == 6
    assert driver.policy.verdict(0, 0, 0).action is Action.CONTINUE
    assert driver.policy.verdict(0, 0, 1).explanation.results == 1
    driver.call("promoted", 0, 0, 0)  # the engine records it for the passed rungs
    if policy is PROMOTION:
        # Trial 0 has passed rung 0, where it holds the first of two places; trial 1 holds the second.
        assert driver.policy.verdict(0, 0, 1).action is Action.PAUSE
        assert driver.promote_all() == [1]


def test_results_of_other_brackets_do_not_count():
    driver = Driver(study(AshaPolicy(brackets=2), max_steps=27))
    for trial in range(3):
        driver.record(trial, float(trial), rung=0, bracket=0)
    driver.record(3, -1.0, bracket=1)
    driver.record(4, -2.0, bracket=1)
    assert driver.promote_all() == [0]
    driver.record(5, -3.0, bracket=1)
    promotion = driver.policy.next_promotion()
    assert (promotion.trial, promotion.bracket, promotion.rung, promotion.to_milestone) == (5, 1, 0, 9)


def test_nobody_is_promoted_past_the_top_rung():
    driver = Driver(study(AshaPolicy(rungs=(1, 3)), max_steps=3))
    for trial in range(9):
        driver.record(trial, float(trial))
        driver.record(trial, float(trial), rung=1)
    assert driver.policy.next_promotion() is None


class TestSentences:
    def test_waiting(self):
        driver = Driver(study(goal="maximize", max_steps=27))
        for trial in range(14):
            driver.record(trial, 0.9 - trial / 100, rung=0)
            driver.record(trial, 0.9 - trial / 100, rung=1)
        explanation = driver.policy.verdict(4, 0, 1).explanation
        assert explanation.sentence == (
            "value 0.86 is worse than the cutoff 0.87; rank 5 of 14 at the rung at step 3, "
            "where the best 4 are promoted"
        )
        assert (explanation.rule, explanation.rank, explanation.results) == ("asha_promotion", 5, 14)
        assert (explanation.kept, explanation.cutoff_value, explanation.milestone) == (4, 0.87, 3)

    def test_promoted(self):
        driver = Driver(study())
        for trial in range(3):
            driver.record(trial, float(trial))
        assert driver.policy.next_promotion().explanation.sentence == (
            "it is the best trial not promoted yet, so it is promoted to 3 steps; "
            "rank 1 of 3 at the rung at step 1, where the best one is promoted"
        )

    def test_too_few_results(self):
        driver = Driver(study())
        driver.record(0, 0.612)
        assert driver.policy.verdict(0, 0, 0).explanation.sentence == (
            "too few results at this rung to promote anyone yet; rank 1 of 1 at the rung at step 1"
        )

    def test_a_tie_that_came_late(self):
        driver = Driver(study())
        for trial in range(3):
            driver.record(trial, 0.5)
        assert "equals the cutoff, but arrived later" in driver.policy.verdict(2, 0, 0).explanation.sentence

    def test_stopped(self):
        driver = Driver(study(STOPPING))
        driver.record(0, 0.1)
        driver.record(1, 0.2)
        assert driver.policy.verdict(1, 0, 0).explanation.sentence == (
            "value 0.2 is worse than the cutoff 0.1; rank 2 of 2 at the rung at step 1, where the best one is promoted"
        )

    def test_values_that_differ_late_are_shown_apart(self):
        driver = Driver(study(STOPPING))
        driver.record(0, 0.1234567890123)
        driver.record(1, 0.1234567890124)
        assert "0.1234567890124 is worse than the cutoff 0.1234567890123" in (
            driver.policy.verdict(1, 0, 0).explanation.sentence
        )


@pytest.mark.full
def test_a_decision_does_not_cost_more_with_many_results():
    driver = Driver(study())
    for trial in range(20_000):
        driver.record(trial, float(trial * 7919 % 20_000))
    # Leave nothing promotable, so that every query checks the whole rung and finds nothing.
    driver.promote_all()
    with processor_time(at_most_s=5):  # a scan of the rung would take minutes
        for _ in range(2000):
            driver.policy.next_promotion()
            driver.policy.verdict(1, 0, 0)
