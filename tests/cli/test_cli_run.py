"""`run` and `attach`: events as lines, JSON, exit codes, preflight, the summary, detaching."""

import json
import re
import signal
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService
from scripted_study import BEGAN, Script, race
from terminal import terminal

from headrace.cli import wording
from headrace.cli.summary import Summary
from headrace.cli.wording import number
from headrace.client import convert
from headrace.client.model import TerminationReason, TrialState
from headrace.v1 import study_pb2, trial_pb2


def test_a_run_in_a_pipe_prints_lines_and_a_summary(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    fake.answers["CreateStudy"] = race
    result = invoke("run", str(study_file), "--name", "mine")
    assert result.code == 0
    assert "\x1b" not in result.out
    assert re.search(r"\d\d:\d\d:\d\d  trial 5 paused: rank 3 of 5", result.out)
    assert "best so far: val_loss" in result.out
    assert "Study mine completed" in result.out
    assert "val_loss 0.6059 at the full budget (27 steps)" in result.out
    assert "0.2382 better than the baseline's best (39.3 %)" in result.out
    assert "155 of the 756 that running every trial to the end takes" in result.out
    assert "(79 % saved, in part because 1 trial failed)" in result.out
    assert "4 completed, 23 stopped early, 1 failed" in result.out
    assert "1 min 24 s" in result.out
    assert fake.requests["CreateStudy"][0].study_id == "mine"


def test_a_study_without_early_stopping_names_its_last_step_and_no_rungs(
    fake: FakeStudyService, invoke: Invoke, tmp_path: Path
) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(
        "name: all\nobjective: {metric: val_loss, goal: minimize}\ntrial: {callable: train:train}\n"
        "space: {lr: {type: float, low: 0.1, high: 1}}\npolicy: {kind: run_all}\nsteps: 3\ntrials: 4\n"
    )
    result = invoke("run", str(file), "--detach", "--no-preflight")
    assert f"Study all created on {fake.address}: 4 configurations, run_all to step 3, minimize" in result.out


def test_a_run_as_json_prints_every_event_and_the_summary(
    fake: FakeStudyService, invoke: Invoke, study_file: Path, tmp_path: Path
) -> None:
    page = tmp_path / "out" / "report.html"
    result = invoke("run", str(study_file), "--json", "--report", str(page))
    lines = [json.loads(line) for line in result.out.splitlines()]
    events, summary = lines[:-1], lines[-1]
    assert [event["cursor"] for event in events] == list(range(1, len(events) + 1))
    assert {event["type"] for event in events} == {"event"}
    assert set(summary) == {
        "type",
        "study",
        "state",
        "detail",
        "metric",
        "goal",
        "best",
        "baseline",
        "baseline_value",
        "improvement",
        "steps_spent",
        "steps_run_all",
        "saved_percent",
        "trials",
        "completed",
        "stopped_early",
        "failed",
        "cancelled",
        "failures",
        "wall_time_s",
        "report",
        "front",
        "unshown",
    }
    assert summary["state"] == "completed"
    assert summary["improvement"] == pytest.approx(0.2382, abs=1e-4)
    assert summary["report"] == str(page)
    assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("state", "word"),
    [(study_pb2.STUDY_STATE_FAILED, "failed"), (study_pb2.STUDY_STATE_STOPPED, "was stopped")],
)
def test_a_study_that_does_not_complete_exits_with_1(
    fake: FakeStudyService, invoke: Invoke, study_file: Path, state: study_pb2.StudyState.ValueType, word: str
) -> None:
    def failing(name: str):  # type: ignore[no-untyped-def]
        script = race(name, trials=4)
        script.final.study.state = state
        script.final.study.detail = "no trial reports val_loss"
        return script

    fake.answers["CreateStudy"] = failing
    result = invoke("run", str(study_file))
    assert result.code == 1
    assert f"Study fresh {word}: no trial reports val_loss" in result.out
    assert "saved" not in result.out


def test_attach_exits_like_run(fake: FakeStudyService, invoke: Invoke) -> None:
    assert "Study digits completed" in invoke("attach", "digits").out
    lines = invoke("attach", "digits", "--json").out.splitlines()
    assert len(lines) == len(fake.scripts["studies/digits"].events) + 1


