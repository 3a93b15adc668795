"""CSV cells that a spreadsheet would run as formulas are exported as text; numbers and JSON stay unchanged."""

import csv
import io
import json

import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService
from scripted_study import race

from headrace.cli import export
from headrace.spec import CategoricalDomain, params_to_proto, parse_spec

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


def test_json_is_exact(fake: FakeStudyService, invoke: Invoke) -> None:
    script = fake.add(race())
    trial = script.final.trials[2]
    trial.parameters.CopyFrom(params_to_proto({"optimizer": "=1+1", "lr": -0.5}))
    row = json.loads(invoke("export", "digits", "--format", "json").out)[2]
    assert (row["param.optimizer"], row["param.lr"], row["param.width"]) == ("=1+1", -0.5, None)
    cells = list(csv.DictReader(io.StringIO(invoke("export", "digits").out)))[2]
    assert (cells["param.optimizer"], cells["param.lr"], cells["param.width"]) == ("'=1+1", "-0.5", "")


def test_a_value_that_looks_like_a_formula_is_allowed() -> None:
    domain = {"type": "categorical", "values": ["=1+1", "-0.5", "plain"]}
    spec = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": domain},
        "trials": 1,
        "steps": 1,
    }
    found = parse_spec(spec).space["x"]
    assert isinstance(found, CategoricalDomain)
    assert found.values == ("=1+1", "-0.5", "plain")
