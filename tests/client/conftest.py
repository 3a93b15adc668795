"""Fixtures of the client's tests: a scripted StudyService on loopback, and clients of it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_study_service import FakeStudyService
from scripted_study import Script, race

from headrace import Client

sys.path.insert(0, str(Path(__file__).parent.parent / "chaos"))  # the misbehaving proxy


@pytest.fixture(scope="session")
def script() -> Script:
    """A study that has run to its end."""
    return race()


@pytest.fixture
def fake() -> Iterator[FakeStudyService]:
    """A service without studies."""
    service = FakeStudyService()
    service.answers["CreateStudy"] = race
    yield service
    service.stop()


@pytest.fixture
def client(fake: FakeStudyService) -> Iterator[Client]:
    with Client(fake.address, timeout_s=10, connect_timeout_s=2) as made:
        yield made
