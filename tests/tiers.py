"""The tiers of the tests: what `make test` runs on every change, and what only `make test-all` does.

A test is in the first tier unless it, or its file, is marked `full`; a test of such a file that is marked `smoke` is
in the first tier all the same. What is marked, and why, is a table in CONTRIBUTING.md.

`--tier first` leaves the others out. Without it everything runs that is named, so `pytest tests/chaos` runs chaos.
"""

import pytest
from _pytest.mark.structures import ParameterSet

FIRST = "first"
FULL = "full"
MARKS = (
    "full(why): runs in `make test-all`, not in `make test`",
    "smoke: of a file that is marked full, this one test runs in `make test` too",
)

_tier = FULL


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=(FIRST, FULL),
        default=FULL,
        help="first: what `make test` runs; full: everything (default)",
    )


def pytest_configure(config: pytest.Config) -> None:
    global _tier
    for mark in MARKS:
        config.addinivalue_line("markers", mark)
    _tier = config.getoption("--tier")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _tier == FULL:
        return
    left_out = [item for item in items if tier_of(item) == FULL]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if tier_of(item) == FIRST]


def tier_of(item: pytest.Item) -> str:
    """The tier of a test: the marks of the test itself come before those of its file."""
    for node in reversed(item.listchain()):
        marks = {mark.name for mark in node.own_markers}
        if "smoke" in marks:
            return FIRST
        if "full" in marks:
            return FULL
    return FIRST


def only_full(*cases: object) -> list[ParameterSet]:
    """Cases of a parametrized test that run in the full tier."""
    return [pytest.param(case, marks=pytest.mark.full) for case in cases]


def count(*, first: int, full: int) -> int:
    """How many random cases a test draws, by the tier that runs."""
    return first if _tier == FIRST else full
