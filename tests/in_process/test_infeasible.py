"""`raise trial.Infeasible(reason)`: neither a failure nor a result, and the sampler avoids such configurations."""

import warnings
from pathlib import Path

import pytest

from headrace import optimize, trial
from headrace.client import TerminationReason
from headrace.trial import Trial

SPACE = {"x": {"type": "float", "low": 0.0, "high": 1.0}}


def above_half(t: Trial) -> float:
    if t["x"] < 0.5:
        raise trial.Infeasible(f"x is {t['x']:.1f}")
    return float(t["x"])


def test_an_infeasible_trial_counts_as_no_failure(tmp_path: Path) -> None:
    result = optimize(above_half, SPACE, minimize="loss", trials=30, sampler="random", policy="run_all")
    ends = {one.reason for one in result.trials}
    assert ends == {TerminationReason.COMPLETED, TerminationReason.INFEASIBLE}
    infeasible = [one for one in result.trials if one.reason is TerminationReason.INFEASIBLE]
    assert all(one.params["x"] < 0.5 and not one.failures for one in infeasible)
    assert infeasible[0].detail == f"x is {infeasible[0].params['x']:.1f}"
    assert result.best is not None
    assert result.best.params["x"] >= 0.5
    assert f"{len(infeasible)} infeasible" in result.report()
    frame = result.dataframe()
    assert (frame.reason == "infeasible").sum() == len(infeasible)


def test_the_sampler_keeps_away_from_infeasible_configurations() -> None:
    def flat(t: Trial) -> float:
        return above_half(t) * 5 % 1.0

    result = optimize(flat, SPACE, minimize="loss", trials=60, sampler="tpe", policy="run_all", seed=3)
    late = result.trials[30:]
    assert sum(one.reason is TerminationReason.INFEASIBLE for one in late) < len(late) / 4


def test_a_reported_value_of_an_infeasible_trial_does_not_count() -> None:
    def late(t: Trial) -> None:
        for step in t.steps():
            t.report(loss=t["x"])
            if step == 2 and t["x"] < 0.5:
                raise trial.Infeasible("too small")

    result = optimize(late, SPACE, minimize="loss", trials=20, steps=3, sampler="random", policy="run_all")
    assert result.best is not None
    assert result.best.params["x"] >= 0.5


@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_an_infeasible_trial_is_never_the_best(names: tuple[str, ...]) -> None:
    """Neither next to completed trials that report worse values, nor alone."""

    def late(t: Trial) -> None:
        t.report(**dict.fromkeys(names, float(t.number)))
        if t.number < 3:
            raise trial.Infeasible("too small")

    for trials, best in ((5, 3), (3, None)):
        with warnings.catch_warnings(action="ignore"):
            result = optimize(
                late, SPACE, minimize=names, trials=trials, steps=2, sampler="random", policy="run_all"
            )
        assert [one.score for one in result.trials[:3]] == [None] * 3
        assert [one.number for one in result.front] == ([] if best is None or len(names) == 1 else [best])
        if len(names) == 1:
            assert (result.best.number if result.best else None) == best


def test_a_study_without_a_feasible_trial_says_why() -> None:
    def never(t: Trial) -> float:
        raise trial.Infeasible("8 heads do not divide 100 features")

    with pytest.warns(UserWarning, match="8 heads do not divide"):
        result = optimize(never, SPACE, minimize="loss", trials=8, sampler="random", policy="run_all")
    assert len(result.trials) == 8
    assert "all 8 trials were infeasible, 8 with: 8 heads do not divide" in result.study.detail


def test_a_trial_reads_as_the_mapping_of_its_parameters() -> None:
    def read(t: Trial) -> float:
        assert dict(t.items()) == dict(t.params)
        assert (t.get("x"), t.get("y"), t.get("y", 3)) == (t["x"], None, 3)
        return float(t["x"])

    result = optimize(read, SPACE, minimize="loss", trials=2, sampler="random", policy="run_all")
    assert {one.reason for one in result.trials} == {TerminationReason.COMPLETED}
