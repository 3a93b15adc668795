"""The preflight: what imports, what does not, and a metric that is never reported."""

from pathlib import Path
from typing import Any

import pytest
from scripted_study import SPEC

from headrace.errors import InvalidFieldError, Violation
from headrace.home import is_on_this_machine
from headrace.preflight import preflight, reported_metrics
from headrace.spec import StudySpec, parse_spec


def spec_of(folder: Path, **template: object) -> StudySpec:
    program = template or {"callable": "train:train"}
    return parse_spec({**SPEC, "template": {"working_dir": str(folder), **program}})


def refused(spec: StudySpec, timeout_s: float = 60.0) -> Violation:
    with pytest.raises(InvalidFieldError) as caught:
        preflight(spec, timeout_s=timeout_s)
    (violation,) = caught.value.violations
    assert violation.remedy
    return violation


@pytest.mark.full
def test_a_sound_program_passes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import helper_of_mine\nprint('noise')\ndef train(t):\n    t.report(val_loss=1, lr=2)\n"
    )
    (tmp_path / "helper_of_mine.py").write_text("")
    preflight(spec_of(tmp_path))


def test_a_folder_elsewhere_is_not_looked_at() -> None:
    preflight(spec_of(Path("/no/such/folder")))


def test_a_folder_that_is_nowhere_is_told_where_the_workers_are_here() -> None:
    with pytest.raises(InvalidFieldError) as caught:
        preflight(spec_of(Path("/no/such/folder")), workers_here=True)
    (violation,) = caught.value.violations
    assert (violation.field, violation.value) == ("trial.working_dir", "'/no/such/folder'")
    assert "--no-preflight" in violation.remedy


@pytest.mark.parametrize(
    ("where", "here"),
    [
        ("127.0.0.1:7440", True),
        ("localhost:1,127.0.0.1:2", True),
        ("tls://[::1]:7440", True),
        ("localhost:1,db.internal:2", False),
        ("s1.internal:7440", False),
        ("unix:/run/headrace.sock", False),
    ],
)
def test_which_addresses_are_on_this_machine(where: str, here: bool) -> None:
    assert is_on_this_machine(where) is here


def test_a_fused_study_needs_a_function_of_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "def one(t):\n    t.report(val_loss=1)\ndef many(bundle):\n    bundle.report(val_loss=[1])\n"
    )
    fused = {"fuse": {"most": 4}}
    template = {"working_dir": str(tmp_path), "callable": "train:one"}
    violation = refused(parse_spec({**SPEC, **fused, "template": template}))
    assert (violation.field, violation.message) == (
        "fuse",
        "needs a function of a bundle, and train:one takes a trial",
    )
    preflight(parse_spec({**SPEC, **fused, "template": {**template, "callable": "train:many"}}))
    preflight(parse_spec({**SPEC, "template": template}))


def test_an_ask_tell_study_has_nothing_to_check() -> None:
    preflight(parse_spec({**SPEC, "template": None}))


@pytest.mark.parametrize(
    ("file", "source", "says", "remedy"),
    [
        ("trian.py", "def train(t): ...\n", "module train, ", "Did you mean trian:train?"),
        ("train.py", "import no_such_one\n", "no_such_one", "Install no_such_one"),
        ("train.py", "def training(t): ...\n", "has no function train", "train:training"),
    ],
)
def test_what_is_missing_is_named_with_the_nearest(
    tmp_path: Path, file: str, source: str, says: str, remedy: str
) -> None:
    (tmp_path / file).write_text(source)
    violation = refused(spec_of(tmp_path))
    assert violation.field == "trial.callable"
    assert says in violation.message
    assert remedy in violation.remedy
    assert str(tmp_path) in violation.message or file == "train.py"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("1 / 0\n", "ZeroDivisionError"),
        ("def train(:\n", "SyntaxError"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("import os; os._exit(3)\n", "exit code 3"),
        ("train = 3\n", "no function"),
    ],
)
def test_a_module_that_does_not_import(tmp_path: Path, source: str, says: str) -> None:
    (tmp_path / "train.py").write_text(source)
    assert says in refused(spec_of(tmp_path)).message


