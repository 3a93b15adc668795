"""The faults of `make faults` still apply to the code: each changes one place, and the result parses."""

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAULTS: list[dict[str, Any]] = tomllib.loads((ROOT / "tests/faults/faults.toml").read_text())["fault"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["name"])
def test_a_fault_changes_one_place(fault: dict[str, Any]) -> None:
    text = (ROOT / fault["file"]).read_text()
    assert text.count(fault["old"]) == 1
    ast.parse(text.replace(fault["old"], fault["new"]))
