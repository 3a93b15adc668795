"""What a trial runs is named by its module: each trial is a process of its own, with another `__main__`."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from spec_samples import SMALL

from headrace import InvalidFieldError
from headrace.spec import parse_spec

PROGRAM = f"""
from headrace import InvalidFieldError
from headrace.spec import parse_spec
def objective(t): pass
for named in (objective, "__main__:objective", lambda t: None):
    try:
        parse_spec({{**{SMALL!r}, "trial": {{"callable": named}}}})
        print("accepted")
    except InvalidFieldError as error:
        (found,) = error.violations
        print(found.field, found.message, "|", found.remedy)
"""


def _said(*command: str) -> list[str]:
    ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True, timeout=60)
    return ran.stdout.splitlines()


def test_a_function_of_a_script_is_named_by_the_scripts_module(tmp_path: Path) -> None:
    (tmp_path / "search.py").write_text(PROGRAM)
    given, written, nameless = _said(str(tmp_path / "search.py"))
    for said in (given, written):
        assert "`search:objective`" in said
        assert f"working_dir: {tmp_path}" in said
        assert "__main__:objective'" not in said.split("|")[1]
        assert 'if __name__ == "__main__":' in said
    assert "process of its own" in written
    assert "`def`" in nameless
    assert "<lambda>" not in nameless


def test_a_script_that_is_no_module_needs_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "my-search.py").write_text(PROGRAM)
    given, written, _ = _said(str(tmp_path / "my-search.py"))
    assert "train.py" in given
    assert "train.py" in written
    assert "my-search:" not in given + written


def test_a_function_of_a_notebook_needs_a_file_of_its_own() -> None:
    given, written, nameless = _said("-c", PROGRAM)
    for said in (given, written, nameless):
        assert "save" in said.lower()
        assert "`train:objective`" in said or said == nameless


def _train(t: object, rate: float) -> None:
    del t, rate


@pytest.mark.parametrize(
    "given", [partial(_train, rate=1.0), lambda: None, type("Made", (), {"__call__": _train})()]
)
def test_what_has_no_name_in_a_module_is_not_given_one(given: object) -> None:
    with pytest.raises(InvalidFieldError) as refused:
        parse_spec({**SMALL, "trial": {"callable": given}})
    (found,) = refused.value.violations
    assert "`def`" in (found.remedy or "")
    assert "<" not in (found.remedy or "")
    assert ":function" not in (found.remedy or "").replace("module:function", "")
