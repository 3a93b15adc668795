"""The last chance with effort, if programs end by themselves before the last rung."""

import pytest
from policy_drive import Driver, study

from headrace.spec import AshaPolicy


@pytest.fixture
def driver():
    """Nine trials at the first rung; the best three continued, and the share is used up."""
    driver = Driver(study(AshaPolicy(effort=0.03), max_steps=27))
    for trial in range(9):
        driver.record(trial, float(trial))
    assert driver.promote_all(more=False) == [0, 1, 2]
    return driver


def test_where_programs_end_early_not_all_trials_continue(driver):
    for trial in range(3):
        driver.call("finished_early", trial)
        driver.call("withdraw", trial)
    assert driver.policy.next_promotion(more=False) is None


def test_where_those_that_continued_fail_the_next_best_continues(driver):
    for trial in range(3):
        driver.call("withdraw", trial)
    assert driver.policy.next_promotion(more=False).trial == 3
    assert driver.replayed().next_promotion(more=False).trial == 3


def test_the_best_of_those_further_on_than_anybody_ended_still_gets_its_chance(driver):
    driver.record(0, 0.0, rung=1)
    for trial in (1, 2):
        driver.call("finished_early", trial)
        driver.call("withdraw", trial)
    assert driver.promote_all(more=False) == [0]
    driver.call("finished_early", 0)
    driver.call("withdraw", 0)
    assert driver.policy.next_promotion(more=False) is None
    assert driver.replayed().next_promotion(more=False) is None


def test_a_trial_that_waits_and_is_withdrawn_takes_no_chance(driver):
    for trial in range(3):
        driver.record(trial, float(trial), rung=1)
    driver.call("withdraw", 0)
    assert driver.promote_all(more=False) == [1]
