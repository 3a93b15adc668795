"""Fixtures of the trackers' tests. The scripted studies are those of the client's tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "client"))
sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))

from commands_run import invoke as invoke  # a fixture
from copied_study import story
from fake_mlflow import FakeServer, installed
from fake_study_service import FakeStudyService
from scripted_study import Script


@pytest.fixture(scope="session")
def script() -> Script:
    """An ended study with 28 trials, awkward metrics among them. All tests share it."""
    return story()


@pytest.fixture
def fake_server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """The double of MLflow, in place of its package."""
    server = FakeServer()
    installed(server, monkeypatch)
    return server


@pytest.fixture
def service(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeStudyService]:
    """A scheduler with the study, which commands find by themselves."""
    service = FakeStudyService()
    service.batch = 20
    service.add(script)
    monkeypatch.setenv("HEADRACE_ADDRESS", service.address)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HEADRACE_TIMEOUT_S", "10")
    yield service
    service.stop()
