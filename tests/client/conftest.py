"""Fixtures of the client's tests: a scripted StudyService on loopback, and clients of it."""

from collections.abc import Iterator

import pytest
from fake_study_service import FakeStudyService
from scripted_study import Script, race

from headrace import Client


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
