"""The real thing: `headrace up` with its own Postgres, scheduler and worker, killed at every point."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from headrace import Client
from headrace.home import address_in, console_of
from headrace.spec import parse_spec

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]

SPEC = parse_spec(
    {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "policy": {"kind": "run_all"},
        "max_trials": 1,
        "max_steps": 1,
    }
)

HOW_TO = Path(__file__).resolve().parents[2] / "docs/how-to/ask-tell.md"
ASK_TELL = HOW_TO.read_text(encoding="utf-8").partition("```python\n")[2].partition("```\n")[0]
"""The program of the how-to."""


class Up:
    """A running `headrace up`."""

    def __init__(self, home: Path, slots: int = 1) -> None:
        self.home = home
        self.output = home.with_suffix(".out")
        with self.output.open("ab") as output:
            options = ["--home", str(home), "--port", "0", "--console", "0", "--slots", str(slots)]
            timing = ["--heartbeat-interval", "0.5", "--lease-ttl", "3"]
            self.process = psutil.Popen(
                [sys.executable, "-m", "headrace.cli", "up", *options, *timing],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def said(self) -> str:
        return self.output.read_text()

    def until(self, holds: Callable[[], object], what: str, deadline_s: float = 60) -> None:
        """Polls until the condition holds."""
        deadline = time.monotonic() + deadline_s
        pause = threading.Event()
        while not holds():
            if time.monotonic() > deadline or not self.process.is_running():
                pytest.fail(f"{what}; up said:\n{self.said()}")
            pause.wait(0.1)

    def child(self, word: str) -> psutil.Process:
        """The child whose command line contains the word."""
        found = [child for child in self.process.children() if word in " ".join(child.cmdline())]
        assert len(found) == 1, f"{word}: {found}; up said:\n{self.said()}"
        return found[0]

    def came_back(self, name: str) -> bool:
        """Whether a child was restarted."""
        return re.search(rf"^\S+ {name} .* again$", self.said(), re.MULTILINE) is not None

    def stop(self, which: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(which)
        return int(self.process.wait(60))


@contextmanager
def up(home: Path, slots: int = 1) -> Iterator[Up]:
    running = Up(home, slots)
    try:
        running.until(lambda: address_in(home), "it is ready")
        yield running
    finally:
        if running.process.is_running():
            running.process.kill()
            running.process.wait()


def test_it_serves_survives_kills_and_continues_after_a_stop(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with up(home) as first:
        address = address_in(home)
        with Client(address) as client:
            (worker,) = client.workers()
            assert (worker.name, worker.connected, len(worker.slots)) == ("local", True, 1)
            client.create_study("kept", SPEC)
            for name, word in (
                ("scheduler", " scheduler "),
                ("worker", " worker "),
                ("postgres", "bin/postgres"),
                ("console", " console "),
            ):
                first.child(word).kill()
                first.until(lambda name=name: first.came_back(name), f"{name} is back")
            assert [study.name for study in client.studies()] == ["kept"]
        assert address is not None
        console = console_of(address, home)
        assert console is not None
        with urlopen(f"{console}/studies.json") as answer:
            assert [study["name"] for study in json.load(answer)["studies"]] == ["kept"]
        children = first.process.children(recursive=True)

        second = subprocess.run(
            [sys.executable, "-m", "headrace.cli", "up", "--home", str(home)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == 1
        assert f"runs from {home} already (process {first.process.pid})" in second.stderr

        assert first.stop() == 0
        assert address_in(home) is None
        assert not [child for child in children if child.is_running()]
        end = first.said().partition("SIGTERM: stopping")[2]
        assert end.index("worker") < end.index("scheduler") < end.index("postgres") < end.index("has stopped")

    with up(home), Client(address_in(home)) as client:
        assert [study.name for study in client.studies()] == ["kept"]
        ask_tell = subprocess.run(
            [sys.executable, "-c", ASK_TELL],
            env={**os.environ, "HEADRACE_HOME": str(home)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ask_tell.returncode == 0, ask_tell.stderr
        assert -5 <= ast.literal_eval(ask_tell.stdout)["x"] <= 5
        assert client.study("parabola").status().state == "completed"


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")
def test_a_killed_up_leaves_nothing_and_the_next_one_continues(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with up(home) as first:
        with Client(address_in(home)) as client:
            client.create_study("kept", SPEC)
        children = first.process.children(recursive=True)
        first.process.kill()
        first.process.wait()
        gone, alive = psutil.wait_procs(children, timeout=60)
        assert len(gone) >= 3
        assert alive == []
    (home / "address").unlink()
    with up(home), Client(address_in(home)) as client:
        assert [study.name for study in client.studies()] == ["kept"]


def test_a_wrong_database_is_one_clear_line_and_nothing_is_left(tmp_path: Path) -> None:
    url = "postgresql://nobody@127.0.0.1:1/nothing"
    command = [sys.executable, "-m", "headrace.cli", "up", "--home", str(tmp_path), "--port", "0"]
    done = subprocess.run(
        [*command, "--database-url", url], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode != 0
    assert "scheduler" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])
    ]
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"console.log", "scheduler.log"}
