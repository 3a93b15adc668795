"""What tests of launches on Kubernetes share."""

from collections.abc import Iterator

import pytest
from fake_api_server import ApiServer, api_server
from kubernetes_site import Clock


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as state:
        yield state


@pytest.fixture
def clock() -> Clock:
    return Clock()
