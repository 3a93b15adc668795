"""Programs with Hydra, for real: a multirun of Hydra's own, the same one as a study, and the study run again."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from programs import GROUPS, MODULE, RETURNS, write

sys.path.insert(0, str(Path(__file__).parent.parent / "up"))

from ready_home import furnish
from test_up_end_to_end import up

from headrace import Client
from headrace.home import address_in

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

GRID = ["hydra/sweeper=headrace", "hydra.sweeper.sampler=grid", "hydra.sweeper.policy=run_all"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="hr-"))  # short: Unix sockets are created in it
    furnish(folder / "home")
    with up(folder / "home", slots=2):
        yield address_in(folder / "home") or ""
    shutil.rmtree(folder, ignore_errors=True)


class Program:
    """A program in its folder, started as users start it."""

    def __init__(self, folder: Path, address: str, *command: str) -> None:
        self.folder = folder
        self.command = command
        self.env = {**os.environ, "HEADRACE_ADDRESS": address}

    def __call__(self, *overrides: str, code: int = 0) -> str:
        """Runs it, and returns what it printed."""
        return self._run([sys.executable, *self.command, *overrides], code)

    def headrace(self, *arguments: str) -> str:
        return self._run([sys.executable, "-m", "headrace.cli", *arguments], 0)

    def _run(self, command: list[str], code: int) -> str:
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def jobs(self, sweep: str) -> dict[tuple[str, ...], list[str]]:
        """The log of each job of a multirun, without its times, by the job's overrides."""
        found = {}
        for saved in sorted((self.folder / sweep).glob("*/.hydra/overrides.yaml")):
            (log,) = saved.parents[1].glob("*.log")
            lines = [re.sub(r"^\[.*?\]", "", line) for line in log.read_text().splitlines()]
            found[tuple(sorted(yaml.safe_load(saved.read_text())))] = lines
        return found

    def results(self, sweep: str) -> dict[str, Any]:
        return yaml.safe_load((self.folder / sweep / "optimization_results.yaml").read_text())


def trials_of(address: str, study: str) -> list[tuple[Any, ...]]:
    """What a study's trials reported and became, in order."""
    with Client(address) as client:
        found = client.study(study)
        return [
            (
                *(one.number, one.params, one.state, one.reason, one.value),
                [(report.step, report.metrics) for report in found.trial(one.number).reports()],
            )
            for one in found.trials()
        ]


@pytest.mark.parametrize(
    ("files", "command", "metric", "steps", "search"),
    [
        (GROUPS, ["train.py"], "loss", 9, ["lr=0.05,0.1", "model=small,big", "seed=3,4"]),
        (
            RETURNS,
            ["tune.py"],
            "objective",
            1,
            ["model.lr=0.1,0.2", "model.layers=[8],[4,4]", "model.name='a b',c"],
        ),
        (
            MODULE,
            ["-m", "pkg.app", "-cn", "other"],
            "val/loss",
            4,
            ["+optimizer.momentum=0.5,0.9", "depth=range(1,3)"],
        ),
    ],
    ids=["groups", "returns", "module"],
)
def test_a_sweep_is_hydras_own_and_its_study_repeats_it(
    files: dict[str, str],
    command: list[str],
    metric: str,
    steps: int,
    search: list[str],
    tmp_path: Path,
    address: str,
) -> None:
    write(tmp_path, files)
    program = Program(tmp_path, address, *command)
    program("-m", *search, "hydra.sweep.dir=before")
    settings = [f"hydra.sweeper.metric={metric}", f"hydra.sweeper.steps={steps}", "hydra.sweep.dir=after"]
    name = f"sweep-{command[-1].replace('.', '-')}"
    program("-m", *search, *GRID, *settings, f"hydra.sweeper.name={name}")

    before, after = program.jobs("before"), program.jobs("after")
    assert before == after
    assert len(after) >= 4
    assert all(lines for lines in after.values())
    assert (tmp_path / "after/multirun.yaml").exists()
    if files is MODULE:
        assert len(list(tmp_path.glob("after/*/here.txt"))) == len(after), "each in its own folder"

    program.headrace("run", "after/study.yaml", "--name", f"{name}-again")
    swept, again = trials_of(address, name), trials_of(address, f"{name}-again")
    assert swept == again
    assert {one[3] for one in swept} == {"completed"}
    results = program.results("after")
    assert results["best_evaluated_result"] == min(one[4] for one in swept)
    assert set(results["best_evaluated_params"]) == {key.partition("=")[0] for key in search}


def test_trials_are_pruned_and_resume_in_their_folder(tmp_path: Path, address: str) -> None:
    write(tmp_path, GROUPS)
    program = Program(tmp_path, address, "train.py")
    said = program(
        "-m",
        "hydra/sweeper=headrace",
        *("hydra.sweeper.metric=loss", "hydra.sweeper.steps=9", "hydra.sweeper.trials=9"),
        *("hydra.sweeper.policy=asha", "hydra.sweeper.name=pruned", "hydra.sweep.dir=out"),
        "lr=tag(log,interval(1e-3,1e-1))",
    )
    assert "Study pruned completed" in said
    trials = trials_of(address, "pruned")
    best = min(trials, key=lambda one: one[4])
    assert best[3] == "completed"
    assert sum(one[3] != "completed" for one in trials) >= 3, trials
    steps = [
        int(line.split()[-2].rstrip(":"))
        for line in (tmp_path / f"out/{best[0]}/train.log").read_text().splitlines()
    ]
    assert steps == list(range(1, 10)), "each step once, although its processes were several"


