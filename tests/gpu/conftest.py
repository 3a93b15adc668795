"""Tests that need a GPU are skipped without one. `make gpu` collects every outcome, with the figure that the test
recorded (`figure`), in the record of the card.

The kit runs this folder without the conftest above it, so nothing here depends on that one.
"""

import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
for folder in ("tests", "tests/hydro", "benchmarks/gpu", "benchmarks/hydro"):
    sys.path.insert(0, str(ROOT / folder))

from kit_lines import FILE, Line, say  # noqa: E402  its folder is on the path from here on

FIGURE = "figure"
RECORDED = FILE in os.environ
"""Whether these tests are a part of the kit, which keeps what they find."""


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[float], None]:
    """Records the number that the test is about."""
    return lambda value: record_property(FIGURE, value)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("no GPU: torch.cuda.is_available() is False")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: "pytest.CallInfo[None]"
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if RECORDED and (report.when == "call" or report.outcome != "passed"):
        figures = [value for name, value in item.user_properties if name == FIGURE]
        say(
            Line(
                name=item.name,
                outcome=report.outcome,
                value=float(figures[-1]) if figures else None,  # type: ignore[arg-type]  # `figure` takes floats
                why="" if report.outcome == "passed" else _why(report),
            )
        )
    return report


def _why(report: pytest.TestReport) -> str:
    """The last line of the error, or the reason of a skip."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message[:500] if crash else str(report.longrepr)[-500:]
