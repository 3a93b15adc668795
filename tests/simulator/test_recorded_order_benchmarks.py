"""The scripts that compare policies on recorded orders: their event loop and their rules are those of the
simulator."""

import importlib
import math
from pathlib import Path

import pytest

from headrace_services.scheduler.simulator.recorded import CurveFile, RecordedCurve

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
REPORTS = 27


@pytest.fixture
def benchmark(monkeypatch):
    """A benchmark's module by its name."""
    monkeypatch.syspath_prepend(BENCHMARKS / "simulator")
    monkeypatch.syspath_prepend(BENCHMARKS / "policies")
    return importlib.import_module


def recorded(runs=24, *, lengths=(REPORTS,)):
    """Curves that cross, with that many evaluations each, in turns."""
    curves = []
    for number in range(runs):
        length = lengths[number % len(lengths)]
        speed, floor = 0.05 + 0.4 * (number * 7 % 11) / 11, (number * 5 % 13) / 13
        curves.append(
            RecordedCurve(
                name=str(number),
                steps=tuple(range(1, length + 1)),
                seconds=tuple((1 + 0.4 * math.sqrt(number)) * step for step in range(1, length + 1)),
                values=tuple(floor + math.exp(-speed * step) for step in range(1, length + 1)),
                params={},
            )
        )
    return CurveFile(path=Path("curves.csv"), curves=tuple(curves), metric="loss", goal="minimize")


class Everyone:
    """A peer that lets everyone continue, and keeps what it was shown."""

    def __init__(self):
        self.shown = []

    def begins(self, number):
        pass

    def goes_on(self, number, at, value, *, over):
        del value, over
        self.shown.append((number, at))
        return True

    def resumes(self, *, more):
        del more


@pytest.mark.parametrize("fail", [0.0, 3.0])
def test_a_peer_that_stops_nobody_is_as_run_all(benchmark, fail):
    orders, loop = benchmark("recorded_orders"), benchmark("peer_loop")
    order = orders.Order.drawn(orders.Scene(file=recorded(), workers=4, fail=fail), 1)
    peer = Everyone()
    task = loop.Task(maximize=False, max_t=REPORTS, trials=24)
    run = loop.run(lambda _: peer, order.curves.order, task, workers=4, failures=order.failures)
    ours = orders.ours(order, orders.named(order.spec, "run_all"))["run_all"]
    assert run.slot_s / order.whole_s == pytest.approx(ours["spent"])
    assert run.slot_s > order.whole_s * 1.05 if fail else run.slot_s == pytest.approx(order.whole_s)
    assert sorted(peer.shown) == [(number, at) for number in range(24) for at in range(1, REPORTS + 1)]


def test_what_was_saved_is_not_lost_with_a_machine(benchmark):
    orders, loop = benchmark("recorded_orders"), benchmark("peer_loop")
    order = orders.Order.drawn(orders.Scene(file=recorded(), workers=4, fail=3.0), 1)
    task = loop.Task(maximize=False, max_t=REPORTS, trials=24)
    spent = [
        loop.run(
            lambda _: Everyone(),
            order.curves.order,
            task,
            workers=4,
            failures=order.failures,
            saves_at=saves_at,
        ).slot_s
        for saves_at in ((), (1, 3, 9, 27), tuple(range(1, REPORTS + 1)))
    ]
    assert order.whole_s < spent[2] < spent[1] < spent[0]


def test_one_of_the_rules_for_effort_is_todays(benchmark):
    orders, rules = benchmark("recorded_orders"), benchmark("effort_rules")
    scene = orders.Scene(file=recorded(), workers=4)
    found = rules.one_order((scene, 2, 0.4))
    order = orders.Order.drawn(scene, 2)
    today = orders.ours(order, orders.named(order.spec, "auto:effort=0.4"))["auto:effort=0.4"]
    first = {
        counts: found[rules.Rule(turns=rules.FIRST, counts=counts).label]
        for counts in ("reached", "towards", "ended")
    }
    assert found[rules.TODAY.label] == today
    assert first["towards"] != today
    assert first["towards"] == first["reached"] == first["ended"], "all programs are as long"


def test_programs_that_end_early_count_as_what_they_cost(benchmark):
    orders, rules = benchmark("recorded_orders"), benchmark("effort_rules")
    scene = orders.Scene(file=recorded(lengths=(4, 5, 6, 7, 27)), workers=4)
    found = rules.one_order((scene, 2, 0.4))
    reached, towards, ended = (
        found[rules.Rule(turns=rules.FIRST, counts=counts).label]["spent"]
        for counts in ("reached", "towards", "ended")
    )
    assert ended < towards < reached
