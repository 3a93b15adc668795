"""Study files: friendly names, YAML 1.2 scalars, and errors in the words of the file."""

from datetime import timedelta
from pathlib import Path

import pytest
from study_file_samples import MINIMAL, SOUND

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


@pytest.mark.parametrize(
    ("text", "path", "message", "remedy"),
    [
        (MINIMAL.replace("name: small\n", ""), "name", "is required", "name: digits"),
        (
            MINIMAL.replace("small", "Small Study"),
            "name",
            "invalid study name 'Small Study': use",
            "small-study",
        ),
        (MINIMAL.replace("small", "3"), "name", "invalid study name", "my-study"),
        (MINIMAL + "paralel: 2\n", "paralel", "not a known key", "`parallel`"),
        (MINIMAL.replace("trials:", "max_trials:"), "max_trials", "not a known key", "`trials`"),
        (MINIMAL.replace("steps:", "max_steps:"), "max_steps", "not a known key", "`steps`"),
        (MINIMAL.replace("trials: 3", "trials: 0"), "trials", "at least 1", ""),
        (MINIMAL.replace("trials: 3\n", ""), "trials", "is required", ""),
        (MINIMAL.replace("trials: 3", "trials: three"), "trials", "whole number", ""),
        (MINIMAL.replace("steps: 9\n", ""), "steps", "is required", ""),
        (MINIMAL.replace("low: 0", "low: .nan"), "space.x.low", "finite", ""),
        (MINIMAL.replace("high: 1", "high: .inf"), "space.x.high", "finite", ""),
        (MINIMAL.replace("low: 0", "lo: 0, low: 0"), "space.x.lo", "not a known key", "`low`"),
        (MINIMAL.replace("low: 0", "log: yes, low: 0.1"), "space.x.log", "true or false", "without quotes"),
        (MINIMAL.replace("low: 0", "low: '0'"), "space.x.low", "must be a number", "without quotes"),
        (MINIMAL.replace("high: 1", "high: 1, when: 3"), "space.x.when", "must be a mapping", "when:"),
        (
            MINIMAL.replace("high: 1", "high: 1, conditions: []"),
            "space.x.conditions",
            "not a known key",
            "`when`",
        ),
        (MINIMAL.replace("high: 1", "high: 1, when: {y: [1]}"), "space.x.when.y", "is not a parameter", ""),
        (
            MINIMAL.replace("high: 1", "high: 1, when: {y: {'>=': 1}}"),
            "space.x.when.y",
            "is not a parameter",
            "",
        ),
        (
            MINIMAL.replace("high: 1", "high: 1, when: {y: {'=>': 1}}"),
            "space.x.when.y",
            "is not a known comparison",
            "Write one of >=, >, <=, <, in, ==",
        ),
        (MINIMAL.replace("high: 1", "high: 1, when: {y: {}}"), "space.x.when.y", "has no comparison", "`{"),
        (MINIMAL.replace("high: 1", "high: 1, whem: {y: [1]}"), "space.x.whem", "not a known key", "`when`"),
        (MINIMAL + "trial: {callable: train}\n", "trial.callable", "module:function", ""),
        (MINIMAL + "trial: {callable: 'fl.py:slow'}\n", "trial.callable", "names a file", "`fl:slow`"),
        (MINIMAL + "trial: {callable: src/fl.py}\n", "trial.callable", "names a file", "`src.fl:train`"),
        (MINIMAL + "trial: {callable: 'a:b', grace: 3}\n", "trial.grace", "not a known key", "`grace_s`"),
        (MINIMAL + "trial: {callable: 'a:b', grace_s: soon}\n", "trial.grace_s", "must be a number", ""),
        (
            MINIMAL + "trial: {callable: 'a:b', report_timeout_s: 0}\n",
            "trial.report_timeout_s",
            "above 0",
            "",
        ),
        (MINIMAL + "trial: {command: ['run {y}']}\n", "trial.command[0]", "names `y`", ""),
        (MINIMAL + "trial: {command: run}\n", "trial.command", "must be a list", ""),
        (MINIMAL + "trial: {command: []}\n", "trial.command", "is empty", ""),
        (MINIMAL + "trial: {}\n", "trial.callable", "is required", ""),
        (MINIMAL.replace("{x: {", "[{name: x, ").replace("1}}", "1}]"), "space", "must be a mapping", ""),
        (MINIMAL + "trial: 3\n", "trial", "must be a mapping", ""),
        (MINIMAL + "enqueue: [{x: 0.5}, {x: 2}]\n", "enqueue[1].x", "outside its domain", ""),
        (MINIMAL + "parallel: -1\n", "parallel", "at least 0", ""),
        (MINIMAL + "policy: {kind: asha, rungs: [1, 3]}\n", "policy.rungs[1]", "full budget is 9", ""),
        (MINIMAL + "policy: {kind: asha, rungs: []}\n", "policy.rungs", "is empty", "at least one"),
        (
            MINIMAL.replace("steps: 9\n", "policy: {kind: asha, rungs: []}\n"),
            "policy.rungs",
            "is empty",
            "at least one",
        ),
        (MINIMAL + "policy: {kind: sha}\n", "policy.kind", "not a known kind", ""),
        (MINIMAL + "policy: {eta: 3}\n", "policy.kind", "is required", "run_all, asha"),
        (MINIMAL + "trials: 4\n", "trials", "stands twice, on lines 4 and 6", "Remove"),
        (MINIMAL + "resources: {gpus: 1, gpus: 2}\n", "resources.gpus", "stands twice", ""),
        (MINIMAL + "baseline: {x: !!python/object:os.system 0.1}\n", "baseline.x", "has the tag", ""),
        (MINIMAL + "baseline: {x: 2024-01-01}\n", "baseline.x", "outside its domain", ""),
        (MINIMAL + "? [a, b]\n: 3\n", "", "a key on line 6", ""),
        (MINIMAL + "baseline: {x: 1_000}\n", "baseline.x", "outside its domain", ""),
    ],
)
def test_one_fault(faults, text, path, message, remedy):
    found = faults(text)
    assert message in found[path].message
    assert remedy in found[path].remedy
    assert list(found) == [path]


