"""`headrace logs --since` of a real trial: while it runs, after its end and after its worker was killed."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import pytest
from ready_home import furnish
from test_outcomes_end_to_end import Service
from test_up_end_to_end import Up, up

from headrace import Client, log_times
from headrace.home import address_in

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]

STUDY = """
name: waits
objective: {metric: loss, goal: minimize}
trial: {callable: waiting:train}
space: {x: {type: categorical, values: [0]}}
sampler: {kind: grid}
policy: {kind: run_all}
trials: 1
steps: 1
"""
PROGRAM = """
import pathlib
import time

class Box:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

def train(t):
    t.track(box=Box())
    print("early", flush=True)
    for step in t.steps():
        for word in ("late", "end"):
            while not pathlib.Path(word).exists():
                time.sleep(0.05)
            print(word, flush=True)
        t.report(loss=1.0)
"""


@pytest.fixture
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    home = tmp_path_factory.mktemp("up") / "home"
    furnish(home)
    with up(home) as service:
        yield service


def remote(home: Path, within: timedelta) -> bytes:
    """The scheduler's answer about the log, as for somebody on another machine."""
    with Client(address_in(home)) as client:
        trial = client.study("waits").trial(0)
        part = trial.read_log(within=within)
        data = part.data
        assert not part.notes
        while part.data and not part.complete:
            part = trial.read_log(part.cursor)
            data += part.data
        return data


def test_what_was_printed_since(running: Up, tmp_path: Path) -> None:
    service = Service(running.home, tmp_path)
    (tmp_path / "waiting.py").write_text(PROGRAM)
    (tmp_path / "waits.yaml").write_text(STUDY)
    assert service.cli("run", "waits.yaml", "--detach").code == 0
    pause = Event()

    def log() -> Path:
        return Path(service.json("show", "waits", "0")["log_path"])

    running.until(lambda: "early" in service.cli("logs", "waits", "0").out, "it runs")
    path = log()

    def marked() -> bool:
        return bool(log_times.read(path)) and log_times.read(path)[-1].offset == path.stat().st_size

    running.until(marked, "a mark behind the first word")
    pause.wait(0.1)
    began = datetime.now(UTC)
    options = ("logs", "waits", "0", "--since", began.isoformat())
    assert service.cli(*options).out == ""
    assert remote(running.home, datetime.now(UTC) - began) == b""
    (tmp_path / "late").touch()
    running.until(lambda: "late" in path.read_text(), "the second word")
    assert service.cli(*options).out == "late\n"
    assert remote(running.home, datetime.now(UTC) - began) == b"late\n"
    assert "early" in service.cli("logs", "waits", "0", "--since", "1d").out
    running.until(marked, "a mark behind the second word")
    (tmp_path / "end").touch()
    running.until(lambda: service.json("show", "waits")["state"] == "completed", "the study has ended", 120)
    assert service.cli(*options, "-f").out == "late\nend\n"
    assert service.cli(*options, "-n", "1").out == "end\n"
    stored = log_times.path_of(path)
    running.until(lambda: remote(running.home, datetime.now(UTC) - began) == b"late\nend\n", "its end")
    running.child(" worker ").kill()
    running.until(lambda: running.came_back("worker"), "the worker is back")
    assert service.cli(*options).out == "late\nend\n"
    running.until(lambda: remote(running.home, datetime.now(UTC) - began) == b"late\nend\n", "from the store")
    stored.unlink()
    whole = service.cli(*options)
    assert "early" in whole.out
    assert "when it was printed is not known" in whole.err
