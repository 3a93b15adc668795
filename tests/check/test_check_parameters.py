"""`headrace check --param` and the configuration that is checked."""

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import headrace_command

from headrace.check import CheckError, CheckReport
from headrace.cli.failure import USAGE
from headrace.spec import load_study_file
from headrace.spec.configuration import configuration_of

Check = Callable[..., CheckReport]

SCRIPT = """
from headrace import trial

def train(t):
    t.state.setdefault("value", 1.0)
    for step in t.steps():
        t.state["value"] *= 1 - t.params.get("lr", 0.5) * t.params.get("decay", 1.0)
        t.report(loss=t.state["value"])

if __name__ == "__main__":
    trial.main(train, defaults={"lr": 0.1}, steps=3)
"""
STUDY = """
name: plain
objective: {metric: loss, goal: minimize}
trial: {callable: plain:train}
space:
  lr: {type: float, low: 0.1, high: 0.5}
  decay: {type: float, low: 0.1, high: 1.0}
trials: 3
steps: 3
"""


@pytest.mark.parametrize(("name", "value"), [("Lr", 0.9), ("foo", 1)])
def test_a_parameter_that_the_script_does_not_have_is_refused(check: Check, name: str, value: float) -> None:
    with pytest.raises(CheckError) as found:
        check(source=SCRIPT, params={name: value})
    assert str(found.value) == (f"--param {name}={value} is no parameter of script.py, whose defaults are lr")
    assert found.value.remedy == (
        f"Correct the name. If another file reads {name}, add it to `defaults` in script.py."
    )


def test_a_parameter_that_is_read_with_a_fallback_is_none_of_the_defaults_and_tried(check: Check) -> None:
    report = check(source=SCRIPT, params={"decay": 0.5})
    assert (report.passed, report.params) == (True, {"lr": 0.1, "decay": 0.5})


def test_a_script_without_defaults_says_nothing_of_its_parameters(check: Check) -> None:
    report = check(('defaults={"lr": 0.1}, ', ""), source=SCRIPT, params={"lr": 0.2, "width": 3})
    assert report.passed


def test_a_studys_values_need_not_be_in_the_scripts_defaults(check: Check) -> None:
    report = check(source=SCRIPT, params={"lr": 0.2, "width": 3}, max_steps=3)
    assert report.passed


def test_a_parameter_outside_a_studys_space_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("raise SystemExit('it ran')")
    (tmp_path / "study.yaml").write_text(STUDY)
    done = headrace_command("check", "study.yaml", "--param", "Lr=0.9", folder=tmp_path)
    assert done.returncode == USAGE
    assert "--param Lr=0.9: the space of study.yaml has no parameter Lr" in done.stderr
    assert "It has lr, decay." in done.stderr


def test_an_empty_text_is_written_with_quotes(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("raise SystemExit('it ran')")
    (tmp_path / "study.yaml").write_text(STUDY)
    done = headrace_command("check", "study.yaml", "--param", "lr=", folder=tmp_path)
    assert done.returncode == USAGE
    assert "an empty text is --param NAME='\"\"'" in done.stderr
    done = headrace_command("check", "study.yaml", "--param", 'lr=""', folder=tmp_path)
    assert done.stderr.startswith("configuration: lr= decay=")


CONDITIONAL = """
name: conditional
objective: {metric: loss, goal: minimize}
space:
  kind: {type: categorical, values: [linear, boost]}
  alpha: {type: float, low: 0.1, high: 1.0, when: {kind: [linear]}}
  depth: {type: int, low: 1, high: 4, when: {kind: [boost]}}
trials: 4
steps: 3
baseline: {kind: linear, alpha: 0.5}
trial: {callable: plain:train}
"""


def test_conditional_parameters_follow_the_values_that_are_given(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(CONDITIONAL)
    spec = load_study_file(tmp_path / "study.yaml").spec
    assert configuration_of(spec, {})[0] == {"kind": "linear", "alpha": 0.5}
    assert configuration_of(spec, {"alpha": 0.7})[0] == {"kind": "linear", "alpha": 0.7}
    boost, origin = configuration_of(spec, {"kind": "boost"})
    assert list(boost) == ["kind", "depth"]
    assert origin == "the study's baseline, with the given values; the rest is drawn from the space"
    assert configuration_of(spec, {"kind": "boost", "depth": 3})[0] == {"kind": "boost", "depth": 3}


def test_a_parameter_that_does_not_exist_with_the_others_is_refused_before_anything_runs(
    tmp_path: Path,
) -> None:
    (tmp_path / "plain.py").write_text("raise SystemExit('it ran')")
    (tmp_path / "study.yaml").write_text(CONDITIONAL)
    done = headrace_command("check", "study.yaml", "--param", "depth=3", folder=tmp_path)
    assert done.returncode == USAGE
    assert "--param depth=3: depth does not exist with kind=linear" in done.stderr
    assert "Leave it out, or also give values with which it exists." in done.stderr
    done = headrace_command("check", "study.yaml", "--param", "kind=bost", folder=tmp_path)
    assert done.returncode == USAGE
    assert "--param kind=bost: which parameters exist depends on kind" in done.stderr
    assert "linear" in done.stderr
    assert "boost" in done.stderr
