"""The importance of parameters: what is compared, what is found for functions with a known answer, and what is
said if nothing can be found."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.spec import StudySpec
from headrace_services.scheduler.samplers import Params, make_sampler
from headrace_services.scheduler.samplers.history import Result
from headrace_services.scheduler.samplers.importance import FEWEST, Importance, compared_level, why_none
from headrace_services.scheduler.samplers.ped_anova import importances

SPACE = {
    "lr": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
    "width": {"type": "int", "low": 8, "high": 64},
    "act": {"type": "categorical", "values": ["relu", "gelu", "tanh"]},
}


def make_spec(**changes: Any) -> StudySpec:
    fields: dict[str, Any] = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": SPACE,
        "policy": {"kind": "asha", "eta": 3, "rungs": [1, 3, 9, 27]},
        "max_trials": 200,
        "max_steps": 27,
        "seed": 3,
    }
    return StudySpec.model_validate({**fields, **changes})


def of_lr(params: Params) -> float:
    """Almost all of the variation comes from the learning rate."""
    return abs(math.log10(float(params["lr"])) + 2) + 1e-3 * float(params["width"])


def played(spec: StudySpec, trials: int, value: Callable[[Params], float]) -> list[Result]:
    sampler = make_sampler(spec)
    drawn = [sampler.suggest(number) for number in range(trials)]
    return [Result(params=params, values=(value(params),)) for params in drawn if params is not None]


def measured(spec: StudySpec, trials: int, value: Callable[[Params], float]) -> Importance:
    (found,) = importances(spec, 9, played(spec, trials, value))
    return found


def test_the_parameter_that_matters_comes_first() -> None:
    found = measured(make_spec(), 60, of_lr)
    assert (found.metric, found.level, found.trials, found.reason) == ("loss", 9, 60, "")
    assert found.shares[0].parameter == "lr"
    assert found.shares[0].share > 0.6
    assert {one.parameter for one in found.shares} == set(SPACE)
    assert sum(one.share for one in found.shares) == pytest.approx(1.0)
    assert [one.share for one in found.shares] == sorted((one.share for one in found.shares), reverse=True)


def test_a_greatest_value_is_as_good_as_a_least_one() -> None:
    least = measured(make_spec(), 60, of_lr)
    greatest = measured(
        make_spec(objective={"metric": "loss", "goal": "maximize"}), 60, lambda params: -of_lr(params)
    )
    assert greatest.shares == least.shares


def test_what_diverged_counts_as_the_worst_and_is_not_left_out() -> None:
    """Without the trials that diverged, the remaining ones would show no effect of the learning rate."""

    def value(params: Params) -> float:
        return math.nan if float(params["lr"]) > 1e-2 else 0.01 * float(params["width"])

    found = measured(make_spec(), 60, value)
    share = {one.parameter: one.share for one in found.shares}
    assert share["lr"] > 0.1
    assert share["width"] > share["act"]
    assert found.trials == 60


def test_what_misses_a_constraint_is_never_among_the_best() -> None:
    spec = make_spec(constraints=[{"metric": "size", "at_most": 20}])
    results = [
        Result(params=one.params, values=one.values, excesses=(float(one.params["width"]) - 20,))
        for one in played(spec, 80, lambda params: 1e-3 * float(params["width"]) + 1e-4 * of_lr(params))
    ]
    free = measured(make_spec(), 80, lambda params: -1e-3 * float(params["width"]))
    (bound,) = importances(
        spec, 9, [Result(params=r.params, values=(-r.values[0],), excesses=r.excesses) for r in results]
    )
    assert free.shares[0].parameter == bound.shares[0].parameter == "width"
    assert bound.shares[0].share != pytest.approx(free.shares[0].share, abs=1e-6)


def test_a_conditional_parameter_counts_where_it_exists() -> None:
    space = {
        "opt": {"type": "categorical", "values": ["sgd", "adam"]},
        "lr": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
        "momentum": {
            "type": "float",
            "low": 0.0,
            "high": 1.0,
            "conditions": [{"parameter": "opt", "values": ["sgd"]}],
        },
    }

    def value(params: Params) -> float:
        return abs(float(params["momentum"]) - 0.5) if params["opt"] == "sgd" else 5.0

    found = measured(make_spec(space=space), 100, value)
    by_name = {one.parameter: one for one in found.shares}
    assert 0 < by_name["momentum"].trials < by_name["opt"].trials == by_name["lr"].trials == 100
    assert by_name["momentum"].share > by_name["lr"].share
    assert by_name["opt"].share > by_name["lr"].share


def test_each_objective_has_its_own() -> None:
    spec = make_spec(further_objectives=[{"metric": "cost", "goal": "minimize"}], policy={"kind": "run_all"})
    results = [
        Result(params=one.params, values=(*one.values, float(one.params["width"])))
        for one in played(spec, 60, of_lr)
    ]
    loss, cost = importances(spec, 27, results)
    assert (loss.metric, loss.shares[0].parameter) == ("loss", "lr")
    assert (cost.metric, cost.shares[0].parameter) == ("cost", "width")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (lambda _: 0.5, "all 20 trials that are compared have the same value"),
        (lambda _: math.nan, "no trial that is compared has a usable value"),
    ],
)
def test_values_that_say_nothing(value: Callable[[Params], float], reason: str) -> None:
    found = measured(make_spec(), 20, value)
    assert (found.shares, found.reason) == ((), reason)


def test_the_highest_rung_with_enough_trials_is_compared() -> None:
    spec = make_spec()
    assert compared_level(spec, {1: 100, 3: 35, 9: 13, 27: 5}.items()) == 9
    assert compared_level(spec, {1: 27, 3: 11, 9: 5}.items()) == 3
    assert compared_level(spec, {1: FEWEST - 1, 3: 2}.items()) is None
    wide = make_spec(space={f"x{place}": {"type": "float", "low": 0, "high": 1} for place in range(20)})
    assert compared_level(wide, {1: 100, 3: 35, 9: 13}.items()) == 3
    assert compared_level(wide, {1: 20, 3: 12}.items()) == 3  # none has as many trials as parameters


def test_why_nothing_is_compared() -> None:
    spec = make_spec()
    assert why_none(spec, {1: 12}.items()) == ""
    assert (
        why_none(spec, {1: 9, 3: 3}.items())
        == "at most 9 trials reached the same rung, and at least 10 are needed"
    )
    assert "at most 0 trials" in why_none(spec, {}.items())
    one = make_spec(space={"lr": SPACE["lr"], "kind": {"type": "categorical", "values": ["only"]}})
    assert "one parameter" in why_none(one, {1: 50}.items())
    population = make_spec(policy={"kind": "pbt", "interval": 3}, max_trials=40)
    assert "change their parameters" in why_none(population, {3: 40}.items())


def test_many_results_take_little_time_of_the_process() -> None:
    """The newest 2,000 results of a wide space, the most that is ever used: within the limit of the pool."""
    space = {f"x{place}": {"type": "float", "low": 0.0, "high": 1.0} for place in range(30)}
    spec = make_spec(space=space)
    rng = np.random.default_rng(0)
    drawn = rng.random((2000, 30))
    results = [
        Result(params=dict(zip(space, map(float, row), strict=True)), values=(float(row[4]),))
        for row in drawn
    ]
    (found,) = importances(spec, 9, results)
    assert found.shares[0].parameter == "x4"
