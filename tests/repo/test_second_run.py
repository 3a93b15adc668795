"""Failed tests run once more (`.ci/pytest.sh`), tests that pass only then are listed, and nothing passes unnoticed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci/pytest.sh"
AT_FIRST_BAD = """
import pathlib

def test_at_first_bad():
    flag = pathlib.Path("flag")
    there = flag.exists()
    flag.touch()
    assert there

def test_good():
    pass
"""
ALWAYS_BAD = "def test_bad():\n    assert False\n"


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("later", "arguments", "status"),
    [
        ("", (), 0),
        (ALWAYS_BAD, (), 1),
        (ALWAYS_BAD, ("-x",), 1),  # it stops at the first one, and the last one has not run
        (ALWAYS_BAD, ("--maxfail=1",), 1),
        ("import nowhere\n", (), 2),
    ],
    ids=["passes then", "fails again", "-x", "--maxfail", "does not load"],
)
def test_the_status_is_that_of_all_tests(
    tmp_path: Path, later: str, arguments: tuple[str, ...], status: int
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (tmp_path / "test_first.py").write_text(AT_FIRST_BAD)
    (tmp_path / "test_later.py").write_text(later)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        [SCRIPT, "-q", "-n", "0", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == status, ran.stdout + ran.stderr
    listed = tmp_path / "reruns.txt"
    if "run once more" in ran.stdout:
        assert "passed only when run again" in ran.stdout
        (line,) = listed.read_text().splitlines()
        assert line.endswith("  test_first.py::test_at_first_bad")
    else:
        assert not listed.exists()
