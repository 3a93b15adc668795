"""The programs that the documents show run, as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def programs(document: str) -> list[str]:
    """The Python blocks of a document."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run(*command: str, folder: Path) -> str:
    """Runs a program with this Python, outside of any cluster, and returns what it printed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_training_function_runs_by_hand_and_goes_on_from_its_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(programs("how-to/write-a-trial.md")[0])
    command = ("train.py", "--lr", "0.01", "--steps", "3", "--checkpoints", "saved")
    first = run(*command, folder=tmp_path)
    assert re.findall(r"^ +(\d+) ", first, re.MULTILINE) == ["1", "2", "3"]
    assert "step-00000003" in run(*command, folder=tmp_path)  # it continues from there, at its end


def test_the_training_function_of_the_how_to_resumes_exactly(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(programs("how-to/write-a-trial.md")[0])
    run("-m", "headrace.cli", "check", "train.py", folder=tmp_path)


def test_a_script_that_counts_optimizer_steps_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(programs("how-to/write-a-trial.md")[1])
    said = run("train.py", folder=tmp_path)
    assert re.findall(r"^ +(\d+) ", said, re.MULTILINE) == [str(step) for step in range(100, 901, 100)]


def test_a_script_that_is_no_function_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(programs("how-to/write-a-trial.md")[2])
    run("train.py", folder=tmp_path)


def test_the_program_for_those_who_come_from_optuna_runs_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(programs("how-to/coming-from-optuna.md")[0])
    command = ("train.py", "--steps", "3", "--checkpoints", "saved")
    first = run(*command, folder=tmp_path)
    assert re.findall(r"^ +(\d+) ", first, re.MULTILINE) == ["1", "2", "3"]
    assert "step-00000003" in run(*command, folder=tmp_path)
