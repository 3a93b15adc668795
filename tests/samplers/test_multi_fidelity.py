"""The model over all rungs: how it handles ranks, rungs, and more results than it may use."""

import math
from typing import Any

import numpy as np
import pytest
from sampler_studies import MIXED, play, spec_of
from scipy.integrate import quad
from scipy.stats import norm

from headrace.spec import StudySpec
from headrace_services.scheduler.samplers import Result, make_learner, make_sampler
from headrace_services.scheduler.samplers.multi_fidelity import log_expected_improvement

XY: dict[str, Any] = {name: {"type": "float", "low": 0.0, "high": 1.0} for name in "xy"}
LADDER = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9]}


def study(space: Any = XY, **changes: Any) -> StudySpec:
    return spec_of("multi_fidelity", space, policy=LADDER, max_steps=9, **changes)


def results(spec: StudySpec, count: int, value: Any, level: int = 1, first: int = 0) -> list[Result]:
    draws = make_sampler(spec)
    params = [draws.suggest(number) for number in range(first, first + count)]
    return [Result(params=one, values=(value(one),), level=level) for one in params if one is not None]


@pytest.mark.parametrize("away", [-30.0, -5.0, -1.0, -0.99, 0.0, 2.0, 8.0])
def test_expected_improvement_is_the_integral(away: float) -> None:
    mean, deviation = 0.7, 0.3
    least = mean + away * deviation
    (found,) = log_expected_improvement(np.array([mean]), np.array([deviation]), least)
    if away < -10:  # the first terms of the expansion at infinity
        expected = norm.logpdf(away) + math.log(deviation / away**2 * (1 - 3 / away**2))
    else:
        integral = quad(lambda y: (least - y) * norm.pdf(y, mean, deviation), least - 12, least)[0]
        expected = math.log(integral)
    assert found == pytest.approx(expected, rel=1e-4)


def test_proposals_depend_on_the_order_of_values_alone() -> None:
    """A loss on another scale, even one that explodes, changes nothing."""
    spec = study()

    def loss(params: dict[str, Any]) -> float:
        return (params["x"] - 0.3) ** 2 + params["y"]

    plain, steep = make_learner(spec), make_learner(spec)
    plain.learn(results(spec, 30, loss))
    steep.learn(results(spec, 30, lambda params: math.exp(300 * loss(params)) - 5))
    for number in (40, 41):
        assert plain.suggest(number, []) == steep.suggest(number, [])


def test_the_goal_is_heeded() -> None:
    spec = study(objective={"metric": "loss", "goal": "maximize"})
    learner = make_learner(spec)
    learner.learn(results(spec, 40, lambda params: params["x"]))
    assert float(learner.suggest(41, []).params["x"]) > 0.8


def test_a_higher_rung_overrules_a_lower_one() -> None:
    """At the first rung small x are better. Trials that reached the last one show that large x are."""
    spec = study()
    low = make_learner(spec)
    low.learn(results(spec, 40, lambda params: params["x"]))
    both = make_learner(spec)
    both.learn(results(spec, 40, lambda params: params["x"]))
    both.learn(results(spec, 20, lambda params: -1.0 - params["x"], level=9))
    asked = range(41, 57, 2)
    assert max(float(low.suggest(number, []).params["x"]) for number in asked) < 0.3
    assert min(float(both.suggest(number, []).params["x"]) for number in asked) > 0.7


def test_a_few_results_at_the_top_say_where_to_go_only_together_with_those_below() -> None:
    """Three results at the last rung are too few for a model of their own, but still count."""
    spec = study(MIXED)
    learner = make_learner(spec)
    learner.learn(results(spec, 40, lambda params: float(params["drop"])))
    learner.learn(results(spec, 3, lambda params: float(params["drop"]) - 1.0, level=9))
    proposed = [float(learner.suggest(number, []).params["drop"]) for number in range(41, 57, 2)]
    assert sum(proposed) / len(proposed) < 0.25


def test_infeasible_results_stand_behind_feasible_ones() -> None:
    spec = study(constraints=[{"metric": "y", "at_most": 0.5}])
    learner = make_learner(spec)
    draws = make_sampler(spec)
    for number in range(40):
        params = draws.suggest(number)
        assert params is not None
        x, y = float(params["x"]), float(params["y"])
        learner.learn([Result(params=params, values=(x - y,), excesses=(y - 0.5,), level=1)])
    proposed = [learner.suggest(number, []).params for number in range(41, 57, 2)]
    assert sum(float(one["y"]) <= 0.55 for one in proposed) >= 6
    assert sum(float(one["x"]) < 0.3 for one in proposed) >= 6


def test_the_latest_and_the_best_are_kept() -> None:
    """With more results than the model may use, it forgets bad old ones: these may be anything."""
    few = {"kind": "multi_fidelity", "startup_trials": 4, "max_results": 20}
    proposals = []
    for old in (5.0, 50.0):
        spec = study(sampler=few)
        learner = make_learner(spec)
        learner.learn(results(spec, 20, lambda params: params["x"], first=100))
        learner.learn(results(spec, 30, lambda params, old=old: old + params["y"], first=200))
        learner.learn(results(spec, 10, lambda params: params["x"], first=300))
        proposals.append([learner.suggest(number, []) for number in (70, 71)])
    assert proposals[0] == proposals[1]
    assert float(proposals[0][1].params["x"]) < 0.2


def test_a_thousand_results_told_at_once_or_one_by_one_are_the_same() -> None:
    spec = study()
    told = results(spec, 1000, lambda params: (params["x"] - 0.6) ** 2 + params["y"])
    at_once, one_by_one = make_learner(spec), make_learner(spec)
    at_once.learn(told)
    for place, one in enumerate(told):
        one_by_one.learn([one])
        if place % 97 == 11:
            one_by_one.suggest(place, [])
    assert one_by_one.learnt == 1000
    for number in (1001, 1002):
        assert at_once.suggest(number, []) == one_by_one.suggest(number, [])


def test_without_a_level_a_result_counts_at_the_first_rung() -> None:
    spec = study()
    told = results(spec, 20, lambda params: params["x"])
    with_level, without = make_learner(spec), make_learner(spec)
    with_level.learn(told)
    without.learn([Result(params=one.params, values=one.values) for one in told])
    assert with_level.suggest(21, []) == without.suggest(21, [])


def test_of_finitely_many_configurations_none_is_tried_twice_before_all_are() -> None:
    size = {"type": "int", "low": 1, "high": 8, "log": True}
    spec = study({"size": size, "kind": {"type": "categorical", "values": ["a", "b", "c"]}})
    made = play(
        spec, 30, lambda params: Result(params=params, values=(float(params["size"]),), level=1), in_flight=3
    )
    proposed = [tuple(one.params.items()) for one in made]
    started = next(place for place, one in enumerate(made) if not one.is_draw)
    left = 24 - len(set(proposed[:started]))
    assert len(set(proposed[: started + left])) == 24
    assert len(proposed) == 30  # and then it continues


def test_no_neighbour_of_the_best_is_the_best_itself() -> None:
    """Half of a neighbour's parameters have moved, so with a single parameter every second neighbour has not."""
    spec = study({"x": XY["x"]})
    made = play(spec, 30, lambda params: Result(params=params, values=((params["x"] - 0.3) ** 2,), level=1))
    assert len({one.params["x"] for one in made}) == 30


def test_several_objectives_are_refused() -> None:
    with pytest.raises(ValueError, match="knows one objective only"):
        study(further_objectives=[{"metric": "cost", "goal": "minimize"}])
