"""A function that reports nothing may return its result."""

from collections.abc import Callable
from typing import Any

import pytest
from recording_runtime import RecordingRuntime

from headrace.trial import script


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
    assert one_rung.finished == [""]


def test_what_a_function_returns_after_a_report_does_not_count(one_rung: RecordingRuntime) -> None:
    def train(t: Any) -> float:
        t.report(loss=0.1, step=4)
        return 7.0

    assert run(train, one_rung) == [(4, {"loss": 0.1})]


def test_a_result_that_jumps_over_a_rung_is_refused() -> None:
    runtime = RecordingRuntime(checkpoint_dir=None, rungs=(1, 4), metric="loss")
    with pytest.raises(ValueError, match="step 4 jumps over the rung at 1"):
        run(lambda _: 0.5, runtime)


def test_a_result_that_is_no_number_is_refused(one_rung: RecordingRuntime) -> None:
    with pytest.raises(TypeError, match="metric 'loss' is 'good' of type str"):
        run(lambda _: "good", one_rung)


def test_nothing_is_reported_for_nothing(one_rung: RecordingRuntime) -> None:
    assert run(lambda _: None, one_rung) == []
