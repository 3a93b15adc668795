"""The study file that a sweep writes, and a trial started from it by hand, without a service."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from programs import GROUPS, write

from headrace.errors import InvalidFieldError
from headrace.hydra.space import Sweep
from headrace.hydra.study import program, study_of
from headrace.spec import load_study_file

# Runs a sweep as far as the start of `headrace run`, in whose place it prints the file's name.
SWEEP = """
import runpy, sys
from headrace.hydra import sweep

sweep._run = lambda file: print("would run", file)
sweep._write_results = lambda *_: None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_trial_runs_by_its_command_line_in_a_folder_of_the_multirun(tmp_path: Path) -> None:
    write(tmp_path, GROUPS)
    settings = ["hydra.sweeper.metric=loss", "hydra.sweeper.steps=2", "hydra.sweep.dir=out"]
    search = ["lr=interval(0.01,0.1)", "model=glob(*)", "epochs=2", "hydra.verbose=false"]
    started = subprocess.run(
        [sys.executable, "-c", SWEEP, "train.py", "-m", "hydra/sweeper=headrace", *settings, *search],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert f"would run {tmp_path}/out/study.yaml" in started.stdout, started.stderr
    study = load_study_file(tmp_path / "out/study.yaml")
    assert study.name.startswith("train-2")
    assert study.spec.space["model"].values == ("big", "small")
    template = study.spec.template
    assert template is not None
    assert template.command is not None
    args = template.command.fill({"lr": 0.05, "model": "big"}, trial=7, seed=1)
    assert "hydra.verbose=false" in args
    assert not any("sweeper" in arg for arg in args)
    trial = subprocess.run(args, cwd=template.working_dir, capture_output=True, text=True)
    assert trial.returncode == 0, trial.stderr
    folder = tmp_path / "out/7"
    assert yaml.safe_load((folder / ".hydra/overrides.yaml").read_text()) == [
        "epochs=2",
        "lr=0.05",
        "model=big",
    ]
    assert len((folder / "train.log").read_text().splitlines()) == 2


def test_settings_of_the_study_file_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(space={"x": {"type": "float", "low": 0.0, "high": 1.0}}, keys={"x": "x"})
    settings = {
        "trial": {"env": {"A": "b"}, "grace_s": 5},
        "space": {"y": {"type": "int", "low": 1, "high": 2, "when": {"x": {">": 0.5}}}},
        "retries": 3,
    }
    study = study_of(
        sweep, settings, program=["python", "a{b}.py"], folder=tmp_path / "it's {here}", hydra_overrides=[]
    )
    assert study["retries"] == 3
    assert list(study["space"]) == ["x", "y"]
    assert study["trial"]["grace_s"] == 5
    assert study["trial"]["env"] == {"HYDRA_FULL_ERROR": "1", "A": "b"}
    assert study["trial"]["command"][:4] == ["python", "a{{b}}.py", "x={x}", "y={y}"]
    assert f"hydra.sweep.dir='{tmp_path}/it\\'s {{{{here}}}}'" in study["trial"]["command"]


def test_a_parameter_cannot_come_from_two_places() -> None:
    sweep = Sweep(space={"x": {"type": "float", "low": 0.0, "high": 1.0}}, keys={"x": "x"})
    with pytest.raises(InvalidFieldError, match=r"space\.x: is also an override"):
        study_of(sweep, {"space": {"x": {}}}, program=["p"], folder=Path("/f"), hydra_overrides=[])


def test_the_program_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(sys, "argv", ["train.py", "-m", "-cn", "other", "--config-dir=conf", "lr=1,2"])
    assert program("python") == ["python", "train.py", "--config-name=other", "--config-dir=conf"]
