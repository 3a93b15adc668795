"""`headrace.optimize(scope=…)`: which value of a trial counts in `best`, in the frame and in the report."""

import pytest

from headrace import InvalidFieldError, optimize
from headrace.trial import Trial

SPACE = {"start": {"type": "categorical", "values": [0, 1, 2]}}
CURVES = {0: [0.5, 0.1, 0.6], 1: [0.4, 0.3, 0.4], 2: [0.9, 0.2, 0.5]}


def reporting(t: Trial) -> None:
    for step in t.steps():
        t.report(loss=CURVES[t["start"]][step - 1])


@pytest.mark.parametrize(
    ("scope", "k", "start", "score", "step", "said"),
    [
        ("best", None, 0, 0.1, 2, "its best value at any step"),
        ("last", None, 1, 0.4, 3, "its last value"),
        ("full_budget", None, 1, 0.4, 3, "its last value, of trials that completed before others"),
        ("mean_last_k", 3, 1, 1.1 / 3, 3, "the mean of its last 3 values"),
    ],
)
def test_the_best_trial_is_that_of_the_scope(
    scope: str, k: int | None, start: int, score: float, step: int, said: str
) -> None:
    result = optimize(
        reporting,
        SPACE,
        minimize="loss",
        trials=3,
        steps=3,
        scope=scope,
        k=k,
        policy="run_all",
        sampler="grid",
    )
    best = result.best
    assert best is not None
    assert (best.params["start"], best.score_step) == (start, step)
    assert best.score == pytest.approx(score)
    frame = result.dataframe()
    assert frame.score.min() == pytest.approx(score)
    assert said in result.report()


def test_a_mean_is_of_reports_that_meet_the_constraints() -> None:
    def train(t: Trial) -> None:
        reports = ((0.6, 0.9), (0.2, 0.1), (0.7, 0.8))
        for step in t.steps():
            loss, size = reports[step - 1]
            t.report(loss=loss, size=size)

    result = optimize(
        train,
        {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        minimize="loss",
        trials=1,
        steps=3,
        scope="mean_last_k",
        k=2,
        policy="run_all",
        constraints=[{"metric": "size", "at_least": 0.3}],
    )
    assert result.best is not None
    assert result.best.score == pytest.approx(0.65)


@pytest.mark.parametrize(
    ("scope", "k", "field"), [("mean_last_k", None, "k"), ("latest", None, "scope"), ("last", 3, "k")]
)
def test_what_cannot_be_is_refused_under_the_names_of_the_call(scope: str, k: int | None, field: str) -> None:
    with pytest.raises(InvalidFieldError) as refused:
        optimize(reporting, SPACE, minimize="loss", trials=3, steps=3, scope=scope, k=k)
    assert [violation.field for violation in refused.value.violations] == [field]
