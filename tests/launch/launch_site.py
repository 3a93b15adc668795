"""A head node without a worker, and a study that needs some: what tests of launches with real workers share."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ready_home import furnish

from headrace.home import address_in
from headrace.ports import any_port

HEADRACE = [sys.executable, "-m", "headrace.cli"]
STUDY = """
name: launched
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
    inherited = [name for name in os.environ if name.startswith(("RAY_", "KUBERNETES_"))]
    assert not inherited, "a trial is no part of the engine"
    for step in t.steps():
        time.sleep(0.2)  # so that both workers get some
        t.report(loss=t.params["x"])
"""


def until(holds: Callable[[], Any], what: Callable[[], str], deadline_s: float = 300) -> Any:
    """Polls until the condition holds; returns its value."""
    deadline = time.monotonic() + deadline_s
    while not (found := holds()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)
    return found


@contextmanager
def process(line: list[str], env: dict[str, str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process, stopped at the end of the block."""
    with log.open("ab") as out:
        running = subprocess.Popen(line, env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        yield running
    finally:
        running.terminate()
        running.wait(90)


@dataclass
class LaunchSite:
    """A running head node."""

    root: Path
    env: dict[str, str]

    def run(self, *arguments: str) -> str:
        """A command of the head's user."""
        done = subprocess.run(
            [*HEADRACE, *arguments], env=self.env, capture_output=True, text=True, check=False, timeout=240
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def connected(self) -> list[str]:
        """The names of the connected workers."""
        return [one["name"] for one in json.loads(self.run("workers", "--json")) if one["connected"]]

    def study(self, most: int, also: Callable[[], None] = lambda: None) -> Counter[str]:
        """Runs a study to its end; returns which workers were connected meanwhile, never more than `most`."""
        program = self.root / "program"
        program.mkdir()
        (program / "study.yaml").write_text(STUDY)
        (program / "train.py").write_text(TRAIN)
        seen: Counter[str] = Counter()
        log = self.root / "run.log"
        with process([*HEADRACE, "run", str(program / "study.yaml"), "--ship"], self.env, log) as run:

            def over() -> bool:
                also()
                names = self.connected()
                assert len(names) <= most, names
                seen.update(names)
                return run.poll() is not None

            until(over, log.read_text, 500)
            assert run.returncode == 0, log.read_text()
        return seen


@contextmanager
def launch_site(root: Path) -> Iterator[LaunchSite]:
    """A head node that listens over TLS and has no worker."""
    home = root / "home"
    furnish(home)
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    env |= {"HEADRACE_HOME": str(home), "PYTHONUNBUFFERED": "1"}
    log = root / "up.log"
    at = ["--listen", f"127.0.0.1:{any_port()}", "--no-worker", "--no-console"]
    with process([*HEADRACE, "up", "--home", str(home), *at], env, log):
        until(lambda: address_in(home), log.read_text)
        yield LaunchSite(root, env)
