"""Shortlists: the plans within the model's error of the best, one per split."""

import json

import pytest
from plan_command import run, said

from headrace_services.planner import asking
from headrace_services.planner.asking import Options
from headrace_services.planner.modes import FULL
from headrace_services.planner.search import Search
from headrace_services.planner.shortlist import LEAST, MOST, NEAR, shortlist


def chosen(*plans: tuple[str, float]) -> list[tuple[str, float]]:
    return shortlist(plans, lambda one: one[1], lambda one: one[0])


def test_one_plan_of_each_split_within_the_error() -> None:
    plans = chosen(("b", 1.02), ("a", 1.0), ("a", 1.01), ("c", 1.04), ("b", 1.021))
    assert plans == [("a", 1.0), ("b", 1.02)]


def test_two_at_least_and_five_at_most() -> None:
    assert chosen(("a", 1.0), ("a", 1.001), ("b", 1.5), ("c", 1.6)) == [("a", 1.0), ("b", 1.5)]
    assert len(chosen(*((str(i), 1 + i / 1000) for i in range(9)))) == MOST
    assert chosen(("a", 1.0)) == [("a", 1.0)]
    assert chosen() == []


@pytest.mark.parametrize(
    ("model", "cluster", "batch"), [("gpt3-13b", "a100-32", 64), ("llama3-8b", "h100-16", 64)]
)
def test_no_split_that_belongs_to_it_is_missing(model: str, cluster: str, batch: int) -> None:
    """Solving every tuple finds no further split well within the error."""
    search = Search(asking.request(model, cluster, Options(batch=batch)))
    found = search.near()
    assert LEAST <= len(found) <= MOST
    best = search.run(FULL).plan
    assert best is not None
    assert found[0].simulated_s == best.simulated_s
    splits = {(one.degrees.d, one.degrees.m, one.degrees.s) for one in found}
    assert len(splits) == len(found)
    if len(found) < MOST:
        for _, degrees in search.bounds():
            candidate = search.candidate(FULL, degrees)
            near = candidate is not None and candidate.objective_s <= (1 + NEAR / 2) * best.analytic_s
            assert not near or (degrees.d, degrees.m, degrees.s) in splits


def test_the_command_says_what_to_measure() -> None:
    words = ["gpt3-13b", "a100-32", "--batch", "64"]
    assert "measure these" in said(*words)
    told = json.loads(run(*words, "--json"))
    assert LEAST <= len(told["shortlist"]) <= MOST
    assert told["shortlist"][0]["iteration_s"] == told["iteration_s"]


@pytest.mark.parametrize(
    ("model", "cluster", "within"),
    [("gpt3-13b", "a100-32", [True, True]), ("llama3-8b", "h100-16", [True, False])],
)
def test_a_plan_that_is_further_off_than_the_error_is_said_to_be(
    model: str, cluster: str, within: list[bool]
) -> None:
    words = [model, cluster, "--batch", "64"]
    told = json.loads(run(*words, "--json"))["shortlist"]
    assert [one["within_error"] for one in told] == within
    assert [one["iteration_s"] <= (1 + NEAR) * told[0]["iteration_s"] for one in told] == within
    assert ("further off" in said(*words)) == (not all(within))
