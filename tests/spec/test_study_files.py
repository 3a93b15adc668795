"""Study files: friendly names, YAML 1.2 scalars, and errors in the words of the file."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from spec_samples import SMALL, assert_says, violations
from study_file_samples import MINIMAL, SOUND, added, minimal

from headrace.errors import InvalidFieldError
from headrace.spec import (
    AutoPolicy,
    CommandLine,
    Condition,
    FloatDomain,
    GridSampler,
    RandomSampler,
    check_assignment,
    from_proto,
    load_study_file,
    parse_spec,
    to_proto,
)
from headrace.spec.file import parse_study_text
from headrace.spec.yaml import read_yaml


def test_a_sound_file(load, tmp_path):
    study = load(SOUND)
    spec = study.spec
    assert study.path == tmp_path / "study.yaml"
    assert study.name == "digits"
    assert spec.space["optimizer"].values == ("sgd", "adam", "on", 1e-4)
    assert (spec.space["lr"].low, spec.space["lr"].high) == (1e-5, 0.1)
    assert spec.space["momentum"].conditions == (Condition(parameter="optimizer", values=("sgd",)),)
    assert spec.space["depth"].conditions == (Condition(parameter="optimizer", values=("adam",)),)
    assert spec.template.working_dir == str(tmp_path)
    assert spec.template.env == {"THREADS": "2", "DEBUG": "true", "NAME": "x"}
    assert spec.template.grace == timedelta(seconds=5)
    assert spec.template.report_timeout == timedelta(milliseconds=500)
    assert (spec.max_trials, spec.max_parallel, spec.max_retries, spec.seed) == (27, 4, 2, 5)
    assert spec.max_early_failures == 5
    assert spec.max_steps == 27
    assert spec.baseline == {"optimizer": "sgd", "lr": 1e-3, "momentum": 0.9}
    assert spec.enqueued == ({"optimizer": "adam", "lr": 0.01, "depth": 3},)
    assert spec.resources.gpus == 1
    assert spec.sampler == RandomSampler()


def test_a_minimal_file(load):
    spec = load(MINIMAL).spec
    assert spec.template is None
    assert spec.policy == AutoPolicy()
    assert spec.rungs() == (1, 3, 9)


def test_a_command_and_a_folder_of_its_own(load, tmp_path):
    text = MINIMAL + "trial: {command: [python, train.py, '--x={x}'], working_dir: ../code}\n"
    template = load(text).spec.template
    assert template.command == CommandLine(args=("python", "train.py", "--x={x}"))
    assert template.working_dir == str(tmp_path.parent / "code")


def test_an_absolute_folder_stays(load):
    assert (
        load(MINIMAL + "trial: {callable: 'a:b', working_dir: /srv/code}\n").spec.template.working_dir
        == "/srv/code"
    )


def test_a_grid(load):
    spec = load(MINIMAL + "sampler: {kind: grid, points: {x: 5}}\n").spec
    assert spec.sampler == GridSampler(points={"x": 5})


def test_the_path_is_kept_whole(tmp_path, monkeypatch):
    (tmp_path / "s.yaml").write_text(MINIMAL)
    monkeypatch.chdir(tmp_path)
    assert load_study_file("s.yaml").path == tmp_path / "s.yaml"


def domain(more):
    return minimal("high: 1", f"high: 1, {more}")


# The rules themselves are in test_spec_violations.py. This is about a file's words, its paths and its YAML.
ONE_FAULT = [
    (minimal("name: small\n", ""), "name", "is required | name: digits"),
    (minimal("small", "Small Study"), "name", "invalid study name 'Small Study': use | small-study"),
    (minimal("small", "3"), "name", "invalid study name 3: use lower-case letters, digits and - | my-study"),
    (added("paralel: 2"), "paralel", "not a known key | `parallel`"),
    (minimal("trials:", "max_trials:"), "max_trials", "not a known key | `trials`"),
    (minimal("steps:", "max_steps:"), "max_steps", "not a known key | `steps`"),
    (minimal("trials: 3", "trials: 0"), "trials", "at least 1"),
    (minimal("trials: 3\n", ""), "trials", "is required"),
    (minimal("steps: 9\n", ""), "steps", "is required | last of the policy's `rungs`"),
    (minimal("low: 0", "low: .nan"), "space.x.low", "finite"),
    (minimal("low: 0", "log: yes, low: 0.1"), "space.x.log", "true or false | without quotes"),
    (minimal("low: 0", "low: '0'"), "space.x.low", "must be a number | without quotes"),
    (domain("when: 3"), "space.x.when", "must be a mapping | when:"),
    (domain("conditions: []"), "space.x.conditions", "not a known key | `when`"),
    (
        domain("when: {y: [1]}"),
        "space.x.when.y",
        "is not a parameter | there is no parameter that it could name",
    ),
    (domain("when: {y: {'>=': 1}}"), "space.x.when.y", "is not a parameter"),
    (
        domain("when: {y: {'=>': 1}}"),
        "space.x.when.y",
        "not a known comparison | one of >=, >, <=, <, in, ==",
    ),
    (domain("when: {y: {}}"), "space.x.when.y", "has no comparison | `{"),
    (domain("whem: {y: [1]}"), "space.x.whem", "not a known key | `when`"),
    (added("trial: {callable: train}"), "trial.callable", "module:function"),
    (added("trial: {callable: src/fl.py}"), "trial.callable", "names a file | `src.fl:train`"),
    (added("trial: {callable: 'a:b', grace: 3}"), "trial.grace", "not a known key | `grace_s`"),
    (added("trial: {callable: 'a:b', grace_s: soon}"), "trial.grace_s", "must be a number"),
    (added("trial: {callable: 'a:b', report_timeout_s: 0}"), "trial.report_timeout_s", "above 0"),
    (added("trial: {callable: 'a:b', trial_timeout_s: 0}"), "trial.trial_timeout_s", "above 0"),
    (
        added("trial: {command: ['run {y}']}"),
        "trial.command[0]",
        "names `y` | Known placeholders: x, trial, seed",
    ),
    (added("trial: {command: run}"), "trial.command", "must be a list"),
    (added("trial: {command: []}"), "trial.command", "is empty"),
    (added("trial: {}"), "trial.callable", "is required"),
    (added("trial: 3"), "trial", "must be a mapping"),
    (minimal("{x: {type: float, low: 0, high: 1}}", "[{name: x}]"), "space", "must be a mapping"),
    (added("enqueue: [{x: 0.5}, {x: 2}]"), "enqueue[1].x", "outside its domain"),
    (added("parallel: -1"), "parallel", "at least 0"),
    (added("policy: {kind: asha, rungs: []}"), "policy.rungs", "is empty | at least one"),
    (minimal("steps: 9", "policy: {kind: asha, rungs: []}"), "policy.rungs", "is empty | at least one"),
    (added("trials: 4"), "trials", "stands twice, on lines 4 and 6 | Remove"),
    (added("resources: {gpus: 1, gpus: 2}"), "resources.gpus", "stands twice"),
    (added("baseline: {x: !!python/object:os.system 0.1}"), "baseline.x", "has the tag"),
    (added("? [a, b]\n: 3"), "", "a key on line 6"),
]


@pytest.mark.parametrize(("text", "path", "says"), ONE_FAULT)
def test_one_fault(faults, text, path, says):
    found = faults(text)
    assert list(found) == [path]
    assert_says(found[path], says)


COMPARED = """
name: compared
objective: {metric: loss, goal: minimize}
space:
  depth: {type: int, low: 1, high: 8}
  kind: {type: categorical, values: [plain, dense, conv]}
  skip: {type: float, low: 0, high: 1, when: {depth: {">=": 3, "<": 6}, kind: {in: [plain, dense]}}}
  rate: {type: float, low: 0, high: 1, when: {skip: {">": 0.5}, kind: {"==": plain}}}
