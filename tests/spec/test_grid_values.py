"""A number that a user writes matches a grid value computed in binary arithmetic: 0.3 is 0.1 * 3."""

from typing import Any

import pytest

from headrace.errors import InvalidFieldError
from headrace.spec import from_proto, parse_spec, to_proto
from headrace.spec.space import active

GRID = {"type": "float", "low": 0.0, "high": 0.5, "step": 0.1}
THIRD = 3 * 0.1
"""The grid's value for 0.3."""


def spec(**more: Any) -> Any:
    space = {"d": GRID, **more.pop("space", {})}
    goal = {"metric": "loss", "goal": "minimize"}
    data = {"objective": goal, "space": space, "trials": 3, "steps": 2, **more}
    return parse_spec(data)


def when(condition: object) -> Any:
    return spec(space={"x": {"type": "float", "low": 0.0, "high": 1.0, "when": {"d": condition}}})


def test_the_sample_is_one() -> None:
    assert THIRD != 0.3
    assert spec().space["d"].value_at(3) == THIRD


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (0.3, [3]),
        ([0.3, 0.1], [1, 3]),
        ({"<=": 0.3}, [0, 1, 2, 3]),
        ({"<": 0.3}, [0, 1, 2]),
        ({">=": 0.3}, [3, 4, 5]),
        ({">": 0.3}, [4, 5]),
        ({">=": 0.3, "<=": 0.3}, [3]),
        ({">": 0.25, "<=": 0.3}, [3]),
    ],
)
def test_conditions(condition: object, holds: list[int]) -> None:
    for one in (when(condition), from_proto(to_proto(when(condition)))):
        grid = one.space["d"]
        assert [n for n in range(grid.count) if "x" in active(one.space, {"d": grid.value_at(n)})] == holds


def test_a_condition_that_no_grid_value_meets_is_refused() -> None:
    with pytest.raises(InvalidFieldError, match="can never hold"):
        when({">": 0.25, "<": 0.3})


def test_enqueued_configurations_have_what_their_values_ask_for() -> None:
    x = {"type": "float", "low": 0.0, "high": 1.0, "when": {"d": 0.3}}
    made = spec(space={"x": x}, enqueue=[{"d": 0.3, "x": 0.5}])
    assert made.enqueued == ({"d": THIRD, "x": 0.5},)
    with pytest.raises(InvalidFieldError, match="is missing"):
        spec(space={"x": x}, enqueue=[{"d": 0.3}])


@pytest.mark.parametrize("table", [{0.3: 2, "else": 1}, {"from": {0.0: 1, 0.3: 2}}])
def test_size_tables(table: dict[Any, Any]) -> None:
    made = spec(resources={"cpus": {"by": "d", **table}})
    sizes = [made.resources.of({"d": made.space["d"].value_at(n)}).cpus for n in range(4)]
    assert sizes == [1, 1, 1, 2]


def test_a_value_with_two_rows_is_refused() -> None:
    with pytest.raises(InvalidFieldError, match="is listed twice"):
        spec(resources={"cpus": {"by": "d", 0.3: 2, THIRD: 3, "else": 1}})


def test_a_stored_study_keeps_what_it_had() -> None:
    data = when(0.3).model_dump(mode="json")
    data["space"][1]["conditions"][0]["values"] = [0.3]
    stored = type(when(0.3)).stored(data)
    assert stored.space["x"].conditions[0].values == (0.3,)
