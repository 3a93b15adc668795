"""How many trials of a study repeat a point of its space, and which studies get no warning."""

from typing import Any

import pytest

from headrace.spec import StudySpec
from headrace.spec.repeats import Repeats, expected_trials, repeats

CHOICE = {"type": "categorical", "values": ["a", "b"]}
SPACE = {"kind": CHOICE, "n": {"type": "int", "low": 1, "high": 3}}
"""Six points."""


def spec_of(trials: int, space: dict[str, Any] = SPACE, **more: Any) -> StudySpec:
    objective = {"metric": "loss", "goal": "minimize"}
    return StudySpec.model_validate(
        {
            "objective": objective,
            "space": space,
            "policy": {"kind": "run_all"},
            "max_trials": trials,
            "max_steps": 4,
            **more,
        }
    )


@pytest.mark.parametrize("sampler", ["random", "sobol", "tpe", "gp", "cmaes", "nsga2", "multi_fidelity"])
def test_trials_beyond_the_points_are_repeats(sampler: str) -> None:
    assert repeats(spec_of(6, sampler={"kind": sampler})) is None
    found = repeats(spec_of(20, sampler={"kind": sampler}))
    assert found == Repeats(points=6, distinct=6, trials=20)


def test_further_trials_count_with_those_that_there_are() -> None:
    assert repeats(spec_of(4), further=2) is None
    assert repeats(spec_of(4), further=3) == Repeats(points=6, distinct=6, trials=7)


def test_a_point_that_is_enqueued_twice_takes_no_other_point_its_turn() -> None:
    twice = [{"kind": "a", "n": 1}, {"kind": "a", "n": 1}]
    assert repeats(spec_of(7, enqueued=twice)) is None
    assert repeats(spec_of(8, enqueued=twice)) == Repeats(points=6, distinct=7, trials=8)


def test_the_baseline_is_no_such_point() -> None:
    assert repeats(spec_of(6, baseline={"kind": "a", "n": 1})) is None


def test_a_parameter_that_does_not_exist_makes_no_further_point() -> None:
    when_a = SPACE["n"] | {"conditions": [{"parameter": "kind", "values": ["a"]}]}
    space = {"kind": CHOICE, "n": when_a, "x": {"type": "float", "low": 0.0, "high": 0.3, "step": 0.1}}
    assert repeats(spec_of(17, space)) == Repeats(points=16, distinct=16, trials=17)


@pytest.mark.parametrize(
    "more",
    [
        {"sampler": {"kind": "grid"}},
        {"sampler": {"kind": "best_of", "study": "other"}},
        {"policy": {"kind": "pbt", "interval": 2}},
        {"space": {**SPACE, "lr": {"type": "float", "low": 0, "high": 1}}},
    ],
    ids=["grid", "best_of", "pbt", "continuum"],
)
def test_nothing_is_said_of(more: dict[str, Any]) -> None:
    assert repeats(spec_of(20, **more)) is None


def test_nothing_is_reported_about_a_space_that_cannot_be_counted() -> None:
    space: dict[str, Any] = {f"p{number}": CHOICE for number in range(40)}
    for number in range(40):
        space[f"c{number}"] = CHOICE | {"conditions": [{"parameter": f"p{number}", "values": ["b"]}]}
    assert repeats(spec_of(20, space)) is None


def test_a_space_of_more_points_than_any_study_has_trials_is_counted_at_once() -> None:
    wide = {f"n{number}": {"type": "int", "low": 0, "high": 2**62} for number in range(50)}
    assert repeats(spec_of(20, wide)) is None


def test_a_grid_ends_with_its_last_point() -> None:
    grid = {"kind": "grid"}
    assert expected_trials(spec_of(20, sampler=grid)) == 6
    assert expected_trials(spec_of(5, sampler=grid)) == 5
    assert expected_trials(spec_of(20)) == 20
