"""What the scheduler leaves out of an answer: every command that omits something says so."""

import json
from pathlib import Path

import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService
from scripted_study import Script, race

from headrace import Client
from headrace.v1 import spec_pb2, study_pb2

NO_FRONT = "the front is left out: it takes more than 10 s"
LARGE = "left out, because the trial takes 5.0 MiB: the parameters"


@pytest.fixture
def frontless(fake: FakeStudyService) -> Script:
    """A completed study of two objectives whose front cannot be computed."""
    script = fake.add(race())
    for moment in script.moments:
        moment.study.spec.policy.CopyFrom(spec_pb2.Policy(run_all=spec_pb2.RunAllPolicy()))
        moment.study.spec.further_objectives.add(metric="accuracy", goal=spec_pb2.GOAL_MAXIMIZE)
        moment.study.unshown = NO_FRONT
    return script


def test_a_study_without_its_front_is_no_failure(frontless: Script, invoke: Invoke) -> None:
    told = invoke("attach", "digits")
    assert told.code == 0, told.out
    assert f"Pareto front  {NO_FRONT}" in told.out
    assert "no trial reported" not in told.out
    assert json.loads(invoke("attach", "digits", "--json").out.splitlines()[-1])["unshown"] == NO_FRONT


def test_a_study_without_its_front_whose_trials_failed_is_one(frontless: Script, invoke: Invoke) -> None:
    for moment in frontless.moments:
        moment.study.status.best.termination_reason = 3
    assert invoke("attach", "digits").code == 1


def test_best_and_show_tell_what_is_left_out(frontless: Script, invoke: Invoke, tmp_path: Path) -> None:
    for arguments, out in ((["best", "digits"], ""), (["best", "digits", "--json"], "[]\n")):
        result = invoke(*arguments)
        assert (result.code, result.out, result.err) == (1, out, f"study digits: {NO_FRONT}\n")
    assert f"Pareto front  {NO_FRONT}" in invoke("show", "digits").out
    assert json.loads(invoke("show", "digits", "--json").out)["unshown"] == NO_FRONT
    page = tmp_path / "report.html"
    invoke("report", "digits", "-o", str(page))
    assert f"Not on this page: study digits: {NO_FRONT}" in page.read_text()


def test_a_trial_whose_parameters_are_left_out_says_so(fake: FakeStudyService, invoke: Invoke) -> None:
    script = fake.add(race())
    for trial in (script.final.trials[22], script.final.study.status.best):
        trial.ClearField("parameters")
        trial.unshown = LARGE
    for arguments in (["show", "digits", "22"], ["why", "digits", "22"], ["best", "digits"]):
        assert f"trial digits/22: {LARGE}" in invoke(*arguments).err
    for arguments in (["trials", "digits"], ["export", "digits"], ["lineage", "digits"]):
        assert f"trial digits/22: {LARGE}" in invoke(*arguments).err
    assert json.loads(invoke("show", "digits", "22", "--json").out)["unshown"] == LARGE


@pytest.mark.parametrize("arguments", [["export"], ["export", "--reports"], ["lineage"]])
def test_a_list_that_is_not_whole_says_so(
    fake: FakeStudyService, invoke: Invoke, arguments: list[str]
) -> None:
    fake.unshown.append(study_pb2.Unshown(name="studies/digits/trials/3", reason="its row is torn"))
    result = invoke(arguments[0], "digits", *arguments[1:])
    assert result.code == 0
    assert "studies/digits/trials/3 cannot be shown: its row is torn" in result.err


def test_a_report_says_what_is_not_on_it(fake: FakeStudyService, invoke: Invoke, tmp_path: Path) -> None:
    fake.unshown.append(study_pb2.Unshown(name="studies/digits/trials/3", reason="its row is torn"))
    page = tmp_path / "report.html"
    invoke("report", "digits", "-o", str(page))
    assert "Not on this page: studies/digits/trials/3 cannot be shown: its row is torn" in page.read_text()


def test_a_data_frame_that_is_not_whole_warns(fake: FakeStudyService) -> None:
    fake.unshown.append(study_pb2.Unshown(name="studies/digits/trials/3", reason="its row is torn"))
    with Client(fake.address) as client, pytest.warns(UserWarning, match="trials/3 cannot be shown") as told:
        client.study("digits").dataframe()
    assert told[0].filename == __file__


def test_the_schedule_of_a_copy_whose_donor_is_left_out_begins_late(
    fake: FakeStudyService, invoke: Invoke
) -> None:
    script = fake.add(race())
    best = script.final.trials[22]
    best.lineage.add(rung=1, step=3, donor="studies/digits/trials/99", parameters=best.parameters)
    result = invoke("lineage", "digits", "22", "--json")
    assert [stretch["start"] for stretch in json.loads(result.out)["schedule"]] == [3]