def test_when_with_a_value_outside_the_parents_domain(faults):
    text = SOUND.replace("when: {optimizer: [sgd]}", "when: {optimizer: [sgd, rms]}")
    assert set(faults(text)) == {"space.momentum.when.optimizer[1]"}


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
    assert [depth.holds(value) for value in (2, 3, 5, 6, True, "3")] == [
        False,
        True,
        True,
        False,
        False,
        False,
    ]
    assert (kind.values, kind.bounds) == (("plain", "dense"), {})
    skip, plain = spec.space["rate"].conditions
    assert [skip.holds(value) for value in (0.5, 0.500001, 1.0)] == [False, True, True]
    assert plain.values == ("plain",)
    assert from_proto(to_proto(spec)) == spec


@pytest.mark.parametrize(
    ("old", "new", "path", "message"),
    [
        (
            '">=": 3, "<": 6',
            '">": 5, "<": 6',
            "space.skip.when.depth",
            "can never hold: depth is a whole number",
        ),
        (
            '">=": 3, "<": 6',
            '">=": 9',
            "space.skip.when.depth",
            "can never hold: depth is a whole number from 1",
        ),
        ('">": 0.5', '">": 1', "space.rate.when.skip", "can never hold: skip is a number from 0 to 1"),
        ("in: [plain, dense]", '">": 2', "space.skip.when.kind", "has values that are not numbers"),
        ("in: [plain, dense]", "in: [plain, ivy]", "space.skip.when.kind[1]", "is not a value of kind"),
        (
            'kind: {"==": plain}',
            'depth: {"<": 3}',
            "space.rate.when",
            "that depth is below 3, and at least 3 and",
        ),
        ('{">": 0.5}', '"> 0.5"', "space.rate.when.skip", "is continuous"),
        ('depth: {">=": 3, "<": 6}', 'depth: ">= 3"', "space.skip.when.depth[0]", "is not a value of depth"),
        (
            'depth: {">=": 3, "<": 6}',
            'rate: {"<": 1}',
            "space.skip.when.rate",
            "cycle of conditions: skip → rate",
        ),
        ('depth: {">=": 3, "<": 6}', 'dept: {">=": 3}', "space.skip.when.dept", "is not a parameter"),
    ],
)
def test_comparisons_that_cannot_be(faults, old, new, path, message):
    assert old in COMPARED
    found = faults(COMPARED.replace(old, new))
    assert list(found) == [path]
    assert message in found[path].message


