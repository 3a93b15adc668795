"""Communication hidden behind computation: three patterns, the effect of each ratio, and that they can be fitted."""

from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from headrace_services.planner import asking, catalogue
from headrace_services.planner.calibration import fit, overlaps_told
from headrace_services.planner.cluster import OVERLAPS
from headrace_services.planner.costing import Request
from headrace_services.planner.degrees import Degrees
from headrace_services.planner.measured import Rows, predicted_s, read_rows
from headrace_services.planner.modes import FULL
from headrace_services.planner.plan import Plan
from headrace_services.planner.published import h100, sc21
from headrace_services.planner.search import Search

DATA = Path(__file__).parents[2] / "benchmarks" / "planner" / "data"
DEGREES = Degrees(d=4, m=4, o=4, s=2, mu=8)


def planned(overlap: str | None, **constants: float) -> Plan:
    cluster = catalogue.cluster("a100-32")
    cluster = cluster.with_efficiencies(replace(cluster.device.efficiencies, **constants))  # type: ignore[arg-type]
    options = asking.Options(batch=64, overlap=overlap)
    search = Search(asking.assembled(catalogue.model("gpt3-13b"), cluster, options))
    candidate = search.candidate(FULL, DEGREES)
    assert candidate is not None
    return search.assembled(candidate)


@pytest.mark.parametrize(
    ("pattern", "part"), [("gradients", "tail_s"), ("optimizer", "tail_s"), ("tensor", "communication_s")]
)
def test_each_pattern_hides_its_own_part(pattern: str, part: str) -> None:
    without, with_ = planned("none"), planned(pattern)
    assert with_.simulated_s < without.simulated_s
    assert getattr(with_.breakdown, part) < getattr(without.breakdown, part)
    other = "communication_s" if part == "tail_s" else "tail_s"
    assert getattr(with_.breakdown, other) == pytest.approx(getattr(without.breakdown, other), rel=1e-9)


def test_a_clusters_ratios_count_without_being_asked_for() -> None:
    plain = planned(None)
    half = planned(None, overlap_gradients=0.5)
    whole = planned(None, overlap_gradients=1.0)
    assert whole.simulated_s < half.simulated_s < plain.simulated_s
    assert planned(None, overlap_gradients=1.0, overlap_slowdown=4.0).simulated_s > whole.simulated_s
    assert planned("none", overlap_gradients=1.0).simulated_s == plain.simulated_s
    assert planned("all").simulated_s <= min(planned(one).simulated_s for one in ("gradients", "tensor"))


def test_no_more_hides_than_there_is() -> None:
    """If everything is hidden, a tail is the optimizer's step alone, and never less."""
    plan = planned("gradients,optimizer", overlap_slowdown=1.0)
    cluster = plan.request.cluster
    assert all(stage.times.tail_s > 0 for stage in plan.stages)
    assert plan.simulated_s >= plan.lower_bound_s * (1 - 1e-12)
    assert cluster.device.efficiencies.overlap_tensor == 0


def test_pruning_stays_exact_with_overlap() -> None:
    cluster = catalogue.cluster("a100-16")
    ratios = dict.fromkeys(OVERLAPS, 0.7)
    cluster = cluster.with_efficiencies(replace(cluster.device.efficiencies, **ratios))  # type: ignore[arg-type]
    search = Search(Request(model=catalogue.model("gpt3-2.7b"), cluster=cluster, batch=32))
    best = search.run(FULL)
    solved = [(bound, search.candidate(FULL, degrees)) for bound, degrees in search.bounds()]
    assert best.plan is not None
    objectives = [one.objective_s for _, one in solved if one is not None]
    assert min(plan.analytic_s for plan in best.finalists) <= min(objectives) * (1 + 1e-9)
    assert all(one is None or one.objective_s >= bound * (1 - 1e-9) for bound, one in solved)


def overlapping_rows() -> Rows:
    """Every row on several nodes twice, with one micro-batch: once without overlap and once with it."""
    rows = read_rows([DATA / "vtrain_multi_node.csv"])
    twice = {name: np.tile(column, 2) for name, column in rows.columns.items()}
    twice["global_batch"] = twice["dp"] * twice["micro_batch"]
    overlap = np.repeat([0.0, 1.0], len(rows))
    return replace(rows, columns={**twice, "overlap": overlap, "sharded": np.ones(len(overlap))})


def test_ratios_are_found_in_rows_that_overlap() -> None:
    """Rows made with known ratios give them back; rows without overlap say nothing about them."""
    rows, cluster = overlapping_rows(), catalogue.cluster("a100-80g-hdr4-512")
    known = {"overlap_gradients": 0.3, "overlap_tensor": 0.6, "overlap_optimizer": 0.3}
    constants = replace(cluster.device.efficiencies, shapes=(), **known)  # type: ignore[arg-type]
    made = predicted_s(rows, cluster.with_efficiencies(constants))
    found = fit(replace(rows, columns={**rows.columns, "iteration_ms": made * 1e3}), cluster)
    assert found.overlap_gradients == pytest.approx(0.3, abs=0.1)
    assert found.overlap_optimizer == pytest.approx(0.3, abs=0.1)
    assert found.overlap_tensor == pytest.approx(0.6, abs=0.1)
    plain = read_rows([DATA / "vtrain_multi_node.csv"])
    assert overlaps_told(plain) == {}


def test_published_rows_with_own_cards_and_overlap() -> None:
    """The constants are the A100's, fitted on vTrain. That rings share no card was chosen on SC'21; H100 rows
    confirm it."""
    narayanan = [abs(one.miss) for one in sc21(DATA / "megatron_sc21.csv", catalogue.cluster("a100-80g-512"))]
    assert median(narayanan) <= 0.07
    assert max(narayanan) <= 0.10
    hopper = [abs(one.miss) for one in h100(DATA / "megatron_h100.csv", catalogue.cluster("h100-80g-512"))]
    assert median(hopper) <= 0.10
    assert max(hopper) <= 0.30
