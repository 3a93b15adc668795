"""A value is shown with the parameters that produced it, and with several objectives no trial is called the best."""

import csv
import io
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from fake_study_service import FakeStudyService
from scripted_study import Script, race

from headrace import AsyncClient, Client
from headrace.client.lineage import schedule
from headrace.errors import SeveralObjectivesError
from headrace.report.data import gather
from headrace.report.page import render
from headrace.v1 import spec_pb2

Invoke = Callable[..., Any]


@pytest.fixture
def own(fake: FakeStudyService) -> Script:
    """A study that the test may change."""
    return fake.add(race())


@pytest.fixture
def copied(own: Script) -> float:
    """Trial 4 had its best value with the returned rate, then copied and continued with 0.42873."""
    trial = own.final.trials[4]
    before = trial.parameters.values["lr"].float_value
    exploit = trial.lineage.add(rung=1, step=trial.best_step, donor=f"{own.name}/trials/2")
    exploit.previous_parameters.CopyFrom(trial.parameters)
    trial.parameters.values["lr"].float_value = 0.42873
    exploit.parameters.CopyFrom(trial.parameters)
    return before


def test_a_best_value_is_beside_the_parameters_that_produced_it(
    fake: FakeStudyService, invoke: Invoke, copied: float
) -> None:
    rows = {int(row["trial"]): row for row in csv.DictReader(io.StringIO(invoke("export", "digits").out))}
    assert float(rows[4]["param.lr"]) == copied
    assert float(rows[4]["last_param.lr"]) == 0.42873
    assert rows[3]["last_param.lr"] == rows[3]["param.lr"]
    listed = {one["trial"]: one for one in json.loads(invoke("trials", "digits", "--json").out)}
    assert (listed[4]["params"]["lr"], listed[4]["last_params"]["lr"]) == (copied, 0.42873)
    assert "lr=0.42873" not in invoke("trials", "digits").out
    told = json.loads(invoke("show", "digits", "4", "--json").out)
    assert (told["params"]["lr"], told["last_params"]["lr"]) == (copied, 0.42873)
    shown = invoke("show", "digits", "4").out
    assert "continued with" in shown
    assert "lr=0.42873" in shown
    with Client(fake.address) as client:
        study = client.study("digits")
        one = study.trial(4).info()
        assert (one.params["lr"], one.last_params["lr"]) == (copied, 0.42873)
        assert study.trials()[4].params["lr"] == copied
        assert study.dataframe().loc[4, "param.lr"] == copied
        assert "0.42873" not in render(gather(study)).split("<h2>Trials</h2>")[-1]
        stretches = schedule({trial.number: trial for trial in study.trials()}, 4)
        assert stretches[-1].params["lr"] == 0.42873, "the state now was trained with what it copied"


def test_a_study_whose_trials_copy_nothing_has_no_column_of_last_parameters(
    own: Script, invoke: Invoke
) -> None:
    assert not any(trial.lineage for trial in own.final.trials)
    assert "last_param" not in invoke("export", "digits").out


@pytest.fixture
def several(own: Script) -> Script:
    """Two objectives; trial 22 has the best value of the first one, and is not on the Pareto front."""
    own.final.study.spec.policy.CopyFrom(spec_pb2.Policy(run_all=spec_pb2.RunAllPolicy()))
    own.final.study.spec.further_objectives.add(metric="accuracy", goal=spec_pb2.GOAL_MAXIMIZE)
    for trial in own.final.trials:
        if "val_loss" in trial.metrics:
            trial.objective_values.update(trial.metrics)
    own.final.study.status.front.add().CopyFrom(own.final.trials[2])
    return own


async def test_of_several_objectives_no_trial_is_the_best(fake: FakeStudyService, several: Script) -> None:
    with Client(fake.address) as client:
        study = client.study("digits")
        info = study.status()
        with pytest.raises(SeveralObjectivesError, match=r"val_loss, accuracy.*front") as refused:
            study.best()
        assert "study.front()" in str(refused.value)
        with pytest.raises(SeveralObjectivesError):
            _ = info.best
        with pytest.raises(SeveralObjectivesError):
            _ = study.wait().best
        assert [trial.number for trial in study.front()] == [2]
        assert "best" not in repr(info)
        assert "front of 1 trial" in repr(info)
        render(gather(study))
    async with AsyncClient(fake.address) as client:
        with pytest.raises(SeveralObjectivesError):
            await client.study("digits").best()


