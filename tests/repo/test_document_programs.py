"""The programs in the documents run exactly as shown; their studies run with one trial.

Programs that users run by hand run here in forked processes. The walk through the README (`test_first_steps`)
starts real ones.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import headrace_command
from forked import Program, launch_segment
from ready_home import furnish

from headrace.check import render, run_check
from headrace.check.snapshot import End
from headrace.cli.local import local_service
from headrace.cli.output import Output

ROOT = Path(__file__).resolve().parents[2]
OPTUNA = "how-to/coming-from-optuna.md"
WRITE_A_TRIAL = "how-to/write-a-trial.md"


def programs(document: str, language: str = "python") -> list[str]:
    """The Python blocks of a document, or those in another language."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run(*command: str, folder: Path, address: str | None = None) -> str:
    """Runs a program with this Python, outside of any cluster unless an address is given; returns its output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=env if address is None else {**env, "HEADRACE_ADDRESS": address},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def by_hand(*command: str, folder: Path) -> str:
    """Runs a program in a forked process; returns its output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    code, said = Program(command, folder=folder, env=env, said=folder / "said.log").wait()
    assert code == 0, said
    return said


def test_the_training_function_runs_by_hand_and_continues_from_its_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(programs(WRITE_A_TRIAL)[0])
    command = ("train.py", "--lr", "0.01", "--steps", "3", "--checkpoints", "saved")
    first = by_hand(*command, folder=tmp_path)
    assert re.findall(r"^ +(\d+) ", first, re.MULTILINE) == ["1", "2", "3"]
    assert "step-00000003" in by_hand(*command, folder=tmp_path)  # it continues from there, at its end


@pytest.mark.full
def test_the_training_function_of_the_how_to_resumes_exactly(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(programs(WRITE_A_TRIAL)[0])
    assert run_check(tmp_path / "train.py", launch=launch_segment).passed


def test_a_script_that_counts_optimizer_steps_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(programs(WRITE_A_TRIAL)[1])
    said = by_hand("train.py", folder=tmp_path)
    assert re.findall(r"^ +(\d+) ", said, re.MULTILINE) == [str(step) for step in range(100, 901, 100)]


def test_a_script_that_is_no_function_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(programs(WRITE_A_TRIAL)[5])
    said = by_hand("train.py", folder=tmp_path)
    assert re.findall(r"^ +(\d+) ", said, re.MULTILINE) == [str(step) for step in range(1, 10)]


def test_the_script_that_stops_early_does_so_alike_with_pauses(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(programs(WRITE_A_TRIAL)[3])
    report = run_check(tmp_path / "train.py", limit_s=6000, launch=launch_segment)
    assert report.passed, render(report)
    assert report.end is End.RETURNED
    assert report.last_step < report.budget


def test_the_program_for_those_who_come_from_optuna_runs_and_continues(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(programs(OPTUNA)[0])
    command = ("train.py", "--steps", "3", "--checkpoints", "saved")
    first = by_hand(*command, folder=tmp_path)
    assert re.findall(r"^ +(\d+) ", first, re.MULTILINE) == ["1", "2", "3"]
    assert "step-00000003" in by_hand(*command, folder=tmp_path)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A service with one slot."""
    folder = tempfile.mkdtemp(prefix="hr-")  # a short path: Unix sockets are created in it
    python_folder = str(Path(sys.executable).parent)  # for trials whose command is `python`
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", python_folder, prepend=os.pathsep)
        furnish(Path(folder))
        with local_service(Path(folder), slots=1, notes=Output()) as found:
            yield found
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.full
@pytest.mark.parametrize(
    ("document", "study", "program"),
    [
        (OPTUNA, 0, 0),
        (WRITE_A_TRIAL, 0, 1),
        (WRITE_A_TRIAL, 0, 2),
        (WRITE_A_TRIAL, 1, 0),
        (WRITE_A_TRIAL, 2, 5),
    ],
    ids=["from optuna", "by optimizer steps", "by own count", "my study", "by command"],
)
def test_a_study_file_runs_with_the_program_beside_it(
    address: str, tmp_path: Path, document: str, study: int, program: int
) -> None:
    file = re.sub(r"^trials: \d+$", "trials: 1", programs(document, "yaml")[study], flags=re.MULTILINE)
    file = file.replace(
        "train:train}", "train:train, prestart: false}"
    )  # no second trial starts, which would import torch
    (tmp_path / "study.yaml").write_text(file)
    (tmp_path / "train.py").write_text(programs(document)[program])
    name = f"study-{study}-{program}"
    env = {**os.environ, "HEADRACE_ADDRESS": address}
    done = headrace_command("run", "study.yaml", "--name", name, "--no-preflight", folder=tmp_path, env=env)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert f"Study {name} completed" in said
    assert ", 0 failed" in said


@pytest.mark.full
def test_the_loop_for_those_who_come_from_optuna_finds_the_optimum(address: str, tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(programs(OPTUNA)[1])
    found = re.search(r"{'x': (-?[\d.]+)}", run("loop.py", folder=tmp_path, address=address))
    assert found is not None
    assert abs(float(found[1]) - 2) < 2


@pytest.mark.full
def test_the_study_in_python_for_those_who_come_from_ray_names_its_best(address: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(programs(WRITE_A_TRIAL)[0])
    tune = programs("how-to/coming-from-ray-tune.md")[0]
    assert '"trials": 9' in tune
    tune = tune.replace('"trials": 9', '"trials": 1').replace(
        'train:train"', 'train:train", "prestart": False'
    )
    (tmp_path / "tune.py").write_text(tune)
    assert re.search(r"{'lr': [\d.e-]+} [\d.]+", run("tune.py", folder=tmp_path, address=address))
