"""The study file that a sweep writes, and a trial started from it by hand, without a service."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from programs import GROUPS, write

from headrace.errors import InvalidFieldError
from headrace.hydra.space import Sweep
from headrace.hydra.study import program, study_of
from headrace.spec import StudySpec, load_study_file

# Runs a sweep as far as the start of `headrace run`, in whose place it prints the file's name.
SWEEP = """
import runpy, sys
from headrace.hydra import sweep

sweep._require_free = sweep._write_results = lambda *_: None
sweep._run = lambda file: print("would run", file)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

IN_CONFIGURATION = """
# @package _global_
defaults: [{override /hydra/sweeper: headrace}]
hydra:
  mode: MULTIRUN
  sweep: {dir: out}
  sweeper: {metric: loss, steps: 1, params: {lr: "interval(0.1,1)", model: "small,big", epochs: 1}}
"""


def sweep(folder: Path, *arguments: str) -> tuple[StudySpec, str]:
    """The study of a sweep of a program, and what the sweep printed."""
    started = subprocess.run(
        [sys.executable, "-c", SWEEP, *arguments], cwd=folder, capture_output=True, text=True
    )
    assert f"would run {folder}/out/study.yaml" in started.stdout, started.stderr
    return load_study_file(folder / "out/study.yaml").spec, started.stdout


def arguments_of(spec: StudySpec, params: dict[str, Any], trial: int) -> list[str]:
    assert spec.template is not None
    assert spec.template.command is not None
    return spec.template.command.fill(params, trial=trial, seed=1)


def test_a_trial_runs_by_its_command_line_in_a_folder_of_the_multirun(tmp_path: Path) -> None:
    write(tmp_path, GROUPS)
    settings = ["hydra.sweeper.metric=loss", "hydra.sweeper.steps=2", "hydra.sweep.dir=out"]
    subdir = "hydra.sweep.subdir='job-${hydra.job.num}'"
    search = ["lr=interval(0.01,0.1)", "model=glob(*)", "epochs=2"]
    spec, _ = sweep(tmp_path, "train.py", "-m", "hydra/sweeper=headrace", *settings, subdir, *search)
    assert spec.space["model"].values == ("big", "small")
    args = arguments_of(spec, {"lr": 0.05, "model": "big"}, trial=7)
    assert not any("hydra.sweeper." in arg for arg in args)
    trial = subprocess.run(args, cwd=tmp_path, capture_output=True, text=True)
    assert trial.returncode == 0, trial.stderr
    folder = tmp_path / "out/job-7"
    assert yaml.safe_load((folder / ".hydra/overrides.yaml").read_text()) == [
        "lr=0.05",
        "model=big",
        "epochs=2",
    ]
    assert len((folder / "train.log").read_text().splitlines()) == 2


def test_a_sweep_may_be_in_the_configuration_alone(tmp_path: Path) -> None:
    write(tmp_path, GROUPS)
    write(tmp_path, {"conf/sweep/lr.yaml": IN_CONFIGURATION})
    spec, _ = sweep(tmp_path, "train.py", "+sweep=lr", "lr=0.3", "seed=1,2", "model.width=int(interval(2,8))")
    assert spec.objective.metric == "loss"
    assert spec.space.keys() == {"model", "model.width", "cfg.seed"}
    args = arguments_of(spec, {"model": "big", "model.width": 3, "cfg.seed": 2}, trial=0)
    trial = subprocess.run(args, cwd=tmp_path, capture_output=True, text=True)
    assert trial.returncode == 0, trial.stderr
    overrides = yaml.safe_load((tmp_path / "out/0/.hydra/overrides.yaml").read_text())
    assert overrides == ["lr=0.3", "model=big", "epochs=1", "+sweep=lr", "seed=2", "model.width=3"]


def study(settings: dict[str, Any], folder: str = "/f") -> dict[str, Any]:
    space = {"x": {"type": "float", "low": 0.0, "high": 1.0}}
    made = study_of(
        Sweep(space=space, keys={"x": "x"}, args=("x={x}",)),
        settings,
        program=["python", "a{b}.py"],
        folder=Path(folder),
        hydra_overrides=["hydra.verbose=true", "+hydra.sweeper.study.retries=3", "hydra.mode=MULTIRUN"],
    )
    return dict(made.file)


def test_settings_of_the_study_file_are_kept() -> None:
    depends = {"type": "int", "low": 1, "high": 2, "when": {"x": {">": 0.5}}}
    settings = {"trial": {"env": {"A": "b"}, "grace_s": 5}, "space": {"y": depends}, "retries": 3}
    found = study(settings, "/it's {here}")
    assert found["retries"] == 3
    assert list(found["space"]) == ["x", "y"]
    assert found["trial"]["grace_s"] == 5
    assert found["trial"]["env"] == {"HYDRA_FULL_ERROR": "1", "A": "b"}
    assert found["trial"]["command"][:6] == [
        *("python", "a{{b}}.py", "x={x}", "y={y}", "hydra.verbose=true", "hydra.mode=RUN")
    ]
    assert r"hydra.sweep.dir='/it\'s {{here}}'" in found["trial"]["command"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"space": {"x": {}}}, "space.x: is also an override"),
        ({"trial": {"command": ["p"]}}, "trial.command: is the program that was started"),
    ],
)
def test_what_the_sweep_says_itself_is_no_setting(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidFieldError, match=words):
        study(settings)


def test_the_program_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(sys, "argv", ["train.py", "-m", "-cn", "other", "--config-dir=conf", "lr=1,2"])
    assert program("python") == ["python", "train.py", "--config-name=other", "--config-dir=conf"]