def test_pauses_without_a_checkpoint_are_warned_of_once(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    warning = "trials save no checkpoint, so a paused one begins again from step 0"
    assert warning not in invoke("run", str(study_file), "--name", "saving").out

    def forgetful(name: str):  # type: ignore[no-untyped-def]
        script = race(name)
        for event in script.events:
            if event.trial_moved.action == "pause":
                event.trial_moved.action = "vacate"
        return script

    fake.answers["CreateStudy"] = forgetful
    said = invoke("run", str(study_file), "--name", "forgetful").out
    assert said.count(warning) == 1
    missing = "none: a trial that goes on begins again from step 0, unless it tracks its state"
    for told in (said, invoke("show", "forgetful").out):
        assert missing in told
    fake.scripts["studies/forgetful"].final.study.status.best.checkpoint.uri = "file:///saved"
    assert missing not in invoke("show", "forgetful").out


def test_a_trial_that_failed_before_its_first_rung_is_not_said_to_track_nothing(script: Script) -> None:
    study = convert.study(script.final.study)
    assert study.best is not None
    failed = replace(study.best, reason=TerminationReason.FAILED, rungs=(), checkpoint=None)
    told = dict(Summary(study=replace(study, best=failed)).lines())["checkpoint"]
    assert told == "none: the trial failed before its first rung, where it would have saved"


def test_a_population_says_what_its_members_change(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    fake.answers["CreateStudy"] = race
    note = "Members of the population change "
    assert note not in invoke("run", str(study_file), "--name", "asha").err
    text = study_file.read_text()
    assert "policy:" in text
    study_file.write_text(
        re.sub(r"^policy:.*$", "steps: 27\npolicy: {kind: pbt, mutable: [lr]}", text, flags=re.MULTILINE)
    )
    said = invoke("run", str(study_file), "--name", "population").err
    assert f"{note}lr while they train" in " ".join(said.split())


def test_a_trial_on_a_slot_says_when_it_was_heard_of(script: Script) -> None:
    study = convert.study(script.final.study)
    assert study.best is not None
    running = replace(study.best, state=TrialState.RUNNING)
    later = BEGAN + timedelta(seconds=45)
    told = wording.silence(running, study.spec, BEGAN, later)
    assert told == "45 s ago; nothing ends one that hangs: trial.report_timeout_s would"
    template = study.spec.template.model_copy(update={"report_timeout": timedelta(seconds=60)})
    patient = study.spec.model_copy(update={"template": template})
    assert (
        wording.silence(running, patient, BEGAN, later)
        == "45 s ago; one that hangs is ended after 1 min 00 s"
    )
    assert wording.silence(study.best, study.spec, BEGAN, later) == ""


def test_a_checkpoint_of_another_step_than_the_best_value_says_its_own_value(
    fake: FakeStudyService, invoke: Invoke
) -> None:
    best = fake.scripts["studies/digits"].final.study.status.best
    before = type(best)()
    before.CopyFrom(best)
    try:
        best.checkpoint.uri, best.checkpoint.step = "file:///saved", 27
        assert best.best_step == 27
        for command in ("show", "best"):
            assert "file:///saved (step 27)" in invoke(command, "digits").out
        best.best_step = 26
        for command in ("show", "best"):
            said = invoke(command, "digits").out
            assert f"file:///saved (step 27, where val_loss is {number(best.value)})" in said
    finally:
        best.CopyFrom(before)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_best_fails_where_there_is_none(
    fake: FakeStudyService, invoke: Invoke, options: tuple[str, ...]
) -> None:
    study = fake.scripts["studies/digits"].final.study
    before = type(study.status)()
    before.CopyFrom(study.status)
    study.status.ClearField("best")
    try:
        result = invoke("best", "digits", *options)
    finally:
        study.status.CopyFrom(before)
    assert (result.code, result.out) == (1, "null\n" if options else "")


def test_what_a_warm_start_brings_is_said_once(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    def warm(name: str) -> Script:
        script = race(name)
        for moment in script.moments:
            moment.study.spec.warm_start.study = "digits-may"
            moment.study.spec.sampler.tpe.SetInParent()
        for event in script.events:
            if event.HasField("trial_created") and event.trial_number > 1:
                event.trial_created.proposal.warm_results = event.trial_number
        return script

    fake.answers["CreateStudy"] = warm
    said = invoke("run", str(study_file), "--name", "warm").out
    assert said.count("The sampler begins from") == 1
    assert "The sampler begins from 2 results of study digits-may." in said


def test_detach_returns_at_once(fake: FakeStudyService, invoke: Invoke, study_file: Path) -> None:
    result = invoke("run", str(study_file), "--detach")
    assert result.code == 0
    assert "headrace attach fresh" in result.out
    assert "headrace stop fresh" in result.out
    assert not fake.requests["WatchStudy"]


def test_a_run_survives_a_scheduler_that_goes_and_comes(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    import grpc

    fake.fail_next("CreateStudy", grpc.StatusCode.UNAVAILABLE, after=True)
    fake.cut_watch_after.extend([(1, grpc.StatusCode.UNAVAILABLE), (1, grpc.StatusCode.UNAVAILABLE)])
    lines = [json.loads(line) for line in invoke("run", str(study_file), "--json").out.splitlines()]
    cursors = [line["cursor"] for line in lines[:-1]]
    assert cursors == list(range(1, len(cursors) + 1))
    assert len(fake.scripts) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: x\n", "objective"),
        ("name: x\nobjective: {metric: val_loss, goal: minimise}\n", "goal"),
        (": : :", "error"),
    ],
)
def test_a_bad_file_exits_with_2_and_starts_nothing(
    fake: FakeStudyService, invoke: Invoke, tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    result = invoke("run", str(file))
    assert (result.code, result.out) == (2, "")
    assert says in result.err
    assert "Traceback" not in result.err
    assert not fake.requests["CreateStudy"]


@pytest.mark.parametrize("name", ["BAD", "../../x"])
def test_a_bad_name_starts_nothing(
    invoke: Invoke, study_file: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        "headrace.cli.run.local_service", lambda *_, **__: pytest.fail("a service is started")
    )
    result = invoke("run", str(study_file), "--local", "--name", name)
    assert result.code == 2
    assert result.err.startswith(f"error: --name: invalid study name '{name}': use lower-case letters")


def test_a_variable_that_is_wrong_is_named(
    invoke: Invoke, study_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HEADRACE_PASS_ENV", "9x")
    result = invoke("run", str(study_file), "--local")
    assert result.code == 2
    assert result.err.startswith("error: HEADRACE_PASS_ENV: is not the name of a variable (got '9x')")


def test_a_best_trial_that_failed_is_not_praised(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    def failing(name: str):  # type: ignore[no-untyped-def]
        script = race(name, trials=4)
        for moment in script.moments[-20:]:
            moment.study.status.best.termination_reason = trial_pb2.TERMINATION_REASON_FAILED
        return script

    fake.answers["CreateStudy"] = failing
    fake.batch = 5
    said = invoke("run", str(study_file)).out
    assert "best so far: val_loss" in said
    assert "best so far (failed): val_loss" in said
    _, row = (line for line in invoke("studies").out.splitlines() if line.startswith(("STUDY", "fresh")))
    assert " (failed) " in row


def test_a_file_that_is_not_there(fake: FakeStudyService, invoke: Invoke) -> None:
    result = invoke("run", "/no/such/study.yaml")
    assert result.code == 2
    assert "/no/such/study.yaml" in result.err


def test_the_preflight_comes_first_and_can_be_skipped(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    (study_file.parent / "train.py").write_text("def train(t):\n    t.report(val_los=1)\n")
    result = invoke("run", str(study_file))
    assert result.code == 2
    assert "Did you mean val_los?" in result.err
    assert not fake.requests["CreateStudy"]
    assert invoke("run", str(study_file), "--no-preflight", "--detach").code == 0


def test_a_folder_that_is_not_there_is_told_before_anything_starts(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    text = study_file.read_text().replace("train:train}", "train:train, working_dir: ./nowhere}")
    study_file.write_text(text)
    result = invoke("run", str(study_file))
    assert (result.code, result.out) == (2, "")
    assert "trial.working_dir" in result.err
    assert not fake.requests["CreateStudy"]


@pytest.mark.parametrize(
    ("resources", "warning"),
    [
        ("gpus: 0", None),
        ("gpus: 1", None),
        ("gpus: 1, gpu_memory_bytes: 137438953473", "1 GPU of 128.0 GiB"),
        ("gpus: 2", "2 GPUs"),
        ("labels: {zone: b}", "label zone=b"),
        ("labels: {zone: a}", None),
    ],
)
def test_needs_that_no_worker_has_are_told(
    fake: FakeStudyService, invoke: Invoke, study_file: Path, resources: str, warning: str | None
) -> None:
    worker = study_pb2.WorkerStatus(name="workers/node-1", connected=True, labels={"zone": "a"})
    worker.slots.add(index=0, device="NVIDIA H200", memory_bytes=2**37)
    worker.slots.add(index=1, device="cpu", memory_bytes=2**38)
    fake.workers.append(worker)
    study_file.write_text(f"{study_file.read_text()}resources: {{{resources}}}\n")
    result = invoke("run", str(study_file), "--detach")
    assert result.code == 0
    if warning is None:
        assert "so trials wait" not in result.err
    else:
        assert f"({warning}), so trials wait" in result.err


def test_a_study_of_this_name_exists(fake: FakeStudyService, invoke: Invoke, study_file: Path) -> None:
    result = invoke("run", str(study_file), "--name", "digits")
    assert result.code == 1
    assert result.err.splitlines()[0] == "error: Study digits exists."
    assert "headrace delete" in result.err


def test_a_run_waits_as_long_as_it_was_told(
    fake: FakeStudyService, invoke: Invoke, study_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TIMEOUT_S", "soon")
    result = invoke("run", str(study_file), "--detach")
    assert result.code == 2
    assert "HEADRACE_TIMEOUT_S" in result.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--local", "--detach"], "error: --local and --detach cannot be combined: the service ends"),
        (["--slots", "2"], "error: --slots needs --local."),
        (["--local", "--address", "127.0.0.1:1"], "error: --local and --address cannot be combined: --local"),
    ],
)
def test_options_that_exclude_each_other(
    fake: FakeStudyService, invoke: Invoke, study_file: Path, options: list[str], said: str
) -> None:
    result = invoke("run", str(study_file), *options)
    assert result.code == 2
    assert result.err.startswith(said)


def test_a_study_without_a_program_is_not_for_workers(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    study_file.write_text(study_file.read_text().replace("trial: {callable: train:train}\n", ""))
    result = invoke("run", str(study_file))
    assert result.code == 2
    assert "study.ask()" in result.err


def test_ctrl_c_on_a_terminal_detaches(fake: FakeStudyService, study_file: Path) -> None:
    fake.batch, fake.watch_delay_s = 2, 1.0
    with terminal("run", str(study_file)) as screen:
        screen.read_until("of run-all")
        screen.child.send_signal(signal.SIGINT)
        seen = screen.read_until("headrace stop fresh")
        assert screen.child.wait(10) == 130
    assert "\x1b[" in seen
    assert "headrace attach fresh" in seen
    assert "Traceback" not in seen


def test_a_lost_connection_is_told_once_and_its_return_too(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    fake.answers["CreateStudy"] = race
    fake.cut_watch_after.extend([(1, grpc.StatusCode.UNAVAILABLE), *[(0, grpc.StatusCode.UNAVAILABLE)] * 3])
    said = invoke("run", str(study_file)).err
    assert said.count("The connection is lost; trying again.") == 1
    assert said.count("The connection is back.") == 1


def test_the_live_view_says_that_it_tries_again(fake: FakeStudyService, study_file: Path) -> None:
    fake.batch, fake.watch_delay_s = 2, 0.5
    with terminal("run", str(study_file)) as screen:
        screen.read_until("of run-all")
        deadline = time.monotonic() + 30
        while not fake.requests["WatchStudy"] and time.monotonic() < deadline:  # the picture is there before
            threading.Event().wait(0.05)
        fake.stop()
        screen.read_until("The connection is lost; trying again")
