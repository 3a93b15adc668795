"""Synchronous successive halving and Hyperband: sizes, barriers, and cohorts that lose trials or never fill up."""

import pytest
from policy_drive import Driver, study

from headrace.spec import HyperbandPolicy, SuccessiveHalvingPolicy
from headrace_services.scheduler.core.policies import Action, make_policy

NINE = study(SuccessiveHalvingPolicy(), max_steps=9)


def test_hyperband_table_of_the_paper():
    """JMLR 18, table 1: R = 81 and η = 3."""
    policy = make_policy(study(HyperbandPolicy(), max_steps=81))
    assert [policy.ladder(bracket) for bracket in range(policy.brackets)] == [
        (1, 3, 9, 27, 81),
        (3, 9, 27, 81),
        (9, 27, 81),
        (27, 81),
        (81,),
    ]
    numbers = [policy.bracket(number) for number in range(2 * 143)]
    assert [numbers[:143].count(bracket) for bracket in range(5)] == [81, 34, 15, 8, 5]
    assert numbers[:143] == sorted(numbers[:143])
    assert numbers[143:] == numbers[:143]


@pytest.mark.parametrize(
    ("max_steps", "eta", "levels"),
    [
        (243, 3, (1, 3, 9, 27, 81, 243)),
        (1000, 10, (1, 10, 100, 1000)),
        (100, 3, (1, 3, 11, 33, 100)),
        (2, 3, (2,)),
    ],
)
def test_s_max_by_multiplication(max_steps, eta, levels):
    """Not by logarithms, which lose a bracket at 243 and 1000. Every bracket ends with the full budget."""
    policy = make_policy(study(HyperbandPolicy(eta=eta), max_steps=max_steps))
    assert policy.ladder(0) == levels
    assert policy.brackets == len(levels)


def test_a_baseline_takes_no_place():
    spec = study(HyperbandPolicy(), max_steps=9).model_copy(update={"baseline": {"x": 0.5}})
    policy = make_policy(spec)
    assert [policy.bracket(number) for number in range(1, 10)] == [0] * 9
    assert policy.bracket(10) == 1


def test_a_small_study_has_all_brackets():
    """11 trials, when one round has 9 + 5 + 3: each bracket gets its share."""
    policy = make_policy(study(HyperbandPolicy(), max_steps=9, trials=11))
    numbers = [policy.bracket(number) for number in range(11)]
    assert [numbers.count(bracket) for bracket in range(3)] == [6, 3, 2]


class TestBarrier:
    def test_nobody_passes_before_the_last_one_is_there(self):
        driver = Driver(NINE)
        driver.join(*range(9))
        for trial in range(8):
            driver.record(trial, float(trial))
            assert driver.policy.verdict(trial, 0, 0).action is Action.PAUSE
            assert driver.policy.next_promotion() is None
        assert (
            "it waits for 1 more trial of its cohort" in driver.policy.verdict(0, 0, 0).explanation.sentence
        )
        driver.record(8, 0.5)
        assert driver.policy.verdict(8, 0, 0).action is Action.CONTINUE
        assert driver.promote_all() == [0, 8, 1]

    def test_a_trial_that_failed_holds_nobody_up(self):
        driver = Driver(NINE)
        driver.join(*range(9))
        for trial in range(7):
            driver.record(trial, float(trial))
        driver.call("withdraw", 7)
        assert driver.promote_all() == []
        driver.call("withdraw", 8)
        promotion = driver.policy.next_promotion()
        assert (
            "all 9 of its cohort have reported (2 of them without a result)" in promotion.explanation.sentence
        )
        assert driver.promote_all() == [0, 1, 2]

    def test_one_that_drops_out_leaves_its_place_to_the_next_best(self):
        driver = Driver(NINE)
        driver.join(*range(9))
        for trial in range(9):
            driver.record(trial, float(trial))
        driver.call("withdraw", 1)
        assert driver.promote_all() == [0, 2, 3]

    def test_one_that_fails_after_its_promotion_does_not(self):
        driver = Driver(NINE)
        driver.join(*range(9))
        for trial in range(9):
            driver.record(trial, float(trial))
        assert driver.promote_all() == [0, 1, 2]
        driver.call("withdraw", 0)
        driver.record(1, 1.0, rung=1)
        driver.record(2, 2.0, rung=1)
        assert driver.promote_all() == [1]

    def test_the_next_cohort_does_not_wait_for_this_one(self):
        driver = Driver(NINE)
        driver.join(*range(18))
        for trial in range(9, 18):
            driver.record(trial, float(trial))
        assert driver.promote_all() == [9, 10, 11]

    def test_higher_rungs_first(self):
        driver = Driver(NINE)
        driver.join(*range(18))
        for trial in range(18):
            driver.record(trial, float(trial))
        assert driver.promote_all() == [0, 1, 2, 9, 10, 11]
        for trial in (9, 10, 11):
            driver.record(trial, float(trial), rung=1)
        for trial in (0, 1, 2):
            driver.record(trial, float(trial), rung=1)
        promotion = driver.policy.next_promotion()
        assert (promotion.trial, promotion.rung, promotion.to_milestone) == (0, 1, 9)
        assert driver.promote_all() == [0, 9]


class TestLastCohort:
    def test_it_is_decided_when_no_more_trials_come(self):
        driver = Driver(NINE)
        driver.join(*range(4))
        for trial in range(4):
            driver.record(trial, float(trial))
        assert driver.promote_all(more=True) == []
        assert driver.promote_all(more=False) == [0]
        assert driver.policy.verdict(1, 0, 0, more=False).action is Action.PAUSE

    def test_a_single_trial_wins_its_cohort(self):
        driver = Driver(NINE)
        driver.record(0, 5.0)
        assert driver.promote_all(more=False) == [0]
        driver.record(0, 5.0, rung=1)
        assert driver.promote_all(more=False) == [0]

    def test_a_trial_that_a_user_adds_joins_it(self):
        driver = Driver(NINE)
        driver.join(*range(5))
        for trial in range(5):
            driver.record(trial, float(trial))
        assert driver.promote_all(more=False) == [0]
        driver.join(5)
        assert driver.promote_all(more=False) == []
        driver.record(5, 4.5)
        assert driver.promote_all(more=False) == [1]  # two of six members continue

    def test_one_that_reported_past_two_rungs_has_its_place(self):
        driver = Driver(study(SuccessiveHalvingPolicy(eta=2, cohort=4), max_steps=4))
        driver.join(*range(4))
        driver.record(3, 9.0, step=2)
        driver.record(3, 9.0, rung=1, step=2)
        driver.call("promoted", 3, 0, 0)
        for trial in range(3):
            driver.record(trial, float(trial))
        assert driver.promote_all() == [0]  # the second of two places
        driver.record(0, 0.0, rung=1)
        assert driver.promote_all() == [0]


def test_the_sentence_of_a_loser():
    driver = Driver(NINE)
    driver.join(*range(9))
    for trial in range(9):
        driver.record(trial, float(trial))
    assert driver.policy.verdict(5, 0, 0).explanation.sentence == (
        "value 5 is worse than the cutoff 2: it waits in case a better one drops out; "
        "rank 6 of 9 at the rung at step 1 of cohort 0, where the best 3 of 9 are promoted"
    )