@pytest.mark.usefixtures("several")
def test_json_of_several_objectives_has_no_best(invoke: Invoke) -> None:
    told = json.loads(invoke("show", "digits", "--json").out)
    assert told["best"] is None
    assert [trial["trial"] for trial in told["front"]] == [2]
    assert "best value" not in invoke("show", "digits", "4").out
    refused = invoke("lineage", "digits")
    assert refused.code == 1
    assert "several objectives" in refused.err


@pytest.mark.usefixtures("several")
def test_trials_off_the_front_are_in_the_order_of_what_is_shown(several: Script, invoke: Invoke) -> None:
    """By the last report, not by the best value of any step."""
    several.final.trials[4].best_value = 1e-9
    listed = json.loads(invoke("trials", "digits", "--json").out)
    sound = [one for one in listed[1:] if one["objectives"] and one["reason"] != "failed"]
    values = [one["objectives"]["val_loss"] for one in sound]
    assert values == sorted(values)


def test_a_trial_that_diverged_comes_behind_the_sound_ones_and_is_named_where_it_is_the_best(
    own: Script, invoke: Invoke
) -> None:
    trials = sorted(
        (trial for trial in own.final.trials if trial.HasField("best_value")), key=lambda one: one.best_value
    )
    trials[0].value = math.nan
    listed = [one["trial"] for one in json.loads(invoke("trials", "digits", "--json").out)]
    number = int(trials[0].name.rpartition("/")[2])
    assert number in listed[-(len(listed) - len(trials)) - 2 :], (
        "behind it are those that failed or have no value"
    )
    own.final.study.status.best.CopyFrom(trials[0])
    told = invoke("best", "digits")
    assert f"the last value of trial {number}, the best of them, is nan" in told.err
    assert "diverged since" in invoke("studies").out


def test_the_best_of_a_population_is_shown_with_its_schedule(
    fake: FakeStudyService, invoke: Invoke, own: Script
) -> None:
    """Trial 4 trained the best state up to step 3, and with another rate after that: no single rate made it."""
    own.final.study.spec.policy.pbt.interval = 3
    best, donor = own.final.trials[22], own.final.trials[4]
    first = donor.parameters.values["lr"].float_value
    copied = best.lineage.add(rung=0, step=3, donor=f"{own.name}/trials/4")
    copied.previous_parameters.CopyFrom(best.parameters)
    best.parameters.values["lr"].float_value = 0.0625
    copied.parameters.CopyFrom(best.parameters)
    own.final.study.status.best.CopyFrom(best)
    told = invoke("best", "digits").out.splitlines()
    (warned,) = [line for line in told if line.startswith("# schedule: ")]
    assert "of the best step alone" in warned
    before, last = (line for line in told if line.startswith("#   steps"))
    assert before.startswith("#   steps 1 to 3: trial 4: ")
    assert f"lr={first:.5g}" in before
    assert last.startswith("#   steps 4 to 27: trial 22: ")
    assert "lr=0.0625" in last
    assert "lr: 0.0625" in told
    shown = invoke("show", "digits").out
    assert "these are the values at the best step" in shown
    assert "trial 4: " in shown


def test_a_schedule_ends_at_the_step_that_is_asked_for(
    fake: FakeStudyService, invoke: Invoke, copied: float
) -> None:
    """Trial 4 had its best value before it copied trial 2, so nothing of trial 2 contributed to it."""
    with Client(fake.address) as client:
        trials = {trial.number: trial for trial in client.study("digits").trials()}
    best_step = trials[4].best_step
    (stretch,) = schedule(trials, 4, at=best_step)
    assert (stretch.start, stretch.end, stretch.trial, stretch.params["lr"]) == (0, best_step, 4, copied)


def test_other_studies_have_no_schedule(fake: FakeStudyService, invoke: Invoke, own: Script) -> None:
    assert "schedule" not in invoke("best", "digits").out
    assert "schedule" not in invoke("show", "digits").out
