"""A trial that got worse after an extension counts with its earlier result, wherever its values are shown: the
baseline and the best one alike. Its last report is unchanged, and is shown as the last report."""

import csv
import io
import json
from dataclasses import replace

import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService
from rich.console import Console
from scripted_study import Script, race

from headrace import Client
from headrace.cli.live import Picture
from headrace.client import wording
from headrace.report.data import gather
from headrace.report.page import render
from headrace.report.parallel import parallel_coordinates
from headrace.v1 import spec_pb2, trial_pb2

BEST = 22
COMPLETED = trial_pb2.TERMINATION_REASON_COMPLETED


def keep(trial: trial_pb2.Trial, **metrics: float) -> None:
    """The trial counts with its result at step 9, and trained on to step 27: worse, and with too much memory."""
    trial.metrics["mem"] = 99
    trial.earlier_ends.add(
        reason=COMPLETED, step=9, budget=9, score=metrics["val_loss"], score_step=9, metrics=metrics
    )
    trial.counted_end = 0
    trial.score, trial.score_step, trial.feasible = metrics["val_loss"], 9, True


@pytest.fixture
def own(fake: FakeStudyService) -> Script:
    script = race()
    script.final.study.spec.objective.scope = spec_pb2.SCOPE_LAST
    script.final.study.spec.constraints.add(metric="mem", at_most=8.0)
    for trial in script.final.trials:
        trial.metrics["mem"] = 2.0
    return fake.add(script)


@pytest.fixture
def one(own: Script) -> Script:
    """One objective. The last report of the baseline has 0.6059, that of the best trial 0.36774."""
    keep(own.final.trials[0], val_loss=0.5, mem=1)
    keep(own.final.trials[BEST], val_loss=0.25, mem=1)
    status = own.final.study.status
    status.baseline.CopyFrom(own.final.trials[0])
    status.best.CopyFrom(own.final.trials[BEST])
    return own


@pytest.fixture
def several(own: Script) -> Script:
    """The same with a second objective. The last report of the baseline has an accuracy of 0.79803."""
    own.final.study.spec.policy.CopyFrom(spec_pb2.Policy(run_all=spec_pb2.RunAllPolicy()))
    own.final.study.spec.further_objectives.add(metric="accuracy", goal=spec_pb2.GOAL_MAXIMIZE)
    for trial in own.final.trials:
        for name in ("val_loss", "accuracy"):
            if name in trial.metrics:
                trial.objective_values[name] = trial.metrics[name]
    for number, point in ((0, (0.5, 0.875)), (BEST, (0.25, 0.9375))):
        trial = own.final.trials[number]
        keep(trial, val_loss=point[0], accuracy=point[1], mem=1)
        trial.objective_values["val_loss"], trial.objective_values["accuracy"] = point
    status = own.final.study.status
    status.ClearField("best")
    status.baseline.CopyFrom(own.final.trials[0])
    status.front.add().CopyFrom(own.final.trials[BEST])
    return own


def words(text: str) -> str:
    return " ".join(text.split())


def page_of(fake: FakeStudyService) -> str:
    with Client(fake.address) as client:
        return render(gather(client.study("digits")))


def test_the_baseline_is_compared_by_its_earlier_result_and_told_with_both(
    fake: FakeStudyService, invoke: Invoke, one: Script
) -> None:
    said = words(invoke("show", "digits").out)
    assert "0.6059 at the full budget (27 steps); what counts is 0.5 at step 9" in said
    assert "0.25 better than the baseline (50.0 %)" in said
    page = page_of(fake)
    assert '<div class="figure">0.5</div>' in page
    assert '<div class="figure">0.6059</div>' not in page


def test_the_best_of_a_baseline_is_told_with_the_constraint_that_it_meets(
    invoke: Invoke, one: Script
) -> None:
    one.final.study.spec.objective.scope = spec_pb2.SCOPE_BEST
    said = words(invoke("show", "digits").out)
    assert "0.6059 at the full budget (27 steps); its best with mem ≤ 8 was 0.5 at step 9" in said


def test_a_baseline_that_failed_after_an_extension_is_reported_with_what_counts(
    invoke: Invoke, one: Script
) -> None:
    baseline = one.final.study.status.baseline
    baseline.step, baseline.termination_reason = 12, trial_pb2.TERMINATION_REASON_FAILED
    said = words(invoke("show", "digits").out)
    assert "did not reach the full budget (failed, 12 steps); what counts is 0.5 at step 9" in said


