"""Conditions that compare a number: every sampler proposes exactly what they allow, on both sides of each bound."""

import itertools
from typing import Any

import pytest
from sampler_studies import KINDS, by_position, play, spec_of

from headrace.spec import Domain, StudySpec, check_assignment
from headrace.spec.space import active
from headrace_services.scheduler.core.policies.explore import Exploration
from headrace_services.scheduler.samplers import make_sampler


def where(parameter: str, **bounds: Any) -> list[dict[str, Any]]:
    return [{"parameter": parameter, **bounds}]


COMPARED: dict[str, Any] = {
    "depth": {"type": "int", "low": 1, "high": 8},
    "size": {"type": "categorical", "values": [64, 16, 32.0, 128]},
    "lr": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
    "skip": {"type": "float", "low": 0.0, "high": 1.0, "conditions": where("depth", at_least=3, below=6)},
    "wide": {"type": "int", "low": 1, "high": 3, "conditions": where("size", above=32)},
    "decay": {"type": "float", "low": 0.0, "high": 1.0, "conditions": where("lr", at_most=0.01)},
    "deeper": {
        "type": "categorical",
        "values": ["a", "b"],
        "conditions": [*where("wide", above=1), *where("depth", values=[3, 4, 8])],
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_proposal_has_what_exists_and_nothing_else(kind: str) -> None:
    spec = spec_of(kind, COMPARED)
    trials = 6 if kind == "gp" else 40 if kind != "grid" else 400
    proposed = [one.params for one in play(spec, trials, by_position, in_flight=2)]
    for params in proposed:
        assert check_assignment(spec, params, field="x") == params
        assert tuple(params) == active(spec.space, params)
    if kind in ("grid", "gp"):
        return
    for name in ("skip", "wide", "decay"):
        assert {name in params for params in proposed} == {True, False}


def all_points(space: dict[str, Domain], points: int) -> set[tuple[tuple[str, object], ...]]:
    """Every configuration of a grid, computed the long way: all combinations, without the parameters that do not
    exist in each."""
    axes = []
    for name, domain in space.items():
        sampler = make_sampler(spec_of("grid", {name: COMPARED[name] | {"conditions": []}}))
        size = sampler.size
        assert size == (points if domain.count is None else domain.count)
        axes.append([(sampler.suggest(place) or {})[name] for place in range(size)])
    found = set()
    for values in itertools.product(*axes):
        whole = dict(zip(space, values, strict=True))
        found.add(tuple((name, whole[name]) for name in active(space, whole)))
    return found


def test_the_grid_has_every_point_once() -> None:
    spec = spec_of("grid", COMPARED)
    grid = make_sampler(spec)
    assert grid.size is not None
    points = [tuple((grid.suggest(number) or {}).items()) for number in range(grid.size)]
    assert len(set(points)) == len(points)
    assert set(points) == all_points(dict(spec.space), 3)
    assert grid.suggest(grid.size) is None


def test_a_bound_on_a_range_that_nobody_can_list() -> None:
    space = {
        "n": {"type": "int", "low": -(2**62), "high": 2**62},
        "x": {"type": "int", "low": 1, "high": 2, "conditions": where("n", at_least=0.0)},
    }
    fields = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "sampler": {"kind": "grid"},
        "max_trials": 9,
        "max_steps": 1,
    }
    grid = make_sampler(StudySpec.model_validate({**fields, "space": space}))
    assert grid.size == 2**62 + 2 * (2**62 + 1)
    assert grid.suggest(2**62 - 1) == {"n": -1}
    assert grid.suggest(2**62) == {"n": 0, "x": 1}


def test_a_member_of_a_population_that_crosses_a_bound_gains_and_loses_what_hangs_on_it() -> None:
    space = spec_of("random", {name: COMPARED[name] for name in ("lr", "decay")}).space
    exploration = Exploration(
        space=space, mutable=frozenset(space), resample_probability=0.0, factors=(2.0,), seed=1
    )
    assert set(exploration.mutate({"lr": 0.009, "decay": 0.5}, own={}, trial=0, rung=0)) == {"lr"}
    down = Exploration(
        space=space, mutable=frozenset(space), resample_probability=0.0, factors=(0.5,), seed=1
    )
    gained = down.mutate({"lr": 0.011}, own={}, trial=0, rung=0)
    assert set(gained) == {"lr", "decay"}
    assert 0.0 <= float(gained["decay"]) <= 1.0
