"""Median stopping and the seed's own rule: the definitions worked out by hand, and the explanations."""

import random

import pytest
from policy_drive import Driver, study

from headrace.spec import MedianPolicy, RungMedianPolicy
from headrace_services.scheduler.core.policies import Action


class TestRunningMedian:
    spec = study(MedianPolicy(interval=1), max_steps=10)

    def test_its_average_among_all_averages(self):
        driver = Driver(self.spec)
        for trial, curve in enumerate(
            ([4.0, 2.0], [6.0, 4.0], [1.0, 1.0], [3.0, 9.0])
        ):  # averages 3, 5, 1, 6
            driver.curve(trial, curve)
        verdict = driver.policy.verdict(3, 0, 1)
        assert verdict.action is Action.CONTINUE
        assert "3 of 4 other trials are available for comparison" in verdict.explanation.sentence
        driver.curve(4, [9.0, 1.0])  # average 5: 3 and 1 are better, which is less than half of five
        assert driver.policy.verdict(4, 0, 1).action is Action.CONTINUE
        driver.curve(
            5, [9.0, 1.5]
        )  # average 5.25: four of six are better, though its last value is the third best
        verdict = driver.policy.verdict(5, 0, 1)
        assert verdict.action is Action.STOP
        assert verdict.explanation.sentence == (
            "4 of 6 trials have a better running average than its 5.25: it stops; rank 3 of 6 at the rung at step 2"
        )

    def test_half_of_the_steadily_improving_curves_stop_which_vizier_lets_run(self):
        kept = {}
        for variant in ("average", "vizier"):
            driver = Driver(study(MedianPolicy(interval=1, variant=variant, grace_steps=1), max_steps=10))
            kept[variant] = 0
            for trial in range(40):
                driver.curve(trial, [10 - step + 0.01 * (trial * 7 % 40) for step in range(5)])
                kept[variant] += driver.policy.verdict(trial, 0, 4).action is Action.CONTINUE
        assert kept["average"] <= 24 < 40 == kept["vizier"]

    def test_completed_only_is_viziers(self):
        with pytest.raises(ValueError, match="belongs to the variant vizier"):
            MedianPolicy(completed_only=True)


class TestVizierMedian:
    spec = study(MedianPolicy(variant="vizier", interval=1, grace_steps=1), max_steps=10)

    def test_best_so_far_against_the_others_running_averages(self):
        driver = Driver(self.spec)
        driver.curve(0, [4.0, 2.0])  # average 3
        driver.curve(1, [6.0, 4.0])  # average 5
        driver.curve(2, [1.0, 1.0])  # average 1
        driver.curve(3, [3.0, 9.0])  # best 3: equal to the median of 3, 5 and 1
        assert driver.policy.verdict(3, 0, 1).action is Action.CONTINUE
        driver.curve(4, [3.5, 9.0])  # best 3.5: worse than the median of 3, 5, 1 and 6
        verdict = driver.policy.verdict(4, 0, 1)
        assert verdict.action is Action.CONTINUE  # it is 4
        assert verdict.explanation.cutoff_value == 4.0
        driver.curve(5, [5.5, 5.25])  # best 5.25: worse than the median of 3, 5, 1, 6 and 6.25
        verdict = driver.policy.verdict(5, 0, 1)
        assert verdict.action is Action.STOP
        assert verdict.explanation.sentence == (
            "its best value 5.25 is worse than 5, the median of the others' running averages: it stops; "
            "rank 4 of 6 at the rung at step 2"
        )

    def test_its_own_average_does_not_count(self):
        driver = Driver(
            study(MedianPolicy(variant="vizier", interval=1, grace_steps=1, min_peers=1), max_steps=10)
        )
        driver.curve(0, [1.0])
        driver.curve(1, [5.0])
        assert driver.policy.verdict(1, 0, 0).explanation.cutoff_value == 1.0
        assert driver.policy.verdict(0, 0, 0).explanation.cutoff_value == 5.0

    def test_completed_only(self):
        driver = Driver(
            study(MedianPolicy(variant="vizier", interval=1, completed_only=True, min_peers=1), max_steps=2)
        )
        driver.curve(0, [1.0])
        driver.curve(1, [2.0])
        verdict = driver.policy.verdict(1, 0, 0)
        assert verdict.action is Action.CONTINUE
        assert "0 of 1 completed trials are available for comparison" in verdict.explanation.sentence
        driver.record(0, 1.0, rung=1)
        assert driver.policy.verdict(1, 0, 0).action is Action.STOP

    def test_equal_curves_are_equal(self):
        """0.1 three times has the average 0.1, which sums of floats do not give."""
        driver = Driver(self.spec)
        for trial in range(6):
            driver.curve(trial, [0.1, 0.1, 0.1])
            assert driver.policy.verdict(trial, 0, 2).action is Action.CONTINUE

    def test_grace(self):
        driver = Driver(study(MedianPolicy(interval=1, grace_steps=3), max_steps=10))
        for trial in range(8):
            driver.curve(trial, [float(trial)] * 3)
        assert driver.policy.verdict(7, 0, 1).action is Action.CONTINUE
        assert "no trial is stopped before 3 steps" in driver.policy.verdict(7, 0, 1).explanation.sentence
        assert driver.policy.verdict(7, 0, 2).action is Action.STOP


class TestRungMedian:
    """The seed's listing: `l > med * 1.05`, from the second rung on, with at least three values there."""

    spec = study(RungMedianPolicy(interval=5, grace_steps=10), max_steps=30)

    def test_the_listing(self):
        generator = random.Random(7)
        for _ in range(200):
            driver = Driver(self.spec)
            history: list[float] = []
            for trial in range(12):
                value = generator.choice([generator.uniform(0.1, 1.2), 0.5, 0.525])
                driver.curve(trial, [0.0, value])
                history.append(value)
                median = sorted(history)[len(history) // 2]
                stops = len(history) >= 3 and value > median * 1.05
                assert (driver.policy.verdict(trial, 0, 1).action is Action.STOP) == stops

    def test_the_sentence(self):
        driver = Driver(self.spec)
        for trial, value in enumerate([0.4, 0.5, 0.6]):
            driver.curve(trial, [1.0, value])
        assert driver.policy.verdict(2, 0, 1).explanation.sentence == (
            "value 0.6 is worse than 0.525, the median 0.5 with a tolerance of 5%: it stops; "
            "rank 3 of 3 at the rung at step 10"
        )
        assert driver.policy.verdict(2, 0, 1).explanation.kept == 2

    def test_a_negative_median_is_not_turned_round(self):
        """-1·1.05 is better than -1: a tolerance must not become stricter for losses below 0."""
        driver = Driver(self.spec)
        for trial, value in enumerate([-1.0, -1.0, -0.97]):
            driver.curve(trial, [0.0, value])
        assert driver.policy.verdict(2, 0, 1).action is Action.CONTINUE
