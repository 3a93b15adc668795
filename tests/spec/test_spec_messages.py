"""Whole specs: several violations at once, configurations, names, and what is valid."""

import pytest
from pydantic import ValidationError
from spec_samples import DELETE, SOUND, spoiled, violations

from headrace.errors import InvalidFieldError
from headrace.spec import StudySpec, check_assignment, check_study_id, parse_spec, violations_of

GOOD = [
    {"space__depth": {"type": "int", "low": 3.0, "high": 3}},
    {"space__depth": {"type": "int", "low": 1, "high": 64, "log": True}, "baseline__depth": 64},
    {"space__lr": {"type": "float", "low": -1, "high": 1}, "baseline__lr": -1},
    {"space__lr": {"type": "float", "low": 0, "high": 0.3, "step": 0.1}, "baseline__lr": 0.3},
    {"space__optimizer__values": ["sgd", "adam", 1, True, 0, False, "1"]},
    {"policy": {"kind": "asha", "min_steps": 27}},
    {"policy__brackets": 4},
    {"policy": DELETE},
    {"policy": {"kind": "run_all"}},
    {"template": None},
    {"template__callable": "package.module:Class.method"},
    {"enqueued": [SOUND["baseline"]] * 27},
    {"max_steps": DELETE},
    {"max_trials": 27.0},
    {"objective__metric": "eval/top-5@k.mean"},
]


@pytest.mark.parametrize("changes", GOOD)
def test_good(changes):
    assert violations(spoiled(**changes)) == {}


def test_all_at_once():
    found = violations(
        spoiled(
            objective__metric="a b",
            objective__goal="min",
            space__lr__low="x",
            space__depth__low=99,
            space__momentum__conditions=[{"parameter": "nope", "values": [1]}],
            policy__eta=1,
            policy__rungs=[5, 4],
            policy__typo=1,
            template__callable="train",
            template__typo=1,
            max_trials=0,
            max_steps="many",
            resources={"gpus": -1},
            zzz=1,
        )
    )
    assert set(found) == {
        "objective.metric",
        "objective.goal",
        "space.lr.low",
        "space.depth.low",
        "space.momentum.conditions[0].parameter",
        "policy.eta",
        "policy.rungs[1]",
        "policy.typo",
        "template.callable",
        "template.typo",
        "max_trials",
        "max_steps",
        "resources.gpus",
        "zzz",
    }


def test_a_bad_bound_does_not_hide_what_joins_fields():
    found = violations(spoiled(space__depth__low="x", policy__rungs=[1, 3, 9], baseline__lr=7))
    assert set(found) == {"space.depth.low", "policy.rungs[2]", "baseline.lr"}


def test_a_cycle_of_two_names_the_way():
    data = spoiled(
        space__a={"type": "int", "low": 1, "high": 2, "conditions": [{"parameter": "b", "values": [1]}]},
        space__b={"type": "int", "low": 1, "high": 2, "conditions": [{"parameter": "a", "values": [1]}]},
        baseline=DELETE,
    )
    found = violations(data)
    assert list(found) == ["space.a.conditions[0].parameter"]  # b's condition alone is valid
    assert "a → b → a" in found["space.a.conditions[0].parameter"].message


def test_the_value_is_shown_and_shortened():
    found = violations(spoiled(space__lr__low="x" * 500))
    assert found["space.lr.low"].value.startswith("'xxx")
    assert len(found["space.lr.low"].value) < 100


@pytest.mark.parametrize("data", [None, 3, "text", [], [1]])
def test_no_mapping_at_all(data):
    with pytest.raises(InvalidFieldError):
        parse_spec(data)


def test_constructors_raise_what_pydantic_raises():
    with pytest.raises(ValidationError) as raised:
        StudySpec(**spoiled(space__lr__low=5))
    assert [violation.field for violation in violations_of(raised.value)] == ["space.lr.low"]


def test_configurations_come_out_as_their_domains_write_them():
    spec = parse_spec(
        spoiled(baseline__depth=3.0, baseline__lr=0.1, enqueued=[{**SOUND["baseline"], "depth": 5.0}])
    )
    assert type(spec.baseline["depth"]) is int
    assert type(spec.enqueued[0]["depth"]) is int
    assert list(spec.baseline) == ["optimizer", "lr", "momentum", "depth"]
    built = StudySpec(**spoiled(baseline__depth=3.0))
    assert type(built.baseline["depth"]) is int


def test_a_configuration_that_is_added_later():
    spec = parse_spec(SOUND)
    assert check_assignment(spec, {"depth": 3.0, "lr": 0.1, "optimizer": "adam"}, field="p") == {
        "optimizer": "adam",
        "lr": 0.1,
        "depth": 3,
    }
    with pytest.raises(InvalidFieldError) as raised:
        check_assignment(spec, {"optimizer": "adam", "depth": 2}, field="parameters[0]")
    assert [v.field for v in raised.value.violations] == ["parameters[0].lr", "parameters[0].depth"]


@pytest.mark.parametrize("name", ["a", "digits", "a-1", "a" * 63, "x--"])
def test_good_study_ids(name):
    assert check_study_id(name) == name


@pytest.mark.parametrize("name", ["", "A", "1a", "-a", "a_b", "a" * 64, "a b", "a\n", "é", "studies/a"])
def test_bad_study_ids(name):
    with pytest.raises(InvalidFieldError) as raised:
        check_study_id(name)
    assert raised.value.violations[0].field == "study_id"
    assert "lower-case" in raised.value.violations[0].message
    assert raised.value.violations[0].remedy.startswith("For example: ")


def test_specs_are_frozen():
    with pytest.raises(ValidationError):
        parse_spec(SOUND).max_trials = 3
