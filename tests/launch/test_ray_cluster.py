"""Ray for real: a cluster of two nodes on this machine runs a study of a head node. Needs Ray: `make test-ray`."""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ready_home import furnish

from headrace.home import address_in
from headrace.ports import any_port

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        find_spec("ray") is None, reason="Ray is not installed here: make test-ray installs it"
    ),
]
HEADRACE = [sys.executable, "-m", "headrace.cli"]
STUDY = """
name: over-ray
objective: {metric: loss, goal: minimize}
trial: {callable: train:train, working_dir: .}
space: {x: {type: float, low: 0, high: 1}}
policy: {kind: run_all}
trials: 8
steps: 10
"""
TRAIN = """
import os, time

def train(t):
    assert not [name for name in os.environ if name.startswith("RAY_")], "a trial is no part of Ray"
    for step in t.steps():
        time.sleep(0.2)  # so that both workers get some
        t.report(loss=t.params["x"])
"""


def until(holds: Callable[[], Any], what: str, deadline_s: float = 240) -> Any:
    deadline = time.monotonic() + deadline_s
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
    return found


@contextmanager
def process(line: list[str], env: dict[str, str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("ab") as out:
        running = subprocess.Popen(line, env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        yield running
    finally:
        running.terminate()
        running.wait(90)


def headrace(env: dict[str, str], *arguments: str, folder: Path | None = None) -> str:
    done = subprocess.run(
        [*HEADRACE, *arguments], env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def cluster() -> Iterator[str]:
    """Two nodes of one CPU each."""
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        found.add_node(num_cpus=1)
        yield str(found.address)
    finally:
        found.shutdown()


def test_a_study_runs_on_workers_that_come_and_go(tmp_path: Path, cluster: str) -> None:
    home = tmp_path / "home"
    furnish(home)
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    env |= {"HEADRACE_HOME": str(home), "PYTHONUNBUFFERED": "1"}
    program = tmp_path / "program"
    program.mkdir()
    (program / "study.yaml").write_text(STUDY)
    (program / "train.py").write_text(TRAIN)
    with ExitStack() as stack:
        at = ["--listen", f"127.0.0.1:{any_port()}", "--no-worker", "--no-console"]
        stack.enter_context(process([*HEADRACE, "up", "--home", str(home), *at], env, tmp_path / "up.log"))
        until(lambda: address_in(home), (tmp_path / "up.log").read_text())
        launch = [
            "launch",
            "ray",
            "--cluster",
            cluster,
            "--max",
            "2",
            "--cpu-slots",
            "1",
            "--idle-exit",
            "5s",
        ]
        launch += ["--store", (tmp_path / "store").as_uri(), "--interval", "2s"]
        assert "num_cpus=1" in headrace(env, *launch, "--dry-run")
        loops = [tmp_path / f"launch-{number}.log" for number in range(2)]
        for log in loops:  # two at once
            stack.enter_context(process([*HEADRACE, *launch], env, log))
        seen: Counter[str] = Counter()
        with process(
            [*HEADRACE, "run", str(program / "study.yaml"), "--ship"], env, tmp_path / "run.log"
        ) as run:

            def over() -> bool:
                found = json.loads(headrace(env, "workers", "--json"))
                names = [one["name"] for one in found if one["connected"]]
                assert len(names) <= 2, names
                seen.update(names)
                return run.poll() is not None

            until(over, (tmp_path / "run.log").read_text(), 400)
            assert run.returncode == 0, (tmp_path / "run.log").read_text()
        assert len(seen) >= 2, loops[0].read_text()
        assert all(re.fullmatch(r"ray-workers-[01]-[0-9a-f]{12}", name) for name in seen), seen
        until(
            lambda: json.loads(headrace(env, "workers", "--json")) == [],
            "idle workers leave, with their rows",
        )
