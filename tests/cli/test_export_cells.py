"""CSV cells that a spreadsheet would run as formulas come out as text; numbers and JSON stay what they are."""

import csv
import io
import json

import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService
from scripted_study import Script

from headrace.cli import export
from headrace.spec import parse_spec

FORMULAS = ['=cmd|" /C calc"!A0', "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1+1", "- x"]
PLAIN = ["-0.5", "+3", "-1e-4", "-inf", "a=b", "", "x-1", "'=1"]


def table(*texts: object) -> list[str]:
    written = export._csv([{"trial": index, "param.x": text} for index, text in enumerate(texts)])
    return [row["param.x"] for row in csv.DictReader(io.StringIO(written, newline=""))]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_text(text: str) -> None:
    assert table(text) == ["'" + text]


def test_what_is_no_formula_stays() -> None:
    assert table(*PLAIN) == PLAIN
    assert table(-0.5, -3, True, None) == ["-0.5", "-3", "true", ""]


def test_json_is_exact(fake: FakeStudyService, script: Script, invoke: Invoke, monkeypatch) -> None:
    spec = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "categorical", "values": ["=1+1", "-0.5", "plain"]}},
        "policy": {"kind": "run_all"},
        "max_trials": 1,
        "max_steps": 1,
    }
    assert parse_spec(spec)  # such values are allowed
    monkeypatch.setattr(export, "trial_rows", lambda *_: [{"trial": 0, "param.x": "=1+1", "value": -0.5}])
    (row,) = json.loads(invoke("export", "digits", "--format", "json").out)
    assert row == {"trial": 0, "param.x": "=1+1", "value": -0.5}
    assert invoke("export", "digits").out.splitlines()[1] == "0,'=1+1,-0.5"
