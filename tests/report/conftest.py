"""Fixtures of the report's tests: the scripted service of the client's tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "client"))

from fake_study_service import FakeStudyService

from headrace import Client


@pytest.fixture
def fake() -> Iterator[FakeStudyService]:
    service = FakeStudyService()
    service.batch = 100
    yield service
    service.stop()


@pytest.fixture
def client(fake: FakeStudyService) -> Iterator[Client]:
    with Client(fake.address, timeout_s=10) as made:
        yield made
