"""A study in the bubbles of a job, with a scheduler, workers, an agent and trials as real processes.

The job is a process with one stage. Short forms: `tests/simulator/test_simulator_in_bubbles.py`,
`tests/scheduler/test_bubble_slots.py`, `tests/worker/test_worker_in_bubbles.py`.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Client
from headrace.client import StudyInfo

pytestmark = pytest.mark.skipif(
    not os.environ.get("HEADRACE_BUBBLE_STUDY"), reason="20 s of a core: `make bubbles` runs it"
)

PROGRAMS = Path(__file__).with_name("programs")
STUDY: dict[str, Any] = {
    "objective": {"metric": "loss", "goal": "minimize"},
    "space": {"lr": {"type": "float", "low": 0.001, "high": 0.1, "log": True}},
    "trial": {"callable": "in_bubbles:train", "working_dir": str(PROGRAMS)},
    "policy": {"kind": "median", "rungs": [2, 4, 6], "min_peers": 9},
    "fuse": {"most": 3},
    "trials": 3,
    "seed": 3,
}


def until(holds: Callable[[], Any], what: str, timeout_s: float = 120) -> Any:
    end = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < end, f"still not, after {timeout_s} s: {what}"
        time.sleep(0.05)
    return found


class Cluster:
    """`headrace up` without a worker, and the workers that the test starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.env = {
            **os.environ,
            "HEADRACE_BUBBLES": str(folder / "b"),
            "HEADRACE_HOME": str(folder / "home"),
            "OMP_NUM_THREADS": "1",
        }
        self.start("up", "--no-worker", "--no-console", "--port", "0", "--heartbeat-interval", "0.5")
        address = folder / "home" / "address"
        self.env["HEADRACE_ADDRESS"] = until(lambda: address.exists() and address.read_text().strip(), "up")
        self.client = Client(self.env["HEADRACE_ADDRESS"])

    def start(self, *command: str) -> None:
        with (self.folder / f"{command[0]}{len(self.processes)}.log").open("wb") as log:
            started = subprocess.Popen(
                [sys.executable, "-m", "headrace.cli", *command], stdout=log, stderr=log, env=self.env
            )
        self.processes.append(started)

    def worker(self, name: str, *options: str) -> None:
        self.start("worker", "--name", name, *options)
        until(lambda: any(one.name == name and one.connected for one in self.client.workers()), name)

    def study(self) -> dict[str, Any]:
        """A study whose trials wait after each report until a file exists."""
        return {**STUDY, "trial": {**STUDY["trial"], "env": {"GO_ON": str(self.folder / "go")}}}

    def curves(self, study: str) -> dict[tuple[int, int], float]:
        found = {}
        for one in self.client.study(study).trials():
            for report in self.client.study(study).trial(one.number).reports():
                found[one.number, report.step] = report.metrics["loss"]
        return found

    def finished(self, study: str) -> StudyInfo:
        def ended() -> StudyInfo | None:
            info = self.client.study(study).status()
            return info if info.state.ended else None

        info: StudyInfo = until(ended, f"the end of {study}")
        assert info.state.value == "completed", info.detail
        return info

    def end(self) -> None:
        self.client.close()
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self.processes):
            process.wait(60)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "b").mkdir(mode=0o700)
    made = Cluster(tmp_path)
    yield made
    made.end()


@pytest.fixture
def job(cluster: Cluster) -> Iterator["subprocess.Popen[bytes]"]:
    """A rank of a large job."""
    rank = subprocess.Popen([sys.executable, str(PROGRAMS / "rank.py"), str(cluster.folder / "b")])
    yield rank
    rank.kill()
    rank.wait()


def test_members_train_in_bubbles_move_to_a_slot_of_their_own_and_lose_no_bit(
    cluster: Cluster, job: "subprocess.Popen[bytes]"
) -> None:
    cluster.worker("beside", "--bubbles", "--cpu-slots", "0")
    assert job.poll() is None
    study = cluster.study()
    cluster.client.create_study("gated", {**study, "bubbles": True})
    until(lambda: cluster.curves("gated"), "a report from bubbles")
    cluster.worker("own", "--cpu-slots", "1")
    (cluster.folder / "go").touch()
    cluster.finished("gated")
    trials = list(cluster.client.study("gated").trials())
    assert [one.bubbles for one in trials] == [("job gpt, stage 1",)] * 3
    assert {one.last_worker for one in trials} == {"own"}, "the last rung had a slot of its own"
    assert {one.failures + one.interruptions for one in trials} == {0}
    told = [event.message for event in cluster.client.study("gated").trial(0).explain().events]
    assert any("in bubbles of job gpt, stage 1" in message for message in told)
    assert any("it leaves the bubbles of job gpt, stage 1" in message for message in told)
    shown = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "show", "gated", "0"],
        env=cluster.env,
        capture_output=True,
        text=True,
    ).stdout
    assert "ran in bubbles of job gpt, stage 1" in shown

    cluster.client.create_study("plain", study)
    cluster.finished("plain")
    gated, plain = cluster.curves("gated"), cluster.curves("plain")
    assert gated.keys() == plain.keys() == {(number, step) for number in range(3) for step in range(1, 7)}
    assert gated == pytest.approx(plain, rel=1e-9)


def test_when_the_job_ends_its_trials_leave_at_their_next_report_and_nobody_is_charged(
    cluster: Cluster, job: "subprocess.Popen[bytes]"
) -> None:
    cluster.worker("beside", "--bubbles", "--cpu-slots", "0")
    cluster.client.create_study("left", {**cluster.study(), "bubbles": True})
    until(lambda: cluster.curves("left"), "a report from bubbles")
    job.kill()
    trials = cluster.client.study("left").trials
    (cluster.folder / "go").touch()
    until(lambda: {one.state.value for one in trials()} == {"paused"}, "all have left")
    assert all("the bubbles that it runs in are gone: job gpt has ended" in one.detail for one in trials())
    assert {one.failures + one.interruptions for one in trials()} == {0}, "they left by themselves"
    assert all(one.checkpoint is not None and one.checkpoint.step == one.step for one in trials()), (
        "nothing is lost"
    )
    cluster.worker("own", "--cpu-slots", "1")
    cluster.finished("left")
    assert {one.last_worker for one in trials()} == {"own"}
