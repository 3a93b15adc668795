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


@pytest.mark.parametrize(
    ("scope", "k", "field"), [("mean_last_k", None, "k"), ("latest", None, "scope"), ("last", 3, "k")]
)
def test_what_cannot_be_is_refused_under_the_names_of_the_call(scope: str, k: int | None, field: str) -> None:
    with pytest.raises(InvalidFieldError) as refused:
        optimize(reporting, SPACE, minimize="loss", trials=3, steps=3, scope=scope, k=k)
    assert [violation.field for violation in refused.value.violations] == [field]
