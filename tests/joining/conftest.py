"""Waits of these tests are for real processes."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each has its time."""
    for item in items:
        if item.path.parent.name == "joining":
            item.add_marker(pytest.mark.timeout(180))
