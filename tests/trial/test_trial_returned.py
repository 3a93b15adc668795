"""A function that reports nothing may return its result."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counting import Counter
from recording_runtime import RecordingRuntime

from headrace.trial import script
from headrace.trial.runtime import KeepBest


@pytest.fixture
def one_rung() -> RecordingRuntime:
    return RecordingRuntime(checkpoint_dir=None, rungs=(4,), metric="loss")


def run(function: Callable[..., Any], runtime: RecordingRuntime) -> list[tuple[int, dict[str, float]]]:
    script.run(function, runtime, runtime.attach())
    return [(report.step, dict(report.metrics)) for report in runtime.reports]


@pytest.mark.parametrize(
    ("returned", "metrics"), [(0.5, {"loss": 0.5}), ({"loss": 1, "size": 2}, {"loss": 1.0, "size": 2.0})]
)
def test_what_a_function_returns_is_its_result_at_the_full_budget(
    one_rung: RecordingRuntime, returned: Any, metrics: dict[str, float]
) -> None:
    assert run(lambda _: returned, one_rung) == [(4, metrics)]
    assert [report.returned for report in one_rung.reports] == [True]
    assert one_rung.finished == [""]


def test_what_a_function_returns_after_a_report_does_not_count(one_rung: RecordingRuntime) -> None:
    def train(t: Any) -> float:
        t.report(loss=0.1, step=4)
        return 7.0

    assert run(train, one_rung) == [(4, {"loss": 0.1})]
    assert [report.returned for report in one_rung.reports] == [False]


def test_a_result_that_jumps_over_a_rung_is_refused() -> None:
    runtime = RecordingRuntime(checkpoint_dir=None, rungs=(1, 4), metric="loss")
    with pytest.raises(
        ValueError, match=r"the function returned its result, .* at step 4; .* at 1 too"
    ) as refused:
        run(lambda _: 0.5, runtime)
    assert "jumps over" not in str(refused.value), "the script has no report that could jump"
    assert runtime.reports == []


def test_a_result_that_is_no_number_is_refused(one_rung: RecordingRuntime) -> None:
    with pytest.raises(TypeError, match="metric 'loss' is 'good' of type str"):
        run(lambda _: "good", one_rung)


def test_nothing_is_reported_for_nothing(one_rung: RecordingRuntime) -> None:
    assert run(lambda _: None, one_rung) == []


def test_a_result_that_rank_0_alone_returns_waits_for_no_other_rank(tmp_path: Path) -> None:
    runtime = RecordingRuntime(
        checkpoint_dir=tmp_path, rungs=(4,), metric="loss", keep_best=KeepBest(maximize=False)
    )
    gang = replace(runtime.attach(), ranks=2, rank_patience_s=0.1)

    def train(t: Any) -> float:
        t.track(counter=Counter())
        return 0.5

    script.run(train, runtime, gang)
    [report] = runtime.reports
    assert (report.step, report.checkpoint_dir) == (4, None)


def test_a_trial_that_continues_with_a_larger_budget_returns_its_result_again(tmp_path: Path) -> None:
    runtime = RecordingRuntime(checkpoint_dir=tmp_path, rungs=(4,), metric="loss")

    def train(t: Any) -> float:
        t.track(counter=Counter())
        return 0.5

    assert run(train, runtime) == [(4, {"loss": 0.5})]
    assert run(train, runtime) == [(4, {"loss": 0.5})], "it has nothing left to report"
    runtime.rungs = (4, 8)
    assert run(train, runtime) == [(4, {"loss": 0.5}), (8, {"loss": 0.5})]


@pytest.mark.parametrize("returned", [True, np.True_])
def test_a_bare_bool_is_no_result(one_rung: RecordingRuntime, returned: Any) -> None:
    with pytest.raises(
        TypeError, match="the function gave True, which is not a number; give a number for 'loss'"
    ):
        run(lambda _: returned, one_rung)
