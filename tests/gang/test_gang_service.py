"""Gangs under a real worker: every rank's state comes back after a pause, and the first error is the one reported."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from command_line import headrace_command
from ready_home import furnish

from headrace.cli.local import local_service
from headrace.cli.output import Output

pytestmark = pytest.mark.full

STUDY = """
name: s
objective: {metric: loss, goal: minimize}
trial: {callable: train:train}
space: {x: {type: float, low: 0, high: 1}}
resources: {cpus: 2, processes: per_slot}
retries: 0
"""
PAUSED = """
policy: {kind: asha, eta: 2, rungs: [1, 2]}
trials: 2
steps: 2
"""
DRAWS = """
import random
def train(t):
    own = random.Random(f"{t.seed}/{t.rank}")
    t.track(own=own)
    with open(f"draws-{t.number}-{t.rank}.txt", "a") as file:
        for step in t.steps():
            print(own.random(), random.random(), file=file, flush=True)
            t.report(loss=t.params["x"])
"""

Run = Callable[[str, str, str], "CompletedProcess[str]"]


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """The address of a service of two slots."""
    folder = Path(tempfile.mkdtemp(prefix="hr-"))  # a short path: Unix sockets are created in it
    furnish(folder / "home")
    with local_service(folder / "home", slots=2, notes=Output()) as address:
        yield address
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def run(tmp_path: Path, service: str) -> Run:
    """Runs a study of gangs of two; its trials leave their files in `tmp_path`."""

    def start(name: str, study: str, script: str) -> "CompletedProcess[str]":
        (tmp_path / "train.py").write_text(script)
        (tmp_path / "study.yaml").write_text(STUDY + study)
        return headrace_command(
            "run",
            "--name",
            name,
            str(tmp_path / "study.yaml"),
            env={**os.environ, "HEADRACE_ADDRESS": service},
        )

    return start


def test_every_rank_draws_on_from_where_it_was_paused(run: Run, tmp_path: Path) -> None:
    done = run("draws", PAUSED, DRAWS)
    assert done.returncode == 0, done.stdout + done.stderr
    streams = {
        rank: [path.read_text().split() for path in sorted(tmp_path.glob(f"draws-*-{rank}.txt"))]
        for rank in (0, 1)
    }
    resumed = [n for n, numbers in enumerate(streams[0]) if len(numbers) == 4]
    assert resumed, f"one of the two trials went on after its pause: {json.dumps(streams)}"
    for n in resumed:
        zero, one = streams[0][n], streams[1][n]
        assert zero[0] != one[0]
        assert zero[2] != one[2], "after the pause rank 1 draws what rank 0 draws"
        assert zero[1::2] == one[1::2], "the global generators are seeded alike"


FAILS = """
import os, signal, sys, time
def train(t):
    t.track(count=Count())
    for step in t.steps():
        if t.rank == 1:
            try:
                HOW
            finally:
                open(f"gone-{t.number}", "w").close()   # as a process group is left before the error is told
                time.sleep(0.2)
        while not os.path.exists(f"gone-{t.number}"):
            time.sleep(0.005)
        if t.rank == 0:
            raise ConnectionResetError("Connection closed by peer")
        t.report(loss=1.0)
class Count:
    def state_dict(self): return {}
    def load_state_dict(self, state): pass
"""
ONE = """
policy: {kind: run_all}
trials: 1
steps: 1
"""


def test_the_trial_fails_of_the_first_ranks_error_and_once(run: Run, tmp_path: Path) -> None:
    done = run("fails", ONE, FAILS.replace("HOW", "raise ValueError('no such batch')"))
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert "on rank 1: ValueError: no such batch" in said
    assert "ConnectionResetError" not in said.replace(FAILS, "")
    assert "attempt 2" not in said
