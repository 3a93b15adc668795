"""`headrace check` on scripts with a metric that differs in each run, such as a time: the other metrics decide."""

from collections.abc import Callable

import pytest

from headrace.check import CheckError, CheckReport, Kind, render
from headrace.check.judge import is_measured

Check = Callable[..., CheckReport]

TIMED = """
import time
from headrace import trial

def train(t):
    t.state.setdefault("sum", 0.0)
    seen = 0
    for step in t.steps():
        began = time.perf_counter()
        t.state["sum"] += t.params["lr"] / step
        seen += 2
        t.report(loss=t.state["sum"], NAME=time.perf_counter() - began)

trial.main(train, defaults={"lr": 0.5}, steps=3)
"""
SECONDS = TIMED.replace("NAME", "time_this_iter_s")
LUCK = TIMED.replace("NAME", "luck")
COUNTS = ('loss=t.state["sum"]', "loss=seen")


def test_a_time_is_left_out_with_a_warning(check: Check) -> None:
    report = check(source=SECONDS)
    assert report.passed, render(report)
    assert report.metrics == ("loss",)
    said = render(report)
    assert "warning: time_this_iter_s differs between two runs without a pause (" in said
    assert "so it was not compared" in said


def test_beside_a_time_what_a_pause_loses_is_found(check: Check) -> None:
    report = check(COUNTS, source=SECONDS)
    (missing,) = report.missing
    assert missing.kind is Kind.VALUE
    assert missing.remedy.startswith('keep it in t.state: `seen = t.state.get("seen", 0)`')
    assert report.trajectory is not None
    assert report.trajectory.what == "loss"


def test_beside_a_time_a_parameter_without_effect_is_found(check: Check) -> None:
    unused = ('t.params["lr"] / step', "1 / step")
    report = check(unused, source=SECONDS, params={"lr": 0.5}, mutations={"lr": {"lr": 5.0}})
    assert [missing.kind for missing in report.missing] == [Kind.PARAMETER]


def test_a_metric_that_may_be_a_result_is_named_and_left_out_on_demand(check: Check) -> None:
    report = check(source=LUCK)
    assert not report.passed
    said = render(report)
    assert "not deterministic by itself" in said
    assert "without luck, unless a study asks for it: --ignore-metric luck" in said
    assert check(source=LUCK, ignored=["luck"]).passed
    assert not check(COUNTS, source=LUCK, ignored=["luck"]).passed


def test_the_objectives_of_a_study_decide_what_may_be_left_out(check: Check) -> None:
    assert check(source=LUCK, objectives=["loss"]).passed
    report = check(source=SECONDS, objectives=["time_this_iter_s"])
    assert report.nondeterminism is not None
    assert report.nondeterminism.what == "time_this_iter_s"


@pytest.mark.parametrize(
    ("ignored", "message"),
    [(["los"], "does not report los, which"), (["loss", "luck"], "of these nothing would be compared")],
)
def test_metrics_to_ignore_must_be_some_that_are_reported(
    check: Check, ignored: list[str], message: str
) -> None:
    with pytest.raises(CheckError, match=message) as caught:
        check(source=LUCK, ignored=ignored)
    assert caught.value.remedy.endswith("loss, luck.")


def test_which_names_are_those_of_times() -> None:
    times = "time_this_iter_s epoch_seconds samples_per_sec train/time step.ms gpu_mem_mb throughput"
    assert all(map(is_measured, times.split()))
    assert not any(map(is_measured, ["loss", "sometimes", "val_acc", "timely_recall", "memorized", "rms"]))