def test_what_two_parents_ask_of_one_parameter():
    """`c` needs both parents, and no value of `a` lets both exist."""
    space = {
        "a": {"type": "int", "low": 1, "high": 9},
        "low": {"type": "int", "low": 0, "high": 1, "when": {"a": {"<": 4}}},
        "high": {"type": "int", "low": 0, "high": 1, "when": {"a": {">": 4}}},
        "c": {"type": "int", "low": 0, "high": 1, "when": {"low": 1, "high": 1}},
        "d": {"type": "int", "low": 0, "high": 1, "when": {"c": 1}},
    }
    data = {"objective": {"metric": "l", "goal": "minimize"}, "space": space, "steps": 3, "trials": 9}
    (found,) = _violations(data)
    assert found.field == "space.c.when"
    assert (
        "that a is below 4, and above 4" in found.message or "that a is above 4, and below 4" in found.message
    )


def test_a_configuration_that_does_not_meet_a_comparison():
    spec = parse_study_text(COMPARED, folder=Path())[1]
    sound = {"depth": 3, "kind": "plain", "skip": 0.2}
    assert check_assignment(spec, sound, field="x") == sound
    with pytest.raises(InvalidFieldError, match=r"exists only where depth is at least 3 and below 6"):
        check_assignment(spec, sound | {"depth": 6}, field="x")
    with pytest.raises(InvalidFieldError, match=r"rate.* is missing"):
        check_assignment(spec, sound | {"skip": 0.6}, field="x")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("name: [a\nb: 3\n", "line 2, column 2"),
        ("name: a\n\tb: 3\n", "line 2, column 1"),
        ("a: b: c\n", "line 1, column 5"),
        ("a: *nowhere\n", "line 1, column 4"),
        ("a: 'never closed\n", "line 2, column 1"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1"),
        ("a: &x [*x]\n", "line 1, column 4"),
    ],
)
def test_syntax_errors_say_where(faults, text, where):
    ((place, found),) = faults(text).items()
    assert place.endswith(f"study.yaml, {where}")
    assert "is not valid YAML" in found.message


@pytest.mark.parametrize("text", ["\0", "a: \x07"])
def test_characters_that_yaml_forbids(faults, text):
    ((place, found),) = faults(text).items()
    assert place.endswith("study.yaml, line 1")
    assert "has the control character" in found.message


@pytest.mark.parametrize("text", ["", "# nothing\n", "- 1\n", "just words\n", "3\n"])
def test_no_mapping(faults, text):
    assert "not a mapping" in faults(text)[""].message


def test_laughs_end(faults):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 9)]
    found = faults("\n".join(lines))
    assert "aliases repeat" in next(iter(found.values())).message


def test_a_missing_file(tmp_path):
    with pytest.raises(InvalidFieldError) as raised:
        load_study_file(tmp_path / "none.yaml")
    violation = raised.value.violations[0]
    assert violation.field.endswith("none.yaml")
    assert "No such file" in violation.message


def test_a_python_script_is_no_study_file(tmp_path):
    (tmp_path / "hab.py").write_text("def train(t):\n    t.report(a=1)\n")
    with pytest.raises(InvalidFieldError) as raised:
        load_study_file(tmp_path / "hab.py")
    (found,) = raised.value.violations
    assert found.message == "is a Python script, not a study file"
    assert "`trial: {callable: hab:train}`" in found.remedy


def test_a_folder_and_a_binary(tmp_path):
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "b.yaml"):
        with pytest.raises(InvalidFieldError):
            load_study_file(path)


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
    found = {violation.field: violation for violation in _violations(data)}
    assert {"max_trials", "space.momentum.when.optimiser", "trial.working_dir"} <= set(found)
    assert "`trials`" in found["max_trials"].remedy
    assert "trials" in {violation.field for violation in _violations({})}
    assert "[1]" in {violation.field for violation in _violations({1: 2})}
    condition = Condition(parameter="nobody", values=("sgd",))
    data["space"]["momentum"] = FloatDomain(low=0.0, high=1.0, conditions=(condition,))
    assert "space.momentum.when.nobody" in {violation.field for violation in _violations(data)}


def _violations(data):
    with pytest.raises(InvalidFieldError) as raised:
        parse_spec(data)
    return raised.value.violations
