"""What a user writes who has read little, run for real: a script and a study file for `headrace run`."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from uuid import uuid4

import pytest
from command_line import headrace_command
from ready_home import furnish

from headrace.cli.local import local_service
from headrace.cli.output import Output

pytestmark = [pytest.mark.full, pytest.mark.timeout(180)]

STUDY = """
name: mine
objective: {metric: METRIC, goal: minimize}
trial: {callable: train:train}
space: {lr: {type: float, low: 0.01, high: 0.1}}
policy: {kind: asha, RUNGS}
trials: 4
seed: 3
"""
OPTIMIZER_STEPS = """
def train(t):
    done = t.state.get("done", 0)
    for _epoch in t.steps():
        for _batch in range(100):
            done += 1
        t.state["done"] = done
        t.report(step=done, loss=1 / done + t.params["lr"])
"""
MODERN = """
import torch

def train(t):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=t.params["lr"])
    t.track(model, optimizer)
    for _ in t.steps():
        optimizer.zero_grad()
        loss = model(torch.ones(1)).square().sum()
        loss.backward()
        optimizer.step()
        t.report({"val/loss": loss, "train/loss": loss.detach().numpy()[()]})
"""
NAMED_OTHERWISE = """
def train(t):
    for _ in t.steps():
        t.report({"val/loss": t.params["lr"], "train/loss": 1.0})
"""
Run = Callable[[str, str, str], tuple["CompletedProcess[str]", list[dict[str, object]]]]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A service with two slots."""
    folder = Path(tempfile.mkdtemp(prefix="hr-"))  # a short path: Unix sockets are created in it
    furnish(folder / "home")
    with local_service(folder / "home", slots=2, notes=Output()) as found:
        yield found
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def run(address: str, tmp_path: Path) -> Run:
    """Runs a study in a folder of its own; returns how the command ended and the lines of its JSON."""

    def start(
        program: str, metric: str, rungs: str
    ) -> tuple["CompletedProcess[str]", list[dict[str, object]]]:
        (tmp_path / "train.py").write_text(program)
        (tmp_path / "study.yaml").write_text(STUDY.replace("METRIC", metric).replace("RUNGS", rungs))
        options = ["--name", f"study-{uuid4().hex[:8]}", "--no-preflight", "--json"]
        file = str(tmp_path / "study.yaml")
        done = headrace_command("run", file, *options, env={**os.environ, "HEADRACE_ADDRESS": address})
        return done, [json.loads(line) for line in done.stdout.splitlines()]

    return start


def test_steps_of_another_unit_end_in_the_remedy_and_the_remedy_works(run: Run) -> None:
    done, lines = run(OPTIMIZER_STEPS, "loss", "rungs: [1, 3, 9]")
    assert done.returncode == 1
    assert lines[-1]["steps_spent"] == 0
    told = [str(line["message"]) for line in lines[:-1]]
    remedy = "To count 100 steps a turn instead, give the study `steps: 900` and `rungs: [100, 300, 900]`."
    assert any(
        "step 100 is past the full budget of 9 steps" in message and remedy in message for message in told
    )
    done, lines = run(OPTIMIZER_STEPS, "loss", "rungs: [100, 300, 900]")
    assert done.returncode == 0, done.stderr
    reported = [line["report_recorded"]["step"] for line in lines[:-1] if line["kind"] == "report_recorded"]  # type: ignore[index]
    assert set(reported) <= set(range(100, 901, 100))
    assert max(reported) == 900


def test_a_dictionary_of_metrics_objects_without_names_and_a_metric_with_a_slash(run: Run) -> None:
    done, lines = run(MODERN, "val/loss", "rungs: [1, 2]")
    assert done.returncode == 0, done.stderr
    summary = lines[-1]
    assert summary["state"] == "completed"
    assert summary["failed"] == 0
    moves = [line["trial_moved"] for line in lines[:-1] if line["kind"] == "trial_moved"]
    resumed = [move for move in moves if move["to"] == "resumed"]  # type: ignore[index]
    assert resumed, "a trial was resumed from what was tracked"
    assert not any("saved no checkpoint" in str(line["message"]) for line in lines[:-1])


def test_a_metric_that_is_never_reported_is_named_at_the_first_report(run: Run) -> None:
    done, lines = run(NAMED_OTHERWISE, "val_loss", "rungs: [2, 4]")
    assert done.returncode == 1
    told = [str(line["message"]) for line in lines[:-1]]
    (said,) = [place for place, message in enumerate(told) if "first report has no 'val_loss'" in message]
    assert told[said].endswith("which the study reads; it has train/loss, val/loss")
    assert any("at step 1" in message for message in told[:said])
    assert any("THIS REPORT HAS NO 'val_loss'" in message for message in told)
