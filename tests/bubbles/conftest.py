"""One program that has imported DeepSpeed, for all tests of the hook."""

import importlib.util
from collections.abc import Iterator

import pytest
from primary_site import Primary


@pytest.fixture(scope="session")
def primary() -> Iterator[Primary]:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed")
    made = Primary()
    yield made
    made.close()
