"""An extended spec: its rungs stay in place, further ones follow, and it knows its earlier form."""

from typing import Any

import pytest
from spec_samples import SOUND, violations

from headrace.errors import InvalidFieldError
from headrace.spec import from_proto, parse_spec, to_proto
from headrace.spec.file import parse_study_text


def spec(policy: dict[str, Any], steps: int = 9) -> Any:
    return parse_spec({**SOUND, "policy": policy, "max_steps": steps})


@pytest.mark.parametrize(
    ("policy", "steps", "budgets", "rungs"),
    [
        ({"kind": "asha", "min_steps": 1}, 9, [81], (1, 3, 9, 27, 81)),
        ({"kind": "asha", "min_steps": 1}, 9, [27, 81], (1, 3, 9, 27, 81)),
        ({"kind": "asha", "min_steps": 1}, 10, [40], (1, 3, 9, 10, 30, 40)),
        ({"kind": "asha", "rungs": [2, 5, 9]}, 9, [30], (2, 5, 9, 27, 30)),
        ({"kind": "hyperband", "min_steps": 1}, 9, [27], (1, 3, 9, 27)),
        ({"kind": "median", "interval": 4}, 9, [18], (4, 8, 9, 12, 16, 18)),
        ({"kind": "rung_median", "rungs": [3, 9]}, 9, [20, 30], (3, 9, 20, 30)),
        ({"kind": "pbt", "interval": 3}, 9, [15], (3, 6, 9, 12, 15)),
        ({"kind": "pbt"}, 20, [26, 30], (*range(2, 27, 2), 28, 30)),
        ({"kind": "run_all"}, 9, [18, 20], (9, 18, 20)),
    ],
)
def test_rungs_are_added_and_none_is_moved(
    policy: dict[str, Any], steps: int, budgets: list[int], rungs: tuple[int, ...]
) -> None:
    first = extended = spec(policy, steps)
    for budget in budgets:
        extended = extended.extended_to(trials=extended.max_trials, steps=budget)
    assert extended.rungs() == rungs
    assert extended.count_rungs() == len(rungs)
    assert extended.rungs()[: len(first.rungs())] == first.rungs()
    assert extended.as_created() == first
    assert from_proto(to_proto(extended)) == extended
    assert parse_spec(extended.model_dump(mode="json")) == extended


@pytest.mark.parametrize("kind", ["median", "rung_median", "pbt"])
def test_an_interval_that_nobody_chose_grows_with_the_budget(kind: str) -> None:
    extended = spec({"kind": kind}, 20).extended_to(trials=27, steps=2**40)
    rungs = extended.rungs()
    assert len(rungs) == extended.count_rungs() <= len(spec({"kind": kind}, 20).rungs()) + 101
    assert list(rungs) == sorted(set(rungs))


def test_rungs_are_counted_without_being_listed() -> None:
    policy = {"kind": "median", "interval": 1}
    assert spec(policy).extended_to(trials=27, steps=2**40).count_rungs() == 2**40


def test_more_trials_are_remembered_beside_the_first_number() -> None:
    extended = spec({"kind": "run_all"}).extended_to(trials=40, steps=9).extended_to(trials=50, steps=9)
    assert (extended.max_trials, extended.first_trials, extended.budgets) == (50, 27, (9,))


def test_what_no_extension_can_have_made_is_refused() -> None:
    wrong = {**SOUND, "policy": {"kind": "run_all"}, "extended": {"trials": 28, "steps": [30, 5]}}
    assert set(violations(wrong)) == {"extended.trials", "extended.steps[0]"}


def test_a_study_file_says_until_and_not_extended(tmp_path: Any) -> None:
    text = """
name: s
objective: {metric: loss, goal: minimize}
space: {x: {type: float, low: 0, high: 1}}
trials: 3
steps: 9
"""
    _, read = parse_study_text(f"{text}until: {{value: 0.1, hours: 2, no_improvement: 20}}", folder=tmp_path)
    assert read.until.conditions(read.objective) == [
        "loss ≤ 0.1",
        "2 hours",
        "20 trials without improvement",
    ]
    with pytest.raises(InvalidFieldError, match="extended: is not a known key"):
        parse_study_text(f"{text}extended: {{trials: 2}}", folder=tmp_path)
