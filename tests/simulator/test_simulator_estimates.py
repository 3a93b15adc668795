"""Statistics with known answers, and the summary's figures computed by hand."""

import pytest
from simulated_studies import flat, make_spec, simulate

from headrace_services.scheduler.simulator.recorded import RecordedCurve, RecordedCurves
from headrace_services.scheduler.simulator.statistics import bootstrapped, expected_cost, mean, share
from headrace_services.scheduler.simulator.summary import improvements, summarise


def test_students_interval():
    found = mean([1.0, 2.0, 3.0, 4.0, None])
    assert (found.mean, found.seeds) == (2.5, 4)
    assert found.high - found.mean == pytest.approx(3.18245 * 1.29099 / 2, rel=1e-4)  # t(0.975, 3)·s/√n
    assert mean([None]).mean is None
    assert mean([5.0]).low is None


def test_wilsons_interval():
    found = share([True] * 8 + [False] * 2)
    assert found.mean == 0.8
    assert (found.low, found.high) == pytest.approx((0.4902, 0.9433), abs=1e-4)


def test_what_is_never_negative_has_no_negative_interval():
    found = bootstrapped([0.0] * 9 + [1.0])
    assert found.mean == pytest.approx(0.1)
    assert found.low == 0.0
    assert 0.2 <= found.high <= 0.5
    assert mean([0.0] * 9 + [1.0]).low < 0


def test_misses_are_paid_for():
    """Two hits at 10 and 20, one miss that spent 60: (10 + 20 + 60) / 2."""
    found = expected_cost([10.0, 20.0, None], [50.0, 50.0, 60.0])
    assert found.mean == 45.0
    assert found.low <= 45.0
    assert found.high is None, "a resample without a hit has no finite cost"
    assert expected_cost([None], [60.0]).mean is None
    sure = expected_cost([10.0, 20.0, 30.0, 40.0], [99.0] * 4)
    assert sure.mean == 25.0
    assert 10.0 <= sure.low < 25.0 < sure.high <= 40.0


def falling(name: str, values: tuple[float, ...]) -> RecordedCurve:
    steps = tuple(range(1, len(values) + 1))
    return RecordedCurve(
        name=name, steps=steps, seconds=tuple(10.0 * s for s in steps), values=values, params={}
    )


def test_winner_target_and_regret():
    """The study ends with the second trial at 0.5. The third one would have reached 0.1, but was stopped at 0.9."""
    curves = RecordedCurves(
        (
            falling("a", (0.8, 0.8, 0.8)),
            falling("b", (0.7, 0.6, 0.5)),
            falling("c", (0.9, 0.4, 0.1)),
        )
    )
    spec = make_spec(
        max_trials=3, max_steps=3, policy={"kind": "asha", "variant": "stopping", "eta": 3, "rungs": [1, 3]}
    )
    simulation, study = simulate(spec, curves)
    summary = summarise(simulation, study)
    assert (summary.winner, summary.winner_value) == (1, 0.5)
    assert (summary.best, summary.best_value, summary.survived) == (2, 0.1, False)
    assert summary.regret == pytest.approx(0.4)
    assert summary.top == 1.0, "three trials are all among three"
    assert summary.to_target_s is None
    reached = summarise(simulation, study, within=5.0)  # 0.1 + 5·0.1
    assert (reached.to_target_s, reached.to_target_slot_s) == (50.0, 50.0), (
        "at b's second step, after a's three"
    )
    assert [(one.at_s, one.trial, one.value) for one in improvements(simulation, study)] == [
        (10.0, 0, 0.8),
        (40.0, 1, 0.7),
        (50.0, 1, 0.6),
        (60.0, 1, 0.5),
    ]


def test_slot_time_counts_all_who_ran():
    """Two slots: the second trial's report at 10 s arrives when both have run for 10 s."""
    simulation, study = simulate(
        make_spec(policy={"kind": "run_all"}, max_trials=2), flat([2.0, 1.0]), workers=2
    )
    last = improvements(simulation, study)[-1]
    assert (last.trial, last.at_s, last.slot_s) == (1, 10.0, 20.0)
    assert summarise(simulation, study).to_target_slot_s == 20.0


def test_the_top_is_that_of_the_values_at_the_full_budget():
    """Six curves, all flat except one: the fourth ends best, but is stopped before that shows."""
    curves = [falling(str(n), (v, v, v)) for n, v in enumerate((0.3, 0.4, 0.5))]
    curves += [falling("late", (0.9, 0.9, 0.1)), falling("x", (0.8, 0.8, 0.8)), falling("y", (0.7, 0.7, 0.7))]
    spec = make_spec(max_trials=6, max_steps=3, policy={"kind": "asha", "eta": 3, "rungs": [1, 3]})
    simulation, study = simulate(spec, RecordedCurves(tuple(curves)))
    summary = summarise(simulation, study)
    assert summary.best == 3
    assert summary.top == pytest.approx(2 / 3), "the study's own are 0, 1, 2; the best are 3, 0, 1"
