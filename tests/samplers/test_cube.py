"""Coordinates of configurations: which exist, and that few of a choice's many values need one."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampler_studies import CONDITIONAL, MIXED, ODD, spec_of

from headrace.spec.space import active
from headrace_services.scheduler.samplers import Result, make_learner, make_sampler
from headrace_services.scheduler.samplers.cube import Cube, View

UNIT: dict[str, Any] = {"type": "float", "low": 0.0, "high": 1.0}


def child(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {**UNIT, "conditions": list(conditions)}


BOUNDS = {
    "lr": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
    "width": {"type": "int", "low": 2, "high": 300, "log": True},
    "depth": {"type": "int", "low": 1, "high": 9, "step": 2},
    "wide": {"type": "int", "low": -(2**62), "high": 2**62},
    "kind": {"type": "categorical", "values": [1, True, "a", 2.5]},
    "of_lr": child({"parameter": "lr", "above": 0.001, "below": 0.1}),
    "of_width": child({"parameter": "width", "at_least": 20}),
    "of_depth": child({"parameter": "depth", "values": [3, 5]}),
    "of_wide": child({"parameter": "wide", "at_most": 0}),
    "of_kind": child({"parameter": "kind", "values": ["a", 1]}, {"parameter": "of_lr", "at_least": 0.5}),
    "of_true": child({"parameter": "kind", "values": [True]}),
    "of_one": child({"parameter": "kind", "values": [1]}),
}


@pytest.mark.parametrize(
    "space", [BOUNDS, CONDITIONAL, MIXED, ODD["deep"]], ids=["bounds", "cond", "mixed", "deep"]
)
@given(seed=st.integers(0, 2**32))
def test_what_exists_at_a_row_is_what_its_configuration_has(space: dict[str, Any], seed: int) -> None:
    cube = Cube(spec_of("random", space))
    rows = cube.drawn(10, np.random.default_rng(seed))
    for row, exists in zip(rows, cube.existing(rows), strict=True):
        params = cube.configuration(row)
        assert tuple(params) == active(cube.space, params)
        assert [name for name, there in zip(space, exists, strict=True) if there] == list(params)


SPACES = {"mixed": MIXED, **ODD}


@pytest.mark.cases(5)
@pytest.mark.parametrize(
    "name", sorted(SPACES.keys() - {"narrowest"})
)  # its two floats are treated as an interval
@given(seed=st.integers(0, 2**32))
def test_a_row_is_where_its_configuration_is(name: str, seed: int) -> None:
    """Otherwise a model would search between the values of a domain, where there is nothing to find."""
    cube = Cube(spec_of("random", SPACES[name]))
    rows = cube.drawn(4, np.random.default_rng(seed))
    again = np.array([cube.row(cube.configuration(row)) for row in rows])
    view = View(cube, again)
    assert view.points(rows) == pytest.approx(view.points(again), abs=1e-6)


def test_values_without_results_share_a_coordinate_and_are_as_far_away_as_before() -> None:
    many = {"c": {"type": "categorical", "values": list(range(500))}, "x": UNIT}
    cube = Cube(spec_of("random", many))
    rows = np.array([cube.row({"c": value, "x": 0.5}) for value in (3, 499, 3)])
    asked = np.array([cube.row({"c": value, "x": 0.5}) for value in (3, 4, 499, 0)])
    view = View(cube, rows)
    assert view.groups.tolist() == [0, 0, 0, 1]
    gaps = np.linalg.norm(view.points(asked)[:, None] - view.points(rows)[None], axis=-1)
    assert gaps == pytest.approx(np.array([[0, 1, 0], [1, 1, 1], [1, 0, 1], [1, 1, 1]]))


def test_a_choice_of_very_many_values_costs_little() -> None:
    """With a coordinate for each value, its points alone would take gigabytes."""
    spec = spec_of("multi_fidelity", {"c": {"type": "categorical", "values": list(range(20_000))}, "x": UNIT})
    draws, learner = make_sampler(spec), make_learner(spec)
    told = [params for params in map(draws.suggest, range(40)) if params is not None]
    learner.learn([Result(params=one, values=(float(one["x"]),)) for one in told])
    view = View(Cube(spec), np.array([Cube(spec).row(one) for one in told]))
    assert len(view.groups) <= 42
    assert float(learner.suggest(41, []).params["x"]) < 0.1


def test_of_very_many_pending_trials_the_latest_count() -> None:
    """Each of them makes the model larger, which costs the cube of its size."""
    sampler = {"kind": "multi_fidelity", "startup_trials": 4, "max_results": 20}
    spec = spec_of("multi_fidelity", {"x": UNIT, "y": UNIT}, sampler=sampler)
    draws, learner = make_sampler(spec), make_learner(spec)
    told = [params for params in map(draws.suggest, range(100)) if params is not None]
    learner.learn([Result(params=one, values=(float(one["x"]),)) for one in told[:20]])
    assert learner.suggest(100, told[30:]) == learner.suggest(100, told[-20:])
