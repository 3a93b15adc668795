"""Fingerprints of values: what a change of any kind looks like, within one process."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from headrace.trial.reuse import own
from headrace.trial.reuse.fingerprint import Search, variables

_CHANGES = Path(__file__).parent / "leaking" / "values.txt"


def _cases() -> list[tuple[str, str]]:
    """A value, `VALUE`, and a statement that changes it."""
    parts = [part.strip().split("\n---\n") for part in _CHANGES.read_text().split("### ")[1:]]
    return [(setup, change) for setup, change in parts]


@pytest.mark.parametrize(("setup", "change"), _cases(), ids=lambda text: text.split("\n")[0][:40])
def test_change_is_seen(setup: str, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, source = setup.partition("\n")
    module = ModuleType("values")
    module.__file__ = str(tmp_path / "values.py")
    monkeypatch.setitem(sys.modules, "values", module)
    monkeypatch.chdir(tmp_path)
    own.is_own_file.cache_clear()
    exec(compile(source, module.__file__, "exec"), vars(module))
    before, held = _fingerprint(module)
    assert _fingerprint(module)[0] == before, f"{name}: it differs without a change"
    exec(compile(change, module.__file__, "exec"), vars(module))
    assert _fingerprint(module)[0] != before, f"{name}: it does not differ after the change"
    assert held is not None


def _fingerprint(module: ModuleType) -> tuple[object, object]:
    search = Search()
    nodes = [search.nodes(name, value) for name, value in variables(module)]
    return nodes, search.identities
