"""On a finite space each point is tried once while untried ones exist, whichever sampler proposes."""

from typing import Any

import pytest

from headrace.spec import StudySpec
from headrace.spec.repeats import repeats
from headrace_services.scheduler.core.inputs import AddTrials
from headrace_services.scheduler.in_process.study import InProcessStudy
from headrace_services.scheduler.samplers import points_of

STEPS = {"type": "float", "low": 0.0, "high": 0.7, "step": 0.1}
WHOLE = {"type": "int", "low": 1, "high": 8}
SPACE = {"x": STEPS, "y": WHOLE}
CONDITIONAL = {
    "kind": {"type": "categorical", "values": ["a", "b"]},
    "x": {**STEPS, "conditions": [{"parameter": "kind", "values": ["a"]}]},
    "y": {"type": "int", "low": 1, "high": 4, "log": True},
}
LEARNING = ("tpe", "cmaes", "nsga2", "multi_fidelity")


def study(
    sampler: str, trials: int, space: dict[str, Any] = SPACE, grid: dict[str, Any] | None = None, **more: Any
) -> InProcessStudy:
    return InProcessStudy(spec_of(sampler, trials, space, grid, **more), name="points")


def spec_of(
    sampler: str, trials: int, space: dict[str, Any] = SPACE, grid: dict[str, Any] | None = None, **more: Any
) -> StudySpec:
    objective = {"metric": "loss", "goal": "minimize"}
    return StudySpec.model_validate(
        {
            "objective": objective,
            "space": space,
            "sampler": {"kind": sampler, **(grid or {})},
            "policy": {"kind": "run_all"},
            "max_trials": trials,
            "max_steps": 1,
            **more,
        }
    )


def tried(one: InProcessStudy) -> list[tuple[tuple[str, Any], ...]]:
    """The configurations in order, each of them reported."""
    found = []
    while (asked := one.ask()) is not None:
        params = one.trial(asked.number).params
        found.append(tuple(params.items()))
        loss = (params.get("x", 0.0) - 0.2) ** 2 + (params["y"] - 3) ** 2
        one.report(asked, 1, {"loss": loss}, held=False)
    return found


@pytest.mark.parametrize("sampler", ["random", "grid", "sobol", *LEARNING])
@pytest.mark.parametrize("seed", [0, 1])
def test_forty_trials_of_64_points_are_forty_points(sampler: str, seed: int) -> None:
    found = tried(study(sampler, 40, seed=seed))
    assert len(found) == len(set(found)) == 40


@pytest.mark.parametrize("sampler", ["random", "grid", "tpe"])
def test_every_point_has_its_turn(sampler: str) -> None:
    found = tried(study(sampler, 64))
    assert len(set(found)) == 64


@pytest.mark.parametrize("sampler", ["random", "grid", "tpe"])
def test_a_parameter_that_does_not_exist_makes_no_further_point(sampler: str) -> None:
    found = tried(study(sampler, 36, CONDITIONAL))
    assert len(found) == len(set(found)) == 36  # 8 · 4 with x, 4 without


def test_a_grid_tries_an_enqueued_point_once_and_ends_with_its_last_one() -> None:
    first = {"x": 0.3, "y": 2}  # 0.1 + 0.1 + 0.1 is the grid's 0.30000000000000004
    found = tried(study("grid", 100, enqueued=[first]))
    assert len(found) == len(set(found)) == 64


def test_an_enqueued_point_beside_the_grid_is_a_further_one() -> None:
    space = {"x": {"type": "float", "low": 0.001, "high": 1.0, "log": True}, "y": WHOLE}
    enqueued = [{"x": 0.01, "y": 1}, {"x": 0.02, "y": 1}]  # the first one is on it
    found = tried(study("grid", 100, space, {"points": {"x": 4}}, enqueued=enqueued))
    assert len(found) == 4 * 8 + 1
    assert sum(abs(dict(params)["x"] - 0.01) < 1e-9 and dict(params)["y"] == 1 for params in found) == 1


@pytest.mark.parametrize("sampler", ["random", "grid", "tpe"])
def test_a_point_that_is_added_later_is_not_proposed(sampler: str) -> None:
    one = study(sampler, 64)
    assert one.ask() is not None  # a few are made ahead of need
    made = {tuple(trial.params.items()) for trial in one.show()[1]}
    new = next(
        {"x": round(0.1 * x, 1), "y": y}
        for x in reversed(range(8))
        for y in reversed(range(1, 9))
        if all(abs(dict(point)["x"] - 0.1 * x) > 1e-6 or dict(point)["y"] != y for point in made)
    )
    one._apply(AddTrials(params=(new,)))
    tried(one)
    points = [tuple(round(value, 6) for value in trial.params.values()) for trial in one.show()[1]]
    assert len(set(points)) == 64
    assert len(points) == (64 if sampler == "grid" else 65)  # with all points tried, the others repeat one


def test_samplers_repeat_once_all_points_are_tried() -> None:
    space = {"x": {"type": "categorical", "values": [0, 1, 2]}, "y": {"type": "int", "low": 1, "high": 1}}
    found = tried(study("random", 7, space))
    assert len(found) == 7
    assert len(set(found[:3])) == 3


@pytest.mark.parametrize("sampler", ["random", "tpe"])
@pytest.mark.parametrize(
    ("space", "enqueued"),
    [(SPACE, []), (CONDITIONAL, []), (SPACE, [{"x": 0.3, "y": 2}, {"x": 0.2, "y": 2}, {"x": 0.3, "y": 2}])],
    ids=["plain", "conditional", "enqueued twice"],
)
def test_as_many_trials_repeat_a_point_as_were_announced(
    sampler: str, space: dict[str, Any], enqueued: list[dict[str, Any]]
) -> None:
    one = study(sampler, 70, space, enqueued=enqueued)
    said = repeats(one.spec)
    assert said is not None
    found = [tuple((name, str(value)[:4]) for name, value in point) for point in tried(one)]
    assert len(set(found[: said.distinct])) == len(set(found)) == said.points
    assert len(found) == said.trials


def test_a_continuum_and_the_best_of_another_study_have_no_points() -> None:
    real = {"x": {"type": "float", "low": 0, "high": 1}}
    assert points_of(study("random", 3, real).spec) is None
    assert points_of(study("random", 3).spec) is not None


def test_a_space_with_too_many_branches_is_not_counted() -> None:
    """Each of 40 parents has a child: there are more branches than can be listed."""
    choice = {"type": "categorical", "values": [0, 1]}
    space: dict[str, Any] = {f"p{number}": choice for number in range(40)}
    for number in range(40):
        space[f"c{number}"] = choice | {"conditions": [{"parameter": f"p{number}", "values": [1]}]}
    assert points_of(spec_of("random", 5, space)) is None, "to list them takes longer than a test may"


def test_a_proposal_is_repeated_before_all_of_a_large_space_is_looked_at() -> None:
    space = {"y": {"type": "int", "low": 0, "high": 99_999}}
    points = points_of(spec_of("random", 5, space))
    assert points is not None
    tried = {points.point({"y": value}) for value in range(100_000)} - {points.point({"y": 77_777})}
    looked = 0

    class Counted(set[Any]):
        def __contains__(self, point: object) -> bool:
            nonlocal looked
            looked += 1
            return super().__contains__(point)

    points.untried(100_001, Counted(tried), {"y": 5})
    assert looked < 5_000