def test_the_values_of_several_objectives_are_reported_with_the_step_that_they_are_of(
    fake: FakeStudyService, invoke: Invoke, several: Script
) -> None:
    said = words(invoke("show", "digits").out)
    last = "val_loss 0.6059, accuracy 0.79803 at the full budget (27 steps)"
    assert f"{last}; what counts is val_loss 0.5, accuracy 0.875 at step 9" in said
    assert "counts val_loss 0.25, accuracy 0.9375 at step 9" in words(invoke("show", "digits", str(BEST)).out)
    page = page_of(fake)
    assert '<div class="figure">val_loss 0.5, accuracy 0.875</div>' in page
    assert "minimize val_loss, maximize accuracy" in page
    assert "by its last report" not in page
    assert "its objectives in its last report" not in page


def test_the_live_view_shows_all_objectives_of_the_baseline(fake: FakeStudyService, several: Script) -> None:
    with Client(fake.address) as client:
        study = client.study("digits").status()
    assert study.created is not None
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(Picture(study, expected_steps=100, now=study.created))
    shown = console.export_text()
    assert "minimize val_loss, maximize accuracy" in shown
    assert "val_loss 0.5, accuracy 0.875  trial 0, step 9" in shown


def test_exports_have_the_values_that_count_beside_those_of_the_last_report(
    fake: FakeStudyService, invoke: Invoke, several: Script
) -> None:
    row = list(csv.DictReader(io.StringIO(invoke("export", "digits").out)))[BEST]
    names = ("counted.val_loss", "counted.accuracy", "counted.mem", "metric.mem")
    assert [row[name] for name in names] == ["0.25", "0.9375", "1.0", "99.0"]
    assert (row["front"], row["score_step"]) == ("true", "9")
    assert float(row["metric.val_loss"]) == several.final.trials[BEST].metrics["val_loss"]
    same = json.loads(invoke("export", "digits", "--format", "json").out)[BEST]
    assert (same["counted.accuracy"], same["counted.mem"]) == (0.9375, 1.0)
    with Client(fake.address) as client:
        frame = client.study("digits").dataframe()
    assert frame.loc[BEST, "counted.accuracy"] == 0.9375
    assert frame.loc[3, "counted.accuracy"] == frame.loc[3, "metric.accuracy"]


def test_the_metrics_that_count_have_a_name_of_their_own(
    fake: FakeStudyService, invoke: Invoke, one: Script
) -> None:
    with Client(fake.address) as client:
        best = client.study("digits").best()
        other = client.study("digits").trial(3).info()
    assert best is not None
    assert best.counted_metrics == {"val_loss": 0.25, "mem": 1}
    assert best.metrics["mem"] == 99
    assert other.counted_metrics == other.metrics
    assert json.loads(invoke("best", "digits", "--json").out)["counted_metrics"] == {
        "val_loss": 0.25,
        "mem": 1,
    }


def test_an_earlier_result_is_told_apart_from_a_better_value_that_a_failure_took_away(
    invoke: Invoke, one: Script
) -> None:
    one.final.study.spec.objective.scope = spec_pb2.SCOPE_BEST
    trial = one.final.trials[BEST]
    trial.best_value, trial.best_step = 0.125, 12
    said = words(invoke("show", "digits", str(BEST)).out)
    assert "best value 0.125 at step 12 counts 0.25 at step 9" in said


def test_a_constraint_is_missed_by_the_result_that_counts(fake: FakeStudyService, one: Script) -> None:
    with Client(fake.address) as client:
        study = client.study("digits")
        spec, best = study.status().spec, study.best()
    assert best is not None
    assert best.counted_end is not None
    worse = replace(best.counted_end, metrics={"val_loss": 0.25, "mem": 9.0})
    assert wording.misses(replace(best, counted_end=worse), spec).endswith("with 9")


def test_the_figure_of_parameters_says_that_earlier_results_count(
    fake: FakeStudyService, one: Script
) -> None:
    with Client(fake.address) as client:
        data = gather(client.study("digits"))
    values = parallel_coordinates(data).data[0].dimensions[-1]["values"]
    assert 0.25 in values
    assert "its last value, or that of before it continued where that is better" in render(data)
    undisturbed = tuple(replace(trial, counted_end=None) for trial in data.trials)
    assert "before it continued" not in render(
        replace(data, trials=undisturbed, study=replace(data.study, leader=None, baseline=None))
    )
