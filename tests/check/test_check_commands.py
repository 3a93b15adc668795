"""`headrace check` on studies whose trials run a command."""

import json
from pathlib import Path

import pytest
from command_line import headrace_command
from forked import launch_segment

from headrace.check import runner
from headrace.commands import Program, python_program

SCRIPT = """
import argparse, os
from headrace import trial

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--seed", type=int, default=1)
given = parser.parse_args()
t = trial.current()
assert os.environ["RATE"] == "quick"
t.state.setdefault("total", given.seed * 1.0)
count = 0
for step in t.steps():
    count += 1
    t.state["total"] += given.lr
    t.report(loss=1 / t.state["total"] LOST)
"""
STUDY = """
name: by-command
objective: {metric: loss, goal: minimize}
trial: {command: COMMAND, env: {RATE: quick}}
space: {lr: {type: float, low: 0.01, high: 0.1}}
enqueue: [{lr: 0.03}]
policy: {kind: asha, eta: 2, rungs: [2, 4]}
trials: 3
"""
BY_PATH = '[python, -u, src/train.py, --lr, "{lr}", "--seed={seed}"]'
BY_MODULE = '[python3, -X, dev, -m, src.train, "--lr={lr}"]'


def project(folder: Path, command: str, lost: str = "") -> Path:
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text(SCRIPT.replace("LOST", lost))
    (folder / "study.yaml").write_text(STUDY.replace("COMMAND", command))
    return folder


@pytest.mark.parametrize("command", [BY_PATH, BY_MODULE])
@pytest.mark.parametrize("lost", ["", "+ count"])
def test_a_python_program_is_checked_with_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, lost: str
) -> None:
    """`check` used to refuse it, because it named no callable."""
    monkeypatch.setattr(runner, "_launch", launch_segment)
    folder = project(tmp_path, command, lost)
    done = headrace_command("check", "study.yaml", "--steps", "3", folder=folder)
    assert done.returncode == (1 if lost else 0), done.stderr
    assert ("FAILED" if lost else "PASSED") in done.stdout
    assert ("1. step: `count` is 1 at step 2" in done.stdout) == bool(lost)
    assert "configuration: lr=0.03" in done.stderr


def test_a_python_program_is_shipped_for_its_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_launch", launch_segment)
    folder = project(tmp_path, BY_MODULE + ", code: ship")
    done = headrace_command("check", "study.yaml", "--steps", "3", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ('[bash, run.sh, "{lr}"]', "`bash run.sh 0.03`: bash is no Python interpreter"),
        (
            '[torchrun, --nproc-per-node=2, src/train.py, "{lr}"]',
            "`torchrun --nproc-per-node=2 src/train.py 0.03`: torchrun is no Python interpreter",
        ),
    ],
)
def test_of_any_other_command_nothing_is_claimed(tmp_path: Path, command: str, why: str) -> None:
    folder = project(tmp_path, command)
    done = headrace_command("check", "study.yaml", folder=folder)
    assert done.returncode == 1
    assert done.stdout.startswith("UNDECIDED  study.yaml: ")
    assert why in done.stdout
    assert "remedy: write the command as `python SCRIPT ...`" in done.stdout
    told = json.loads(headrace_command("check", "study.yaml", "--json", folder=folder).stdout)
    assert (told["passed"], told["verdict"]) == (False, "undecided")
    assert why in told["reason"]


def test_a_function_of_a_command_is_refused(tmp_path: Path) -> None:
    done = headrace_command("check", "study.yaml", "--callable", "train", folder=project(tmp_path, BY_PATH))
    assert done.returncode == 2
    assert "--callable train: study.yaml runs a command" in done.stderr


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["python", "a.py", "--lr", "1"], ("a.py", ("--lr", "1"), "")),
        (["/usr/bin/python3.12", "-uB", "-W", "error", "a.py"], ("a.py", (), "")),
        (["./a.py", "x"], ("a.py", ("x",), "")),
        (["python", "-m", "p", "x"], ("p/__main__.py", ("x",), "p")),
        (["python", "-mp.b"], ("p/b.py", (), "p.b")),
        (["python", "p"], ("p/__main__.py", (), "")),
        (["python", "-c", "print(1)"], "it runs code in an argument, not a script"),
        (["python", "-"], "it runs Python with -, not a script"),
        (["python"], "it names no script"),
        (["python", "gone.py"], "there is no gone.py in "),
        (["python", "-m", "torch.distributed.run", "a.py"], "-m names torch.distributed.run, which is no "),
        (["uv", "run", "a.py"], "uv is no Python interpreter"),
    ],
)
def test_the_program_of_a_command(
    tmp_path: Path, args: list[str], found: str | tuple[str, tuple[str, ...], str]
) -> None:
    (tmp_path / "p").mkdir()
    for name in ("a.py", "p/__main__.py", "p/b.py"):
        (tmp_path / name).touch()
    program = python_program(args, tmp_path)
    if isinstance(found, str):
        assert isinstance(program, str)
        assert program.startswith(found)
    else:
        assert program == Program(tmp_path / found[0], *found[1:])
