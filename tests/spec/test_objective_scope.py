"""`scope` and `k` of an objective: what is refused and with which words, what `keep: best` implies, and the
messages."""

from typing import Any

import pytest
from spec_samples import SMALL, assert_refused

from headrace.spec import Scope, StudySpec, from_proto, parse_spec, to_proto
from headrace.spec.objective import DEFAULT_SCOPE


def data_of(further: list[dict[str, Any]] | None = None, **objective: Any) -> dict[str, Any]:
    data = {**SMALL, "objective": {**SMALL["objective"], **objective}, "policy": "run_all"}
    return data | ({"further_objectives": further} if further else {})


def spec_of(further: list[dict[str, Any]] | None = None, **objective: Any) -> StudySpec:
    return parse_spec(data_of(further, **objective))


SIZE = [{"metric": "size", "goal": "minimize"}]
SEVERAL = "a Pareto front compares the last reports"


@pytest.mark.parametrize(
    ("objective", "field", "says"),
    [
        ({"scope": "mean_last_k"}, "k", "is required | k: 5"),
        ({"scope": "mean_last_k", "k": 0}, "k", "at least 1 | from 1 to 100"),
        ({"scope": "mean_last_k", "k": 101}, "k", "at most 100 | from 1 to 100"),
        ({"scope": "mean_last_k", "k": 2.5}, "k", "whole number"),
        ({"scope": "last", "k": 5}, "k", "says nothing with `scope: last` | mean_last_k"),
        ({"scope": "min"}, "scope", " | mean_last_k"),
        ({"scope": "last", "keep": "best"}, "scope", "keep: best | scope: best"),
        ({"scope": "full_budget", "keep": "best"}, "scope", "keep: best | scope: best"),
        ({"scope": "last", "last_k": 5}, "last_k", " | `k`"),
        ({"further": SIZE, "scope": "mean_last_k", "k": 3}, "scope", f"{SEVERAL} | Leave scope out."),
    ],
)
def test_what_cannot_be_is_refused_with_its_field_and_a_remedy(
    objective: dict[str, Any], field: str, says: str
) -> None:
    assert_refused(data_of(**objective), f"objective.{field}", says)


def test_several_objectives_compare_last_reports_and_take_no_other_scope() -> None:
    assert spec_of(SIZE).objective.scope is DEFAULT_SCOPE
    assert spec_of(SIZE, scope="last").objective.scope is Scope.LAST
    further = data_of([{**SIZE[0], "scope": "best"}])
    assert_refused(further, "further_objectives[0].scope", f"{SEVERAL} | Leave scope out.")


def test_keeping_the_best_checkpoint_implies_the_best_value() -> None:
    assert spec_of(keep="best").objective.scope is Scope.BEST
    assert spec_of(keep="best", scope="best").objective.scope is Scope.BEST
    assert spec_of().objective.scope is DEFAULT_SCOPE


@pytest.mark.parametrize(
    "objective",
    [
        {},
        {"keep": "best"},
        {"scope": "best"},
        {"scope": "last"},
        {"scope": "full_budget"},
        {"scope": "mean_last_k", "k": 7},
    ],
)
def test_messages_and_rows_bring_it_back(objective: dict[str, Any]) -> None:
    spec = spec_of(**objective)
    assert from_proto(to_proto(spec)) == spec
    assert StudySpec.stored(spec.model_dump(mode="json")) == spec
