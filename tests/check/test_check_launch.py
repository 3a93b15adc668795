"""A process of a check that runs into the time limit ends with all that it has started."""

import os
import time
from pathlib import Path

import pytest

from headrace.check import launch as launching
from headrace.check.launch import OutOfTimeError, launch

PROGRAM = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path(sys.argv[1]).with_suffix(".pid").write_text(str(child.pid))
time.sleep(60)
"""


@pytest.mark.full
def test_what_a_script_has_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec "{launching.sys.executable}" {tmp_path}/program.py "$3"\n')
    script.chmod(0o755)
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setattr(launching.sys, "executable", str(script))
    with pytest.raises(OutOfTimeError):
        launch(tmp_path / "control.json", tmp_path / "log", 1, timeout_s=3)
    child = int((tmp_path / "control.pid").read_text())
    deadline = time.monotonic() + 20
    while _runs(child):
        assert time.monotonic() < deadline, "the child is still running"
        time.sleep(0.05)  # until init has reaped it


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text() and os.getpgid(pid) > 0
    except (FileNotFoundError, ProcessLookupError):
        return False
