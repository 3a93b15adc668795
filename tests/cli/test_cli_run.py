"""`run` and `attach`: events as lines, JSON, exit codes, preflight, the summary, detaching."""

import json
import re
import signal
import threading
import time
from collections.abc import Callable
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
from headrace.client.model import StudyState, TerminationReason, TrialFailure, TrialState
from headrace.v1 import study_pb2, trial_pb2


def creates(fake: FakeStudyService, change: Callable[[Script], None], **options: int) -> None:
    """The service creates studies that have already run, each changed this way."""

    def answer(name: str) -> Script:
        script = race(name, **options)
        change(script)
        return script

    fake.answers["CreateStudy"] = answer


def test_a_run_in_a_pipe_prints_lines_and_a_summary(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    result = invoke("run", str(study_file), "--name", "mine")
    assert result.code == 0
    assert "\x1b" not in result.out
    assert re.search(r"\d\d:\d\d:\d\d  trial 5 paused: rank 3 of 5", result.out)
    assert "best so far: val_loss" in result.out
    assert "Study mine completed" in result.out
    assert "val_loss 0.6059 at the full budget (27 steps)" in result.out
    assert "0.2382 better than the baseline (39.3 %)" in result.out
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


def test_a_run_says_before_anything_is_created_that_trials_repeat_points(
    fake: FakeStudyService, invoke: Invoke, tmp_path: Path
) -> None:
    file = tmp_path / "few.yaml"
    few = (
        "name: few\nobjective: {metric: val_loss, goal: minimize}\ntrial: {callable: train:train}\n"
        "space: {n: {type: int, low: 1, high: 6}}\npolicy: {kind: run_all}\nsteps: 3\ntrials: 20\n"
    )
    file.write_text(few)
    result = invoke("run", str(file), "--detach", "--no-preflight")
    assert result.code == 0
    assert (
        "The space has 6 points and the study 20 trials: once every point has been tried, 14 trials will repeat one, "
        "which only shows how noisy results are. To try each point once, set `trials: 6`; to try more points, "
        "enlarge the space. "
    ) in " ".join(result.err.split())
    refused = invoke("run", str(file), "--detach", "--no-preflight")  # the name is taken now
    assert refused.code == 2
    assert "The space has 6 points" in refused.err.partition("exists already")[0]


def test_a_grid_is_created_with_as_many_configurations_as_it_has(
    fake: FakeStudyService, invoke: Invoke, tmp_path: Path
) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text(
        "name: grid\nobjective: {metric: val_loss, goal: minimize}\ntrial: {callable: train:train}\nsampler: grid\n"
        "space: {n: {type: int, low: 1, high: 6}}\npolicy: {kind: run_all}\nsteps: 3\ntrials: 20\n"
    )
    result = invoke("run", str(file), "--detach", "--no-preflight")
    assert f"Study grid created on {fake.address}: 6 configurations, run_all" in result.out
    assert "points" not in result.err


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
        "scope",
        "k",
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
        "infeasible",
        "failures",
        "scale_choice",
        "transferred",
        "code_changed",
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
    def change(script: Script) -> None:
        script.final.study.state = state
        script.final.study.detail = "no trial reports val_loss"

    creates(fake, change, trials=4)
    result = invoke("run", str(study_file))
    assert result.code == 1
    assert f"Study fresh {word}: no trial reports val_loss" in result.out
    assert "saved" not in result.out


def test_attach_exits_like_run(fake: FakeStudyService, invoke: Invoke) -> None:
    assert "Study digits completed" in invoke("attach", "digits").out
    lines = invoke("attach", "digits", "--json").out.splitlines()
    assert len(lines) == len(fake.scripts["studies/digits"].events) + 1


def test_the_consoles_page_is_named_if_it_shows_this_scheduler(
    fake: FakeStudyService, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, study_file: Path
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    (tmp_path / "console").write_text("http://127.0.0.1:7450\n")
    (tmp_path / "address").write_text("127.0.0.1:1\n")
    assert "Watch it at" not in invoke("--address", fake.address, "attach", "digits").err
    (tmp_path / "address").write_text(f"{fake.address}\n")
    assert "Watch it at http://127.0.0.1:7450/studies/digits\n" in invoke("attach", "digits").err
    assert "/studies/fresh\n" in invoke("run", str(study_file), "--name", "fresh", "--detach").err


def test_pauses_without_a_checkpoint_are_warned_of_once(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    warning = "trials save no checkpoint, so a paused one restarts from step 0"
    assert warning not in invoke("run", str(study_file), "--name", "saving").out

    def change(script: Script) -> None:
        for event in script.events:
            if event.trial_moved.action == "pause":
                event.trial_moved.action = "vacate"

    creates(fake, change)
    said = invoke("run", str(study_file), "--name", "forgetful").out
    assert said.count(warning) == 1
    missing = (
        "none: nothing to load. A trial that tracks its state writes one at each rung, and at its own end"
    )
    for told in (said, invoke("show", "forgetful").out):
        assert missing in told
    fake.scripts["studies/forgetful"].final.study.status.best.checkpoint.uri = "file:///saved"
    assert missing not in invoke("show", "forgetful").out


def test_a_long_error_is_told_in_full_once(fake: FakeStudyService, invoke: Invoke, study_file: Path) -> None:
    def change(script: Script) -> None:
        for row, event in enumerate(script.events):
            event.trial_moved.action = "retry"
            event.trial_moved.detail = (
                f"RuntimeError: {'mat1 and mat2 cannot be multiplied ' * 8}, rows {row}"
            )

    creates(fake, change)
    said = " ".join(invoke("run", str(study_file), "--name", "long").out.split())
    assert said.count("mat1 and mat2 cannot be multiplied , rows") == 1
    assert said.count("… (as above)") == len(race("long").events) - 1


def test_warnings_of_trials_are_reported_once_where_they_differ_by_numbers_alone(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    def change(script: Script) -> None:
        for event, step in zip(script.events, (3, 9), strict=False):
            event.trial_number = step
            event.trial_warned.warning = f"the loop begins anew at step {step}"
            event.message = f"trial {step} warns: {event.trial_warned.warning}"

    creates(fake, change)
    said = " ".join(invoke("run", str(study_file), "--name", "warned").out.split())
    assert said.count("the loop begins anew") == 1
    assert "Warning: trial 3: the loop begins anew at step 3" in said


def test_a_trial_that_failed_before_its_first_rung_is_not_said_to_track_nothing(script: Script) -> None:
    study = convert.study(script.final.study)
    assert study.best is not None
    failed = replace(study.best, reason=TerminationReason.FAILED, rungs=(), checkpoint=None)
    told = dict(Summary(study=replace(study, leader=failed)).lines())["checkpoint"]
    assert told == "none: the trial failed before its first rung, where it would have saved"


NO_DATA = "RuntimeError: no data"
FAILED = [  # detail, worker
    ("exit status 1", "node-2"),
    (f"{NO_DATA} (attempt 2 of 2)", "node-1"),
    (f"{NO_DATA}\nmore (attempt 2 of 3; not tried again: the same error at the same place)", "node-1"),
    ("ValueError: loss 0.5 of step 3", None),
    ("ValueError: loss 1e-05 of step 9", "node-1"),
    (NO_DATA, "node-1"),
]


@pytest.mark.parametrize(
    ("failed", "count", "told"),
    [
        (FAILED[:1], 1, "1 of 28 trials failed: 1 × exit status 1 (trial 0 on worker 'node-2')"),
        (
            FAILED,
            6,
            (
                f"6 of 28 trials failed: 3 × {NO_DATA} (trials 1, 2, 5 on worker 'node-1'), 2 × ValueError: loss 0.5 "
                "of step 3 and the like (trials 3, 4), 1 × exit status 1 (trial 0 on worker 'node-2')"
            ),
        ),
        (
            [("A", "w"), ("B", "w"), ("C", "w"), ("D", "w"), ("E", "w")],
            9,
            (
                "9 of 28 trials failed (the first 5): 1 × A (trial 0 on worker 'w'), 1 × B (trial 1 on worker 'w'), "
                "1 × C (trial 2 on worker 'w'), 2 other causes"
            ),
        ),
    ],
)
def test_failures_are_told_by_their_causes(
    script: Script, failed: list[tuple[str, str | None]], count: int, told: str
) -> None:
    study = convert.study(script.final.study)
    failures = tuple(
        TrialFailure(trial=number, detail=detail, worker=worker)
        for number, (detail, worker) in enumerate(failed)
    )
    study = replace(study, failures=failures, counts=replace(study.counts, failed=count))
    assert dict(Summary(study=study).lines())["failures"] == told


def test_steps_that_were_repeated_are_not_told_as_a_part_of_all(script: Script) -> None:
    study = replace(convert.study(script.final.study), state=StudyState.STOPPED, steps_spent=800)
    told = dict(Summary(study=study).lines())["steps"]
    assert told == "800: trials that were lost repeat steps. Running every trial to the end takes 756"


def test_a_population_says_what_its_members_change(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
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
    assert told == "45 s ago; nothing stops one that hangs: trial.report_timeout_s would"
    template = study.spec.template.model_copy(update={"report_timeout": timedelta(seconds=60)})
    patient = study.spec.model_copy(update={"template": template})
    assert (
        wording.silence(running, patient, BEGAN, later)
        == "45 s ago; one that hangs is stopped after 1 min 00 s"
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
        best.best_step = best.score_step = 26
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


def test_what_a_warm_start_brings_is_reported_once(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    def change(script: Script) -> None:
        for moment in script.moments:
            moment.study.spec.warm_start.study = "digits-may"
            moment.study.spec.sampler.tpe.SetInParent()
        for event in script.events:
            if event.HasField("trial_created") and event.trial_number > 1:
                event.trial_created.proposal.warm_results = 9 + event.trial_number

    creates(fake, change)
    said = invoke("run", str(study_file), "--name", "warm").out
    assert said.count("The sampler starts from") == 1
    assert "The sampler starts from 11 results of study digits-may." in said


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


def test_a_best_trial_that_failed_is_not_praised(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    def change(script: Script) -> None:
        for moment in script.moments[-20:]:
            moment.study.status.best.termination_reason = trial_pb2.TERMINATION_REASON_FAILED

    creates(fake, change, trials=4)
    fake.batch = 5
    said = invoke("run", str(study_file)).out
    assert "best so far: val_loss" in said
    assert "best so far (failed): val_loss" in said
    _, row = (line for line in invoke("studies").out.splitlines() if line.startswith(("STUDY", "fresh")))
    assert " (failed) " in row


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


def test_a_lost_connection_is_reported_once_and_its_return_too(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    fake.cut_watch_after.extend([(1, grpc.StatusCode.UNAVAILABLE), *[(0, grpc.StatusCode.UNAVAILABLE)] * 3])
    said = invoke("run", str(study_file)).err
    assert said.count("Connection lost; reconnecting.") == 1
    assert said.count("Reconnected.") == 1


@pytest.mark.full
def test_the_live_view_says_that_it_tries_again(fake: FakeStudyService, study_file: Path) -> None:
    fake.batch, fake.watch_delay_s = 2, 0.5
    with terminal("run", str(study_file)) as screen:
        screen.read_until("of run-all")
        deadline = time.monotonic() + 30
        while not fake.requests["WatchStudy"] and time.monotonic() < deadline:  # the picture comes first
            threading.Event().wait(0.05)
        fake.stop()
        screen.read_until("Connection lost; reconnecting")


def test_a_taken_name_says_how_to_continue(fake: FakeStudyService, invoke: Invoke, study_file: Path) -> None:
    assert invoke("run", str(study_file), "--name", "taken").code == 0
    refused = invoke("run", str(study_file), "--name", "taken")
    said = " ".join(refused.err.split())
    assert refused.code == 2, "nothing was started"
    assert "`headrace run --suffix` creates taken-2, `--replace` deletes the ended one first" in said
    assert "Study taken-2 created" in invoke("run", str(study_file), "--name", "taken", "--suffix").out
    assert "Study taken-3 created" in invoke("run", str(study_file), "--name", "taken", "--suffix").out
    assert "Study taken created" in invoke("run", str(study_file), "--name", "taken", "--replace").out
    assert "Study new created" in invoke("run", str(study_file), "--name", "new", "--replace").out


def test_nothing_that_came_with_a_running_study_is_replaced(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    study_file.write_text(study_file.read_text() + "transfer: {callable: train:train, top: 1}\n")
    fake.add(race("busy"), shown=3)
    fake.add(race("busy-target"))
    refused = invoke("run", str(study_file), "--name", "busy", "--replace")
    assert refused.code == 1
    assert "headrace stop busy" in " ".join(refused.err.split())
    assert {"studies/busy", "studies/busy-target"} <= fake.scripts.keys(), "it looks before it deletes"
