"""The scheduler is killed before a target starts early: it still starts, once, and the last place remains."""

from pathlib import Path
from typing import Any

import pytest
from cluster_site import Cluster, cluster, connect, until

from headrace.client import Client, TrialState
from headrace.client.events import TrialCreated
from headrace.client.model import StudyState

pytestmark = pytest.mark.full

PROGRAM = """
import time
from pathlib import Path

GO = Path(__file__).with_name("go")

def until_told():
    while not GO.exists():
        time.sleep(0.02)

def train(t):
    for _ in t.steps():
        if t.params["lr"] == 0.3:
            until_told()  # the last trial of the search: a slot is idle beside it
        t.report(loss=abs(0.3 - t.params["lr"]))

def target(t):
    for _ in t.steps():
        until_told()
        t.report(loss=abs(0.3 - t.params["lr"]))
"""


def test_an_early_start_survives_a_kill_of_the_scheduler(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    spec: dict[str, Any] = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "trial": {"callable": "train:train", "working_dir": str(tmp_path)},
        "space": {"lr": {"type": "float", "low": 0.1, "high": 1.0}},
        "enqueue": [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}],
        "policy": {"kind": "run_all"},
        "trials": 3,
        "steps": 1,
        "transfer": {"callable": "train:target", "top": 2, "eager": 1.0},
    }
    with cluster(tmp_path / "site", slots=2) as site, connect(site) as client:
        client.create_study("small", spec)
        until(lambda: client.study("small").status().counts.terminated == 2, "two of three trials")
        kill(site)
        until(lambda: running(client, "small-target") == [0], "the early start")
        assert client.study("small").status().state is StudyState.ACTIVE
        (tmp_path / "go").touch()
        for name in ("small", "small-target"):
            until(lambda name=name: client.study(name).status().state.ended, f"the end of {name}")
            assert client.study(name).status().state is StudyState.COMPLETED
            assert [(one.failures, one.attempt, one.step) for one in client.study(name).trials()] in (
                [(0, 1, 1)] * 3,
                [(0, 1, 1)] * 2,
            )
        assert [one.source for one in client.study("small-target").trials()] == [1, 2], (
            "the best one came last"
        )
        early = [proposal(client, number).early for number in (0, 1)]
        assert early == ["a slot was idle", ""]


def kill(site: Cluster) -> None:
    """Kill the scheduler, and wait for the next one."""
    old = site.child("scheduler")
    assert site.kill(old)
    assert old is not None

    def replaced() -> bool:
        found = site.child("scheduler")
        return found is not None and found.pid != old.pid

    until(replaced, "a scheduler again")


def running(client: Client, name: str) -> list[int]:
    return [one.number for one in client.study(name).trials((TrialState.RUNNING, TrialState.RESUMED))]


def proposal(client: Client, number: int) -> Any:
    events = client.study("small-target").trial(number).explain().events
    (created,) = [one.detail for one in events if isinstance(one.detail, TrialCreated)]
    return created.proposal
