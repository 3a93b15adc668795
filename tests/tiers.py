"""The tiers of the tests: what `make test` runs on every change, and what only `make test-all` runs.

A test is in the first tier unless it, or its file, is marked `full`, or it is marked `gpu`. In a file marked `full` a
test marked `smoke` still runs in the first tier, and of a test marked `cases(n)` n of its parameters do.
CONTRIBUTING.md has a table.

`--tier first` leaves the others out. Without it everything that is named runs, so `pytest tests/chaos` runs chaos.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

FIRST = "first"
FULL = "full"
MARKS = (
    "full: runs in `make test-all` alone",
    "smoke: runs in `make test` too, though its file is marked full",
    "cases(n): n of its parameters run in `make test`, spread evenly; all of them in `make test-all`",
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
    first = set(first_tier(items))
    config.hook.pytest_deselected(items=[item for item in items if item not in first])
    items[:] = [item for item in items if item in first]


def first_tier(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """The tests of the first tier."""
    cases: dict[tuple[int, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if _tier_of(item) == FIRST:
            mark = item.get_closest_marker("cases")
            if mark is None:
                yield item
            else:
                cases[mark.args[0], item.nodeid.partition("[")[0]].append(item)
    for (count, _), of_one_test in cases.items():
        yield from spread(of_one_test, count)


def spread(cases: list[pytest.Item], count: int) -> list[pytest.Item]:
    """Returns `count` of the cases, spread evenly from the first to the last.

    Steps that divide the number of cases would select only one value of a stacked parameter.
    """
    if count >= len(cases):
        return cases
    return [cases[round(place * (len(cases) - 1) / max(count - 1, 1))] for place in range(count)]


def drawn(*, first: int, full: int) -> int:
    """How many random cases a test draws in the current tier."""
    return first if _tier == FIRST else full


@contextmanager
def processor_time(*, at_most_s: float) -> Iterator[None]:
    """In the full tier, fails if this process computes for longer. The first tier measures no time."""
    began = time.process_time()
    yield
    took_s = time.process_time() - began
    assert _tier == FIRST or took_s < at_most_s, f"took {took_s:.1f} s of a processor, not {at_most_s}"


def _tier_of(item: pytest.Item) -> str:
    """The marks of a test take precedence over those of its file."""
    for node in reversed(item.listchain()):
        marks = {mark.name for mark in node.own_markers}
        if "smoke" in marks:
            return FIRST
        if marks & {"full", "gpu"}:
            return FULL
    return FIRST
