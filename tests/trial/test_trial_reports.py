"""What a trial reports: metrics, and the steps that they are of."""

import logging
import re
from contextlib import nullcontext
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from recording_runtime import RecordingRuntime

from headrace.trial import Ended
from headrace.trial.runtime import Action


def test_none_is_no_value_of_the_objective(recording: RecordingRuntime) -> None:
    recording.metric = "loss"
    t = recording.trial()
    with pytest.raises(TypeError, match="metric 'loss' is None; report a number, or NaN"):
        t.report({"loss": None}, other=1.0)


def test_a_loop_of_another_kind_counts_reports_or_says_its_step(recording: RecordingRuntime) -> None:
    recording.rungs = (20, 40)
    t = recording.trial()
    t.report(loss=1)
    t.report(loss=1, step=10)
    t.report(loss=1)
    assert [report.step for report in recording.reports] == [1, 10, 11]
    assert t.step == 11


@pytest.mark.parametrize(
    ("rungs", "steps", "says"),
    [
        ((1, 3, 9), [100], "step 100 is past the full budget of 9 steps. "),
        ((1, 3, 9), [2], "step 2 jumps over the rung at 1. "),
        ((1, 3, 9), [1, 2, 4], "step 4 jumps over the rung at 3. "),
        ((1, 3, 9), [-1], "step -1 is negative. "),
    ],
)
def test_a_step_past_the_budget_or_over_a_rung_is_refused_before_anything_is_stored(
    recording: RecordingRuntime, rungs: tuple[int, ...], steps: list[int], says: str
) -> None:
    recording.rungs = rungs
    t = recording.trial()
    t.state["a"] = 1
    for step in steps[:-1]:
        t.report(loss=1, step=step)
    before = sorted(recording.checkpoint_dir.glob("*")) if recording.checkpoint_dir else []
    with pytest.raises(ValueError, match=re.escape(f"t.report(...): {says}")):
        t.report(loss=1, step=steps[-1])
    assert [report.step for report in recording.reports] == steps[:-1]
    assert recording.checkpoint_dir is not None
    assert sorted(recording.checkpoint_dir.glob("*")) == before
    t.report(loss=1, step=1)
    assert recording.reports[-1].step == 1, "a script that goes on may still report rightly"


def test_a_loop_that_counts_something_else_is_told_how(recording: RecordingRuntime) -> None:
    recording.rungs = (1, 3)
    t = recording.trial()
    turns = t.steps()
    turn = next(turns)
    with pytest.raises(ValueError, match=r"give the study `steps: 300` and `rungs: \[100, 300\]`"):
        t.report(loss=1, step=100 * turn)
    recording.rungs = (100, 300)
    t = recording.trial()
    for turn in t.steps():
        t.report(loss=1, step=100 * turn)
        if turn == 3:
            break
    t = recording.trial()
    for step in t.steps():  # the remedy of the other kind: a turn is an optimizer step
        if step % 100 == 0:
            t.report(loss=1)
    assert [report.step for report in recording.reports] == [100, 200, 300, 100, 200, 300]


@pytest.mark.parametrize("step", [None, 1])
def test_a_metric_that_is_reported_once_a_batch_is_refused(
    recording: RecordingRuntime, step: int | None
) -> None:
    t = recording.trial()
    for _epoch in t.steps():
        t.report(acc=0.1, step=step)
        t.report(f1=0.2, step=step)
        with pytest.raises(ValueError, match=r"'acc' of step 1 was reported before .* after the inner loop"):
            t.report(acc=0.3, step=step)
        break
    assert [report.metrics for report in recording.reports] == [{"acc": 0.1}, {"f1": 0.2}]


@pytest.mark.parametrize(
    ("late", "role"), [("loss", "the study's objective"), ("size", "a constraint"), ("f1", None)]
)
def test_a_metric_that_the_study_reads_is_refused_in_a_further_report_of_the_step(
    recording: RecordingRuntime, late: str, role: str | None
) -> None:
    recording.metric, recording.constraint_metrics = "loss", ("size",)
    t = recording.trial()
    for _ in t.steps():
        t.report(acc=0.1)
        if role is None:
            t.report({late: 0.2})
        else:
            told = (
                rf"'{late}' \({role}\) comes in a further report of step 1, .* Report all metrics .* together"
            )
            with pytest.raises(ValueError, match=told):
                t.report({late: 0.2})
        break
    assert len(recording.reports) == (1 if role else 2)


