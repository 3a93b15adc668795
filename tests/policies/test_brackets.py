"""The bracket of a trial: a function of seed and number, weighted as in Hyperband."""

from collections import Counter

import pytest
from policy_drive import study

from headrace.spec import AshaPolicy, RunAllPolicy
from headrace_services.scheduler.core.brackets import bracket_weights, draw_bracket
from headrace_services.scheduler.core.policies import make_policy


def test_hyperband_table():
    """R=81, η=3: the sizes in table 1 of the Hyperband paper (n = 81, 34, 15, 8, 5)."""
    assert bracket_weights(5, 5, 3) == (81, 34, 15, 8, 5)
    assert bracket_weights(5, 2, 3) == (81, 34)


def test_huge_ladders_stay_exact():
    weights = bracket_weights(63, 63, 2)
    assert weights[0] == 2**62
    assert weights[-1] == 63


def test_shares_follow_the_weights():
    drawn = Counter(draw_bracket(7, number, 5) for number in range(20_000))
    total = 81 + 34 + 15 + 8 + 5
    for bracket, weight in enumerate((81, 34, 15, 8, 5)):
        assert drawn[bracket] / 20_000 == pytest.approx(weight / total, abs=0.012)


def test_the_numbers_never_change():
    """These numbers are stored with studies; a change would alter the meaning of a seed."""
    assert [draw_bracket(0, number, 3) for number in range(20)] == FIRST
    assert draw_bracket(1, 0, 1) == 0


FIRST = [2, 1, 0, 2, 1, 2, 1, 0, 2, 0, 0, 1, 0, 0, 0, 0, 2, 0, 0, 1]


def test_seeds_differ():
    one = [draw_bracket(1, number, 4) for number in range(50)]
    assert one == [draw_bracket(1, number, 4) for number in range(50)]
    assert one != [draw_bracket(2, number, 4) for number in range(50)]


def test_of_a_study():
    spec = study(AshaPolicy(brackets=3), max_steps=27)
    policy = make_policy(spec)
    assert {policy.bracket(number) for number in range(200)} == {0, 1, 2}
    assert policy.bracket(5) == draw_bracket(spec.seed, 5, 3, levels=4, eta=3)


@pytest.mark.parametrize("policy", [AshaPolicy(), RunAllPolicy()])
def test_a_single_bracket_is_0(policy):
    assert {make_policy(study(policy)).bracket(number) for number in range(50)} == {0}
