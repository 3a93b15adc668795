"""The state of the user's own modules, which a trial changes for the next one of its process."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from leaking_modules import Finder, Leaking, programs
from leaking_run import run

from headrace.trial.reuse.module_state import ModuleState
from headrace.trial.reuse.own import OwnModules


@pytest.mark.cases(16)
@pytest.mark.parametrize("program", programs(Finder.STATE), ids=lambda program: program.name)
def test_change_ends_process(program: Leaking, tmp_path: Path) -> None:
    result = run(program, tmp_path)
    assert len(result.reasons) == 1, result
    assert program.words in result.reasons[0]


class _Clock:
    """A clock that advances by itself."""

    def __init__(self, step_s: float) -> None:
        self.now, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


def test_value_that_takes_too_long_is_named(own_module: ModuleType) -> None:
    own_module.SMALL = [object()]
    own_module.TABLE = [[object()] for _ in range(5_000)]
    state = ModuleState(limit_s=1.0, clock=_Clock(0.05))
    state.take()
    assert "comparing own_module.TABLE after a trial takes more than 1 s" in state.changed()
    quick = ModuleState(limit_s=1.0, clock=_Clock(0.0))
    quick.take()
    assert quick.changed() == ""


def test_no_code_of_the_users_runs(own_module: ModuleType) -> None:
    """Classes that compute their attributes, items and comparisons are read as they are."""
    source = """
class Odd(dict):
    def __getattribute__(self, name): raise RuntimeError
    def __iter__(self): raise RuntimeError
    def keys(self): raise RuntimeError
    def __eq__(self, other): raise RuntimeError
    def __hash__(self): raise RuntimeError
    def __len__(self): raise RuntimeError
    def __repr__(self): raise RuntimeError
    def __bool__(self): raise RuntimeError
    def __reduce_ex__(self, protocol): raise RuntimeError
    __class__ = property(lambda self: 1 / 0)

class Odder(list):
    __iter__ = __len__ = __eq__ = None

ODD, ODDER = Odd(a=[]), Odder([[]])
"""
    exec(compile(source, own_module.__file__, "exec"), vars(own_module))
    state = ModuleState()
    state.take()
    assert state.changed() == ""
    dict.__getitem__(own_module.ODD, "a").append(1)
    assert state.changed().startswith("own_module.ODD['a'] grew from 0 to 1 entry")


def test_text_is_not_shown(own_module: ModuleType) -> None:
    own_module.TOKEN = "secret"
    state = ModuleState()
    state.take()
    own_module.TOKEN = "another secret"
    assert "secret" not in state.changed()


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of the user's own, the only one."""
    (tmp_path / "own_module.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("own_module")
    monkeypatch.setattr(OwnModules, "now", lambda *_, **__: [("own_module", module)])
    yield module
    del sys.modules["own_module"]