def test_a_further_report_behind_the_end_is_left_out_with_a_line(
    recording: RecordingRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    recording.decisions = {2: Action.PAUSE}
    t = recording.trial()
    for step in t.steps():
        t.report(loss=0.1)
        with pytest.raises(Ended) if step == 2 else nullcontext():
            t.report(f1=0.2)
    assert [list(report.metrics) for report in recording.reports] == [["loss"], ["f1"], ["loss"]]
    assert (
        caplog.text.count("a second report of step 2 is ignored: after the first one the trial was told") == 1
    )


@pytest.mark.parametrize(
    ("step", "taken"),
    [
        (np.int64(2), 2),
        (torch.tensor(2), 2),
        (2.0, None),
        ("2", None),
        (True, None),
        (np.True_, None),
        (torch.tensor(True), None),
    ],
)
def test_a_step_is_a_whole_number(recording: RecordingRuntime, step: Any, taken: int | None) -> None:
    t = recording.trial()
    if taken is None:
        with pytest.raises(TypeError, match=re.escape(f"step={step!r} is not a whole number")):
            t.report(loss=1, step=step)
    else:
        t.report(loss=1, step=step)
        assert type(recording.reports[0].step) is int
    assert len(recording.reports) == (taken is not None)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0),
        (True, 1.0),
        (float("nan"), float("nan")),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.array(2.0), 2.0),
        (torch.tensor(0.25), 0.25),
        (torch.tensor(1.5, requires_grad=True), 1.5),
        (torch.tensor(7), 7.0),
        (Fraction(1, 4), 0.25),
        (Decimal("0.5"), 0.5),
    ],
)
def test_metrics_are_numbers_of_any_kind(recording: RecordingRuntime, value: Any, number: float) -> None:
    recording.trial().report(loss=value, absent=None)
    assert recording.reports[0].metrics == pytest.approx({"loss": number}, nan_ok=True)
    assert type(recording.reports[0].metrics["loss"]) is float


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("low", "metric 'loss' is 'low' of type str; report a number"),
        ([1.0], r"metric 'loss' is \[1.0\] of type list"),
        (1j, "metric 'loss' is 1j of type complex"),
        (
            torch.ones(2),
            r"metric 'loss' is a Tensor of shape \(2,\); report one number, such as its .mean\(\)",
        ),
        (np.ones((1, 1)), r"metric 'loss' is a ndarray of shape \(1, 1\)"),
        (10**400, "metric 'loss' is too large for a float"),
    ],
)
def test_other_metrics_are_refused_by_name(recording: RecordingRuntime, value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        recording.trial().report(loss=value)
    assert recording.reports == []


def test_metrics_come_as_a_dictionary_too(recording: RecordingRuntime) -> None:
    t = recording.trial()
    t.report({"val/loss": torch.tensor(0.25), "step": 3, "absent": None}, accuracy=np.float32(0.5))
    assert recording.reports[0].metrics == {"val/loss": 0.25, "step": 3.0, "accuracy": 0.5}
    assert recording.reports[0].step == 1


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (0.3, "report() got 0.3 without a name; name it, as in report(loss=...)"),
        ({1: 0.3}, "metric names must be non-empty strings, not 1; name each metric, such as"),
        ({"": 0.3}, "metric names must be non-empty strings, not ''"),
        ({"loss": 0.3}, "metric 'loss' is given twice, in the dictionary and by name"),
        ({"val": {"loss": 0.3}}, "metric 'val' is a dict; give each of its values a name, such as 'val/...'"),
    ],
)
def test_a_dictionary_that_holds_something_else_is_refused(
    recording: RecordingRuntime, metrics: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        recording.trial().report(metrics, loss=1)
    assert recording.reports == []


def test_the_first_report_says_which_metrics_it_lacks(
    recording: RecordingRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    recording.metric, recording.constraint_metrics = "val/loss", ("size", "time")
    t = recording.trial()
    with caplog.at_level(logging.WARNING):
        t.report(loss=1, time=2)
        t.report(loss=1, time=2)
    assert caplog.text.count("THIS REPORT HAS NO") == 1
    assert "NO 'val/loss' (the study's objective), 'size' (a constraint); it has loss, time." in caplog.text


def test_a_report_in_another_tuners_order_says_how_it_goes(recording: RecordingRuntime) -> None:
    report: Any = recording.trial().report
    with pytest.raises(TypeError, match=r"takes metrics by name, as in t.report\(loss=0.2\)"):
        report(0.5, 3)
    assert recording.reports == []


@pytest.mark.parametrize("looping", [False, True])
def test_step_0_is_refused(recording: RecordingRuntime, looping: bool) -> None:
    t = recording.trial()
    if looping:
        next(iter(t.steps()))
    with pytest.raises(ValueError, match=r"step 0 is before the first step. Count steps from 1"):
        t.report(loss=1, step=0)
    assert recording.reports == []


def test_a_second_step_in_one_turn_is_refused_with_the_remedy(recording: RecordingRuntime) -> None:
    t = recording.trial()
    for _ in t.steps():
        t.report(loss=0.1, step=1)
        told = r"step 2 comes in the same turn .* as step 1.* steps and rungs in batches"
        with pytest.raises(ValueError, match=told):
            t.report(loss=0.1, step=2)
        break
    assert [report.step for report in recording.reports] == [1]


def test_behind_the_end_a_second_step_in_the_turn_is_reported_as_what_it_is(
    recording: RecordingRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    recording.decisions = {1: Action.PAUSE}
    t = recording.trial()
    for _ in t.steps():
        t.report(loss=0.1, step=1)
        with pytest.raises(Ended):
            t.report(loss=0.1, step=2)
    assert "step 2 comes in the same turn of t.steps() as step 1" in caplog.text
    assert "further report of step 1" not in caplog.text
