"""`--costs`: where the processor time of a run goes: by test file, by test and fixture setup, and by process
starts.

The time of a test process itself and that of its children that were waited for are counted separately. A server
that outlives its tests (Postgres) and grandchildren that nobody waited for do not count.
"""

import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from typing import Any

import pytest

STARTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty"})
SHOWN = 80
"""Rows of a table."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs",
        action="store_true",
        help="print the processor time of each test file and fixture, and the processes that they start",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--costs"):
        config.pluginmanager.register(Costs(config), "costs-of-tests")


@dataclass(slots=True)
class Cost:
    """The time spent on something."""

    own_s: float = 0.0
    children_s: float = 0.0
    wall_s: float = 0.0
    starts: int = 0
    count: int = 0

    def add(self, other: "Cost") -> None:
        self.own_s += other.own_s
        self.children_s += other.children_s
        self.wall_s += other.wall_s
        self.starts += other.starts
        self.count += other.count


@dataclass
class Ledger:
    """The costs of one test process."""

    files: dict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))
    tests: dict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))
    fixtures: dict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))

    def kinds(self) -> tuple[tuple[str, dict[str, Cost]], ...]:
        return ("test files", self.files), ("tests", self.tests), ("fixtures", self.fixtures)


class Costs:
    """Measures in each test process; the one that the user started prints."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ledger = Ledger()
        self._starts = Counter[str]()
        sys.addaudithook(self._heard)

    def _heard(self, event: str, _: tuple[Any, ...]) -> None:
        if event in STARTS:
            self._starts["all"] += 1

    @contextmanager
    def _charged(self, cost: Cost, count: int) -> Iterator[None]:
        began, before, starts = time.perf_counter(), os.times(), self._starts["all"]
        try:
            yield
        finally:
            now = os.times()
            children = now.children_user + now.children_system - before.children_user - before.children_system
            cost.add(
                Cost(
                    own_s=now.user + now.system - before.user - before.system,
                    children_s=children,
                    wall_s=time.perf_counter() - began,
                    starts=self._starts["all"] - starts,
                    count=count,
                )
            )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        cost = Cost()
        try:
            with self._charged(cost, 1):
                return (yield)
        finally:
            self._ledger.files[item.nodeid.partition("::")[0]].add(cost)
            self._ledger.tests[item.nodeid.partition("[")[0]].add(cost)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        with self._charged(self._ledger.fixtures[f"{fixturedef.baseid}: {fixturedef.argname}"], 1):
            return (yield)

    def pytest_sessionfinish(self) -> None:
        """Sends the costs of an xdist worker to the controller."""
        workeroutput = getattr(self._config, "workeroutput", None)
        if workeroutput is not None:
            kinds = [kind for _, kind in self._ledger.kinds()]
            workeroutput["costs"] = json.dumps([{k: astuple(c) for k, c in kind.items()} for kind in kinds])

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        handed = json.loads(node.workeroutput.get("costs", "[]")) if hasattr(node, "workeroutput") else []
        for (_, mine), theirs in zip(self._ledger.kinds(), handed, strict=False):
            for name, cost in theirs.items():
                mine[name].add(Cost(*cost))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for title, costs in self._ledger.kinds():
            terminalreporter.section(f"processor time of {title}")
            for line in table(costs.items()):
                terminalreporter.write_line(line)


def table(costs: Iterable[tuple[str, Cost]]) -> Iterator[str]:
    """The most expensive entries, and the sum of all."""
    total = Cost()
    yield f"{'own':>8} {'children':>9} {'wall':>8} {'starts':>7} {'count':>6}"
    for place, (name, cost) in enumerate(sorted(costs, key=lambda one: -one[1].own_s - one[1].children_s)):
        total.add(cost)
        if place < SHOWN:
            yield row(name, cost)
    yield row("all", total)


def row(name: str, cost: Cost) -> str:
    return (
        f"{cost.own_s:8.1f} {cost.children_s:9.1f} {cost.wall_s:8.1f} {cost.starts:7} {cost.count:6}  {name}"
    )
