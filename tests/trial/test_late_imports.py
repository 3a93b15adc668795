"""Libraries that a script imports late: within its function, or after `trial.current()`."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from headrace.trial.imported import once_imported

IN_FUNCTION = """
from headrace import trial

def train(t):
    import LIBRARY
    for step in t.steps():
        t.state["seen"] = step
        t.report(loss=float(LIBRARY.DRAW))

trial.main(train, defaults={"lr": 0.1}, steps=3)
"""
AFTER_CURRENT = """
from headrace import trial

t = trial.current(defaults={"lr": 0.1}, steps=3)

import LIBRARY

for step in t.steps():
    t.state["seen"] = step
    t.report(loss=float(LIBRARY.DRAW))
"""
DRAWS = [
    ("numpy", "random.rand()"),
    pytest.param("torch", "rand(1)", marks=pytest.mark.full),
]


@pytest.mark.cases(1)
@pytest.mark.parametrize(("library", "draw"), DRAWS)
@pytest.mark.parametrize("script", [IN_FUNCTION, AFTER_CURRENT])
def test_its_generators_are_seeded(tmp_path: Path, script: str, library: str, draw: str) -> None:
    (tmp_path / "late.py").write_text(script.replace("LIBRARY", library).replace("DRAW", draw))
    (tmp_path / "early.py").write_text(f"import {library}\n" + (tmp_path / "late.py").read_text())
    first, second, early = (printed(tmp_path / name) for name in ("late.py", "late.py", "early.py"))
    assert "loss" in first
    assert first == second == early


@pytest.mark.cases(1)
@pytest.mark.parametrize(("library", "draw"), DRAWS)
@pytest.mark.parametrize("script", [IN_FUNCTION, AFTER_CURRENT])
def test_its_generators_are_put_back_after_a_pause(
    tmp_path: Path, script: str, library: str, draw: str
) -> None:
    (tmp_path / "train.py").write_text(script.replace("LIBRARY", library).replace("DRAW", draw))
    said = run("-m", "headrace.cli", "check", str(tmp_path / "train.py"))
    assert "PASSED" in said


def test_what_waits_for_a_module_is_done_at_the_end_of_its_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "comes_late.py").write_text("value = 1\n")
    (tmp_path / "fails_first.py").write_text(
        "import os\nif 'FAILS' in os.environ: raise OSError\nvalue = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    done: list[str] = []

    def action(name: str) -> None:
        def note(module: ModuleType) -> None:
            done.append(f"{name} {module.value}")

        once_imported(name.split()[0], note, purpose=name.split()[1])

    action("comes_late one")
    action("comes_late two")
    action("comes_late one")  # in place of the first one, and now after the second one
    action("fails_first one")
    import comes_late  # type: ignore[import-not-found]  # it is written above

    assert done == ["comes_late two 1", "comes_late one 1"]
    assert "exec_module" not in vars(comes_late.__spec__.loader)
    action("comes_late three")
    assert done[2:] == ["comes_late three 1"]
    monkeypatch.setenv("FAILS", "1")
    with pytest.raises(OSError):
        import fails_first  # type: ignore[import-not-found]  # it is written above
    monkeypatch.delenv("FAILS")
    import fails_first

    assert fails_first.value == 1
    assert done[3:] == ["fails_first one 1"]
    for name in ("comes_late", "fails_first"):
        del sys.modules[name]


def printed(script: Path) -> str:
    """The output of a script run by hand."""
    return run(str(script))


def run(*words: str) -> str:
    """The output of a new interpreter."""
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