steps: 3
trials: 9
"""


def test_when_with_comparisons():
    spec = parse_study_text(COMPARED, folder=Path())[1]
    depth, kind = spec.space["skip"].conditions
    assert (depth.parameter, depth.bounds) == ("depth", {"at_least": 3, "below": 6})
    assert [value for value in (2, 3, 5, 6, True, "3") if depth.holds(value)] == [3, 5]
    assert (kind.values, kind.bounds) == (("plain", "dense"), {})
    skip, plain = spec.space["rate"].conditions
    assert [skip.holds(value) for value in (0.5, 0.500001, 1.0)] == [False, True, True]
    assert plain.values == ("plain",)
    assert from_proto(to_proto(spec)) == spec


@pytest.mark.parametrize(
    ("old", "new", "path", "message"),
    [
        ('">=": 3, "<": 6', '">": 5, "<": 6', "skip.when.depth", "can never hold: depth is a whole number"),
        ('">=": 3, "<": 6', '">=": 9', "skip.when.depth", "can never hold: depth is a whole number from 1"),
        ("in: [plain, dense]", "in: [plain, ivy]", "skip.when.kind[1]", "is not a value of kind"),
        ("in: [plain, dense]", '">": 2', "skip.when.kind", "has values that are not numbers"),
        ('kind: {"==": plain}', 'depth: {"<": 3}', "rate.when", "that depth is below 3, and at least 3 and"),
        ('{">": 0.5}', '"> 0.5"', "rate.when.skip", "is continuous"),
        ('depth: {">=": 3, "<": 6}', 'depth: ">= 3"', "skip.when.depth[0]", "is not a value of depth"),
    ],
)
def test_comparisons_that_cannot_be(faults, old, new, path, message):
    assert old in COMPARED
    found = faults(COMPARED.replace(old, new))
    assert list(found) == [f"space.{path}"]
    assert_says(found[f"space.{path}"], message)


def test_what_two_parents_ask_of_one_parameter():
    """`c` needs both parents, and no value of `a` allows both to exist."""
    space = {
        "a": {"type": "int", "low": 1, "high": 9},
        "low": {"type": "int", "low": 0, "high": 1, "when": {"a": {"<": 4}}},
        "high": {"type": "int", "low": 0, "high": 1, "when": {"a": {">": 4}}},
        "c": {"type": "int", "low": 0, "high": 1, "when": {"low": 1, "high": 1}},
        "d": {"type": "int", "low": 0, "high": 1, "when": {"c": 1}},
    }
    found = violations({**SMALL, "space": space})
    assert list(found) == ["space.c.when"]
    assert re.search("that a is (below 4, and above|above 4, and below) 4", found["space.c.when"].message)


def test_a_configuration_that_does_not_meet_a_comparison():
    spec = parse_study_text(COMPARED, folder=Path())[1]
    sound = {"depth": 3, "kind": "plain", "skip": 0.2}
    assert check_assignment(spec, sound, field="x") == sound
    with pytest.raises(InvalidFieldError, match=r"exists only where depth is at least 3 and below 6"):
        check_assignment(spec, sound | {"depth": 6}, field="x")
    with pytest.raises(InvalidFieldError, match=r"rate.* is missing"):
        check_assignment(spec, sound | {"skip": 0.6}, field="x")


def test_a_python_script_is_no_study_file(tmp_path):
    (tmp_path / "hab.py").write_text("def train(t):\n    t.report(a=1)\n")
    with pytest.raises(InvalidFieldError) as raised:
        load_study_file(tmp_path / "hab.py")
    (found,) = raised.value.violations
    assert found.message == "is a Python script, not a study file"
    assert "`trial: {callable: hab:train}`" in found.remedy


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("+1.5e+3", 1500.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-0.0", -0.0),
        ("12", 12),
        ("-3", -3),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("1:30", "1:30"),
        ("on", "on"),
        ("no", "no"),
        ("Yes", "Yes"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("2024-01-01", "2024-01-01"),
        ("'12'", "12"),
        ("e5", "e5"),
        ("1e", "1e"),
        (".inf", float("inf")),
        ("-.inf", float("-inf")),
        ("1" * 200, 10**100),
        ("1_000", "1_000"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    data, problems = read_yaml(f"a: {text}")
    assert problems == []
    assert (type(data["a"]), data["a"]) == (type(value), value)


def test_a_mapping_has_the_keys_of_a_study_file(load):
    data, _ = read_yaml(SOUND)
    spec = parse_spec(data)
    assert spec.template is not None
    assert spec.template.working_dir == str(Path.cwd())
    in_file = load(SOUND).spec
    here = in_file.template.model_copy(update={"working_dir": str(Path.cwd())})
    assert spec == in_file.model_copy(update={"template": here})
    assert parse_spec(spec.model_dump(mode="json")) == spec, "and the spec's own keys"


def test_a_mapping_without_a_name_is_a_spec_and_its_errors_have_its_words():
    data, _ = read_yaml(SOUND)
    del data["name"], data["trials"]
    data["max_trials"] = 3
    data["space"]["momentum"]["when"] = {"optimiser": ("sgd",)}
    data["trial"]["working_dir"] = "a\0b"
    found = violations(data)
    assert {"max_trials", "space.momentum.when.optimiser", "trial.working_dir"} <= set(found)
    assert "`trials`" in found["max_trials"].remedy
    assert "trials" in violations({})
    assert "[1]" in violations({1: 2})
    condition = Condition(parameter="nobody", values=("sgd",))
    data["space"]["momentum"] = FloatDomain(low=0.0, high=1.0, conditions=(condition,))
    assert "space.momentum.when.nobody" in violations(data)