def test_an_exception_in_the_task_is_the_trials_reason(tmp_path: Path, address: str) -> None:
    write(tmp_path, RETURNS)
    program = Program(tmp_path, address, "tune.py")
    settings = ["hydra.sweeper.steps=1", "hydra.sweeper.name=fails", "+hydra.sweeper.study.retries=0"]
    program("-m", *GRID, *settings, "model.lr=0.5,2.0")
    with Client(address) as client:
        failed = [one for one in client.study("fails").trials() if one.reason != "completed"]
    assert [one.params for one in failed] == [{"model.lr": 2.0}]
    assert "ValueError: diverged at lr 2.0" in failed[0].detail


def test_a_condition_leaves_the_override_out(tmp_path: Path, address: str) -> None:
    write(tmp_path, RETURNS)
    program = Program(tmp_path, address, "tune.py")
    depends = (
        "+hydra.sweeper.study.space={model.lr:{type:categorical,values:[0.1,0.3],when:{model.name:[a]}}}"
    )
    settings = ["hydra.sweeper.steps=1", "hydra.sweeper.name=depends", "hydra.sweep.dir=out"]
    program("-m", *GRID, *settings, depends, "model.name=a,b")
    assert sorted(program.jobs("out")) == [
        ("model.lr=0.1", "model.name=a"),
        ("model.lr=0.3", "model.name=a"),
        ("model.name=b",),
    ]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["hydra.sweeper.steps=1", "modle.lr=1,2"], "Could not override 'modle.lr'"),
        (["hydra.sweeper.steps=1", "model.layers=[1],x"], "model.layers"),
        (["hydra.sweeper.steps=1", "model.lr=interval(2,1)"], "space.model.lr.low: is above high"),
        (["hydra.sweeper.steps=1", "model.lr=0.1"], "have nothing to search over"),
        (
            ["hydra.sweeper.steps=1", "+hydra.sweeper.study.space={typo:{type:int,low:1,high:2}}"],
            "Could not override 'typo'",
        ),
        (["model.lr=1,2"], "hydra.sweeper.steps=27"),
        (["hydra.sweeper.steps=1", "hydra.sweeper.policy=hyperbnd", "model.lr=1,2"], "hyperband"),
        (["hydra.sweeper.steps=1", "+hydra.sweeper.study.retrys=1", "model.lr=1,2"], "retries"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    overrides: list[str], words: str, tmp_path: Path, address: str
) -> None:
    write(tmp_path, RETURNS)
    said = Program(tmp_path, address, "tune.py")("-m", *GRID, "hydra.sweep.dir=out", *overrides, code=1)
    assert words in said
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()


def test_without_a_service_it_says_how_to_start_one(tmp_path: Path) -> None:
    write(tmp_path, RETURNS)
    program = Program(tmp_path, "127.0.0.1:1", "tune.py")
    said = program("-m", *GRID, "hydra.sweeper.steps=1", "hydra.sweep.dir=out", "model.lr=1,2", code=1)
    assert "headrace up" in said
    assert not (tmp_path / "out").exists()


def test_a_taken_name_is_said_before_anything_is_written(tmp_path: Path, address: str) -> None:
    write(tmp_path, RETURNS)
    program = Program(tmp_path, address, "tune.py")
    again = ["-m", *GRID, "hydra.sweeper.steps=1", "hydra.sweeper.name=taken", "model.lr=0.1,0.2"]
    program(*again, "hydra.sweep.dir=first")
    assert "a study taken exists already" in program(*again, "hydra.sweep.dir=second", code=1)
    assert not (tmp_path / "second").exists()


def test_a_result_of_the_wrong_kind_fails_the_trial_with_the_reason(tmp_path: Path, address: str) -> None:
    write(tmp_path, {"tune.py": RETURNS["tune.py"].replace("return loss", "return [loss]")})
    program = Program(tmp_path, address, "tune.py")
    settings = ["hydra.sweeper.steps=1", "hydra.sweeper.name=wrong", "+hydra.sweeper.study.retries=0"]
    program("-m", *GRID, *settings, "model.lr=0.5,0.7", code=1)
    with Client(address) as client:
        assert "objective' is [4.05] of type list" in client.study("wrong").trials()[0].detail


def test_each_job_of_hydras_own_multirun_has_a_trial_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, GROUPS)
    program = Program(tmp_path, "127.0.0.1:1", "train.py")
    said = program("-m", "lr=0.1,0.2", "epochs=3", "hydra.sweep.dir=out", "hydra.sweep.subdir=.")
    assert said.count("step 3: ") == 2, said
