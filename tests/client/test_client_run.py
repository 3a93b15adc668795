"""`client.run`: a local function becomes a study on workers."""

import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import train_for_workers
from fake_study_service import FakeStudyService
from scripted_study import race

from headrace import AsyncClient, Client, Result
from headrace.client.notebook import written
from headrace.errors import InvalidFieldError
from headrace.spec.function import located

HERE = Path(__file__).parent
SPACE = {"lr": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True}}


def test_a_function_runs_on_workers_and_its_study_is_the_result(
    client: Client, fake: FakeStudyService
) -> None:
    result = client.run(
        train_for_workers.train,
        SPACE,
        trials=9,
        steps=9,
        maximize="acc",
        policy="median",
        resources={"gpus": 1},
        trial={"env": {"DEBUG": 1}},
    )
    [request] = fake.requests["CreateStudy"]
    assert request.study_id.startswith("train-")
    template = request.spec.template
    assert (template.callable, template.working_dir) == ("train_for_workers:train", str(HERE))
    assert dict(template.env) == {"DEBUG": "1"}
    assert request.spec.objective.metric == "acc"
    assert request.spec.resources.gpus == 1
    assert isinstance(result, Result)
    assert result.best is not None
    assert len(result.trials) == len(race().final.trials)
    assert len(result.reports) == len(race().reports)


async def test_the_async_client_does_the_same(fake: FakeStudyService) -> None:
    async with AsyncClient(fake.address) as client:
        result = await client.run(train_for_workers.train, SPACE, trials=9, name="mine", minimize="loss")
    assert fake.requests["CreateStudy"][0].study_id == "mine"
    assert result.best is not None


def test_a_bad_argument_and_a_bad_setting_are_reported_before_a_call(
    client: Client, fake: FakeStudyService
) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        client.run(train_for_workers.train, SPACE, trials=0, policies="asha")
    assert {one.field for one in caught.value.violations} == {"trials", "policies"}
    assert not fake.requests.get("CreateStudy")


def test_a_function_of_a_class_has_its_whole_name() -> None:
    assert located(train_for_workers.Holder.train) == ("train_for_workers:Holder.train", HERE)


def test_a_module_in_a_package_is_imported_from_above_it() -> None:
    from headrace.client import names

    root = Path(names.__file__).parents[2]
    assert located(names.study_id) == ("headrace.client.names:study_id", root)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda t: t["lr"], "has no name in a module"),
        (partial(train_for_workers.train), "has no name in a module"),
        (len, "which has no file"),
    ],
)
def test_a_function_without_a_place_is_refused(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(InvalidFieldError, match=said):
        located(function)


SCRIPT = """
from headrace.spec.function import located

def train(t):
    return 1.0

print(located(train))
"""


def test_a_function_of_the_script_that_runs_is_named_by_its_file(tmp_path: Path) -> None:
    script = tmp_path / "tune.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=60)
    assert "tune:train" in done.stdout
    assert str(tmp_path) in done.stdout


NOTEBOOK = """
import math
from headrace.client.running import study_of

OFFSET = 2.0

def helper(x):
    return math.sqrt(x) + OFFSET

def Train_1(t):
    return helper(t["lr"])

name, spec = study_of(
    Train_1, {"lr": {"type": "float", "low": 0, "high": 1}}, None, minimize="loss", maximize=(), trials=3, steps=1
)
print(name)
print(spec.template.callable)
print(spec.template.working_dir)
"""


@pytest.mark.full
def test_a_function_of_a_notebook_is_written_with_all_that_it_uses(tmp_path: Path) -> None:
    """A program without a file represents the notebook, and a second process the trial."""
    env = {**os.environ, "HEADRACE_HOME": str(tmp_path / "home")}
    said = subprocess.run(
        [sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, check=True, timeout=60, env=env
    )
    name, target, folder = said.stdout.split()
    assert re.fullmatch("train-[0-9a-f]{6}", name)
    assert Path(folder).is_relative_to(tmp_path / "home")
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700
    trial = f"print(import_target({target!r}, {folder!r})({{'lr': 4}}))"
    trial = f"from headrace.trial.target import import_target; {trial}"
    done = subprocess.run(
        [sys.executable, "-c", trial], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "4.0"


def test_a_function_of_a_notebook_that_holds_what_cannot_travel_says_so() -> None:
    lock = threading.Lock()

    def train(t: Any) -> float:
        return 1.0 if lock else t["lr"]

    with pytest.raises(InvalidFieldError, match="cannot be sent to workers: TypeError"):
        written(train)


def test_a_script_that_would_start_itself_again_in_each_trial_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tune.py").write_text(SCRIPT)
    code = "import sys; sys.path.insert(0, '.'); import tune"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert "is run by tune itself, whenever a trial imports it" in done.stderr
    assert '__name__ == "__main__"' in done.stderr
