"""Rung levels come from integer multiplication."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_drive import study

from headrace.spec import AshaPolicy, RunAllPolicy
from headrace_services.scheduler.core.policies import make_policy


@pytest.mark.parametrize(
    ("max_steps", "min_steps", "eta", "levels"),
    [
        (243, 1, 3, (1, 3, 9, 27, 81, 243)),
        (1000, 1, 10, (1, 10, 100, 1000)),
        (729, 3, 3, (3, 9, 27, 81, 243, 729)),
        (125, 1, 5, (1, 5, 25, 125)),
        (100, 1, 3, (1, 3, 9, 27, 81, 100)),
        (2, 1, 3, (1, 2)),
        (1, 1, 3, (1,)),
        (7, 7, 2, (7,)),
        (2**40, 1, 2, tuple(2**k for k in range(41))),  # the longest possible budget
    ],
)
def test_levels(max_steps, min_steps, eta, levels):
    spec = study(AshaPolicy(min_steps=min_steps, eta=eta), max_steps=max_steps)
    assert spec.rungs() == levels
    assert make_policy(spec).ladder(0) == levels


def test_listed_levels():
    spec = study(AshaPolicy(eta=4, rungs=(2, 5, 12, 40)), max_steps=40)
    assert spec.rungs() == make_policy(spec).ladder(0) == (2, 5, 12, 40)


def test_run_all_has_the_full_budget_alone():
    spec = study(RunAllPolicy(), max_steps=40)
    assert spec.rungs() == make_policy(spec).ladder(0) == (40,)


def test_bracket_s_skips_the_first_s_rungs():
    policy = make_policy(study(AshaPolicy(brackets=3), max_steps=27))
    assert [policy.ladder(bracket) for bracket in range(3)] == [(1, 3, 9, 27), (3, 9, 27), (9, 27)]


@given(st.integers(1, 50), st.integers(2, 12), st.integers(0, 9))
def test_exact_powers_lose_no_level(min_steps, eta, power):
    spec = study(AshaPolicy(min_steps=min_steps, eta=eta), max_steps=min_steps * eta**power)
    assert len(spec.rungs()) == power + 1


@given(st.integers(1, 10**12), st.integers(1, 10**12), st.integers(2, 12))
def test_levels_increase_and_end_with_the_budget(one, other, eta):
    low, high = sorted((one, other))
    levels = study(AshaPolicy(min_steps=low, eta=eta), max_steps=high).rungs()
    assert list(levels) == sorted(set(levels))
    assert levels[-1] == high
    assert all(later == earlier * eta for earlier, later in pairwise(levels[:-1]))