def test_an_import_that_takes_forever(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import threading\nthreading.Event().wait()\n")
    violation = refused(spec_of(tmp_path), timeout_s=1.0)
    assert "within 1 s" in violation.message
    assert "--no-preflight" in violation.remedy


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    assert refused(spec_of(tmp_path, callable="train:train", python="/no/python")).field == "trial.python"


def test_a_nested_module_and_a_method(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "work.py").write_text("class Runner:\n    def go(t): t.report(val_loss=1)\n")
    preflight(spec_of(tmp_path, callable="pkg.work:Runner.go"))


def test_a_metric_that_is_never_reported_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def train(t):\n    t.report(loss=1, valloss=2)\n")
    violation = refused(spec_of(tmp_path))
    assert violation.field == "objective.metric"
    assert violation.value == "'val_loss'"
    assert "reports loss, valloss" in violation.message
    assert "Did you mean valloss?" in violation.remedy


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("t.report(a=1); t.report(b=2)", {"a", "b"}),
        ("t.report(3, {'a/x': 1}, b=2)", {"a/x", "b"}),
        ("t.report(step=s, save=True, acc=x)", {"acc"}),
        ("t.report({'a': 1, **more})", None),
        ("t.report(**metrics)", None),
        ("t.report(metrics)", None),
        ("t.report(a=1); t.report(**more)", None),
        ("t.report()", None),
        ("report(a=1)", None),
        ("x = 1", None),
    ],
)
def test_what_a_module_reports(source: str, names: set[str] | None) -> None:
    assert reported_metrics(source) == names


def test_a_command_whose_program_is_not_there(tmp_path: Path) -> None:
    violation = refused(spec_of(tmp_path, command={"args": ["./train.sh", "{lr}"]}))
    assert violation.field == "trial.command"
    (tmp_path / "train.sh").write_text("#!/bin/sh\n")
    preflight(spec_of(tmp_path, command={"args": ["./train.sh", "{lr}"]}))
    preflight(spec_of(tmp_path, command={"args": ["sh", "-c", "true"]}))
    preflight(spec_of(tmp_path, command={"args": ["{optimizer}"]}))


def test_a_script_of_a_command_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    violation = refused(spec_of(tmp_path, command={"args": ["python3", "trian.py", "--lr", "{lr}"]}))
    assert violation.field == "trial.command"
    assert "Did you mean train.py?" in violation.remedy
    preflight(spec_of(tmp_path, command={"args": ["python3", "train.py", "--lr", "{lr}"]}))


SMALL = """
from torch import nn
def make_model(width=64):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))
def train(t):
    t.report(val_loss=1)
"""


@pytest.mark.full
def test_a_surrogate_that_cannot_be_made_is_refused_and_one_that_can_gets_its_key(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SMALL)

    def with_width(width: int) -> StudySpec:
        surrogate = {"model": "train:make_model", "width": width}
        template = {"working_dir": str(tmp_path), "callable": "train:train"}
        return parse_spec({**SPEC, "template": template, "surrogate": surrogate})

    found = preflight(with_width(16))
    assert found.gate is not None
    assert len(found.gate.key) == 64
    violation = refused(with_width(128))
    assert (violation.field, violation.value) == ("surrogate.width", "128")
    assert "above the model's own, 64" in violation.message


@pytest.mark.full
def test_a_pilot_gets_the_scales_that_the_model_can_have(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SMALL)

    def with_pilot(**pilot: Any) -> StudySpec:
        surrogate = {"model": "train:make_model", "scale": "auto", "pilot": {"steps": 1, **pilot}}
        template = {"working_dir": str(tmp_path), "callable": "train:train"}
        return parse_spec({**SPEC, "template": template, "surrogate": surrogate})

    found = preflight(with_pilot())
    assert found.surrogate is not None
    assert found.surrogate.pilot is not None
    assert (found.surrogate.pilot.scales, found.gate) == ((16, 8, 4), None)
    violation = refused(with_pilot(scales=[8, 3]))
    assert (violation.field, violation.value) == ("surrogate.pilot.scales", "[8, 3]")
    assert "cannot be 3: " in violation.message
    assert "scales: [4, 2]" in violation.remedy
