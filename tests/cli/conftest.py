"""Fixtures of the command line's tests: the scripted service of the client's tests, and commands run in-process."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "client"))

from commands_run import invoke as invoke  # a fixture
from fake_study_service import FakeStudyService
from scripted_study import Script, race

STUDY_FILE = """
name: fresh
objective: {metric: val_loss, goal: minimize}
trial: {callable: train:train}
space:
  optimizer: {type: categorical, values: [adam, sgd]}
  lr: {type: float, low: 1.0e-4, high: 0.1, log: true}
policy: {kind: asha, eta: 3, rungs: [1, 3, 9, 27]}
trials: 27
baseline: {optimizer: adam, lr: 0.001}
"""


@pytest.fixture(scope="session")
def script() -> Script:
    """A study that has run to its end. All tests share it; a test that changes a script makes its own with
    `race(NAME)`."""
    return race()


@pytest.fixture
def fake(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeStudyService]:
    """A service with the ended study `digits`, which commands find by themselves."""
    service = FakeStudyService()
    service.answers["CreateStudy"] = race
    service.batch = 50
    service.add(script)
    monkeypatch.setenv("HEADRACE_ADDRESS", service.address)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HEADRACE_TIMEOUT_S", "10")
    yield service
    service.stop()


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    """A study file whose program exists and reports the metric."""
    (tmp_path / "train.py").write_text(
        "def train(t):\n    for _ in t.steps():\n        t.report(val_loss=1.0)\n"
    )
    file = tmp_path / "study.yaml"
    file.write_text(STUDY_FILE)
    return file
