"""One suite for all samplers: within the domain, of the right types, active where conditions hold, repeatable,
aware of pending trials, and robust against an odd space or an odd result."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import bundled_studies
import pytest
from sampler_studies import (
    CONDITIONAL,
    KINDS,
    MIXED,
    ODD,
    POOLED,
    by_position,
    play,
    spec_of,
)

from headrace.spec import StudySpec, check_assignment
from headrace.spec.space import active
from headrace_services.scheduler.samplers import (
    History,
    Params,
    Result,
    Suggestion,
    make_learner,
    make_sampler,
    propose,
)

MODELS = ("tpe", "gp", "multi_fidelity", "cmaes", "nsga2", "nsga3")
TRIALS = {kind: 7 if kind == "gp" else 14 for kind in KINDS}
"""A Gaussian process on six dimensions takes a second per proposal."""


Playing = Callable[..., list[Suggestion]]


def played(kinds: Sequence[str], in_bundles: Sequence[str]) -> list[Any]:
    """Kinds, each with the function that plays its study."""
    return [
        *(pytest.param(kind, play, id=kind) for kind in kinds),
        *(pytest.param(kind, bundled_studies.play, id=f"{kind} in bundles") for kind in in_bundles),
    ]


QUICK = [kind for kind in KINDS if kind != "gp"]


def typed(params: Params) -> list[tuple[str, type, Any]]:
    return [(name, type(value), value) for name, value in params.items()]


def assert_belongs(spec: StudySpec, made: list[Suggestion]) -> None:
    for suggestion in made:
        admitted = check_assignment(spec, suggestion.params, field="proposal")
        assert typed(admitted) == typed(suggestion.params)
        assert list(suggestion.params) == list(active(spec.space, suggestion.params))


@pytest.mark.parametrize(("kind", "playing"), played(KINDS, QUICK))
def test_proposals_are_in_the_domain_and_keep_their_types(kind: str, playing: Playing) -> None:
    spec = spec_of(kind)
    assert_belongs(spec, playing(spec, TRIALS[kind], by_position, in_flight=3))


@pytest.mark.parametrize(("kind", "playing"), played(KINDS, QUICK))
def test_parameters_are_active_exactly_where_their_conditions_hold(kind: str, playing: Playing) -> None:
    spec = spec_of(kind, CONDITIONAL)
    made = playing(spec, 20, by_position, in_flight=2)
    assert_belongs(spec, made)
    assert {params["opt"] for params in (one.params for one in made)} == {"sgd", "adam"}


@pytest.mark.cases(9)
@pytest.mark.parametrize(("kind", "playing"), played(KINDS, QUICK))
def test_the_same_seed_and_results_give_the_same_proposals(kind: str, playing: Playing) -> None:
    spec = spec_of(kind)
    first = playing(spec, TRIALS[kind], by_position, in_flight=3)
    assert playing(spec, TRIALS[kind], by_position, in_flight=3) == first
    if kind != "grid":
        assert playing(spec_of(kind, seed=6), TRIALS[kind], by_position, in_flight=3) != first


@pytest.mark.cases(4)
@pytest.mark.parametrize("kind", POOLED)
def test_a_fresh_process_proposes_what_the_old_one_would_have(kind: str) -> None:
    """A model that learnt one result after the other, and one that gets all of them at once, agree."""
    spec = spec_of(kind)
    last = 8 if kind == "gp" else 18
    made = play(spec, last + 1, by_position, in_flight=3)
    known = [replace(by_position(one.params), generation=one.generation) for one in made[: last - 2]]
    history = History(level=1, results=known, pending=[one.params for one in made[last - 2 : last]])
    assert propose(spec, history, last) == made[last]


@pytest.mark.cases(50)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ODD)
def test_no_space_is_too_odd(kind: str, name: str) -> None:
    if kind == "grid" and name in ("all integers", "log integers", "wide steps", "tiny step"):
        pytest.skip("a grid of all the values of a huge domain has too many points for a short test")
    spec = spec_of(kind, ODD[name])
    assert_belongs(spec, play(spec, 7 if kind == "gp" else 12, by_position, in_flight=2))


@pytest.mark.cases(4)
@pytest.mark.parametrize("kind", POOLED)
def test_odd_results_do_no_harm(kind: str) -> None:
    odd = [math.nan, math.inf, -math.inf, 1e308, -1e308, 0.0]
    count = 0

    def measure(params: Params) -> Result:
        nonlocal count
        count += 1
        return Result(params=params, values=(odd[count % len(odd)],))

    spec = spec_of(kind)
    assert_belongs(spec, play(spec, TRIALS[kind], measure, in_flight=2))
    count = 0
    spec = spec_of(kind, MIXED, objective={"metric": "loss", "goal": "maximize"})
    assert_belongs(
        spec, play(spec, TRIALS[kind], lambda p: Result(params=p, values=(math.nan,)), in_flight=2)
    )


@pytest.mark.parametrize("kind", ["tpe", "gp", "multi_fidelity"])
def test_pending_trials_are_taken_into_account(kind: str) -> None:
    """Eight proposals in a row without a result are eight places, not one place eight times."""
    space = {name: {"type": "float", "low": 0.0, "high": 1.0} for name in "xy"}
    spec = spec_of(kind, space)
    learner = make_learner(spec)

    def valley(params: Params) -> Result:
        x, y = float(params["x"]), float(params["y"])
        return Result(params=params, values=((x - 0.7) ** 2 + (y - 0.2) ** 2,))

    learner.learn([valley(one.params) for one in play(spec_of("sobol", space), 16, valley)])
    alone = learner.suggest(30, [])
    crowd = [alone.params]
    for _ in range(5):
        crowd.append(learner.suggest(30, crowd).params)
    places = {(round(float(one["x"]), 3), round(float(one["y"]), 3)) for one in crowd}
    assert len(places) >= 4
    assert learner.suggest(30, []) == alone  # and what was pending once is not remembered


@pytest.mark.cases(3)
@pytest.mark.parametrize(("kind", "playing"), played(MODELS, ("tpe", "cmaes")))
def test_models_learn(kind: str, playing: Playing) -> None:
    """On a bowl, a model's late proposals are better than its early ones."""
    space = {name: {"type": "float", "low": -5.0, "high": 5.0} for name in "xy"}

    def bowl(params: Params) -> Result:
        return Result(params=params, values=(sum(float(v) ** 2 for v in params.values()),))

    trials = {"gp": 24, "multi_fidelity": 24, "tpe": 60}.get(kind, 240)
    made = playing(spec_of(kind, space), trials, bowl, in_flight=2)
    values = [bowl(one.params).values[0] for one in made]
    third = trials // 3
    assert sorted(values[-third:])[third // 2] < 0.7 * sorted(values[:third])[third // 2]


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", ["tpe", "gp", "nsga2", "nsga3"])
def test_several_objectives_and_constraints(kind: str) -> None:
    space = {name: {"type": "float", "low": 0.0, "high": 1.0} for name in "xy"}
    spec = spec_of(
        kind,
        space,
        further_objectives=[{"metric": "cost", "goal": "maximize"}],
        constraints=[{"metric": "y", "at_most": 0.5}],
    )

    def measure(params: Params) -> Result:
        x, y = float(params["x"]), float(params["y"])
        return Result(params=params, values=(x, x - y), excesses=(spec.constraints[0].excess(y),))

    trials = 14 if kind == "gp" else 60
    made = play(spec, trials, measure, in_flight=2)
    assert_belongs(spec, made)
    late = [float(one.params["y"]) for one in made[-trials // 3 :]]
    assert sum(y <= 0.5 for y in late) > 0.6 * len(late)


def test_a_metric_that_a_constraint_lacks_counts_as_missed() -> None:
    spec = spec_of("tpe", constraints=[{"metric": "memory", "at_least": 2}])
    assert spec.constraints[0].excess(None) == math.inf
    assert spec.constraints[0].excess(math.nan) == math.inf
    assert spec.constraints[0].excess(1.5) == 0.5
    assert spec.constraints[0].excess(2.0) <= 0
    made = play(spec, 8, lambda params: Result(params=params, values=(1.0,), excesses=(math.inf,)))
    assert_belongs(spec, made)


@pytest.mark.parametrize("kind", ["tpe", "gp", "multi_fidelity", "cmaes"])
def test_a_warm_start_spares_the_startup(kind: str) -> None:
    """With an earlier study's results on a bowl, the first proposals are already near its bottom."""
    space = {name: {"type": "float", "low": -5.0, "high": 5.0} for name in "xy"}

    def bowl(params: Params) -> Result:
        return Result(params=params, values=(sum((float(v) - 3) ** 2 for v in params.values()),))

    warm = [bowl(one.params) for one in play(spec_of("sobol", space), 64, bowl)]
    warm.sort(key=lambda result: result.values)
    learner = make_learner(spec_of(kind, space), warm)
    first = [bowl(learner.suggest(number, []).params).values[0] for number in range(5)]
    untaught = [bowl(one.params).values[0] for one in play(spec_of("random", space), 5, bowl)]
    assert sum(first) / 5 < 0.5 * sum(untaught) / 5


def test_generations_follow_one_another() -> None:
    """Eight trials at a time and a population of four: each generation appears, and late results do no harm."""
    for kind in ("cmaes", "nsga2", "nsga3"):
        made = play(spec_of(kind), 60, by_position, in_flight=8)
        generations = [one.generation for one in made if one.generation is not None]
        assert generations == sorted(generations)
        assert generations[-1] >= 4
        assert set(generations) == set(range(generations[-1] + 1))


def test_a_grid_is_exhausted_and_the_others_are_not() -> None:
    grid = make_sampler(spec_of("grid"))
    assert grid.size is not None
    assert grid.suggest(grid.size) is None
    for kind in KINDS:
        if kind != "grid":
            assert make_sampler(spec_of(kind)).size is None


def test_a_sobol_sequence_is_even() -> None:
    """Of the first 64 points, each eighth of each dimension has 8; independent draws have no such bound."""
    space = {name: {"type": "float", "low": 0.0, "high": 1.0} for name in "abc"}
    sampler = make_sampler(spec_of("sobol", space))
    points = [sampler.suggest(number) for number in range(64)]
    for name in "abc":
        eighths = [int(8 * float(point[name])) for point in points if point]
        assert [eighths.count(eighth) for eighth in range(8)] == [8] * 8
    assert make_sampler(spec_of("sobol", space)).suggest(37) == points[37]
