"""`Trial` in one process, over a runtime in memory: what it saves, when, and what it refuses."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from counting import Counter, run
from recording_runtime import RecordingRuntime

import headrace
from headrace.trial import Ended
from headrace.trial.runtime import Action


def test_saves_at_milestones(recording: RecordingRuntime) -> None:
    assert run(recording.trial(), Counter()) == [1, 2, 3, 4]
    assert [report.checkpoint_dir is not None for report in recording.reports] == [False, True, False, True]
    assert all(report.train_time_s >= 0 for report in recording.reports)
    assert [report.save_time_s > 0 for report in recording.reports] == [False, True, False, True]
    assert recording.restores == 0, "a start from nothing restores nothing"


def test_checkpoint_every_saves_between_milestones(recording: RecordingRuntime) -> None:
    recording.rungs = (6,)
    run(recording.trial(), Counter(), checkpoint_every=2)
    assert [report.step for report in recording.reports if report.checkpoint_dir] == [2, 4, 6]
    with pytest.raises(ValueError, match="checkpoint_every must be at least 1, not 0"):
        next(recording.trial().steps(checkpoint_every=0))


def test_a_save_can_be_asked_for(recording: RecordingRuntime) -> None:
    t = recording.trial()
    t.state["a"] = 1
    t.report(save=True, loss=1.0)
    assert recording.reports[0].checkpoint_dir is not None


@pytest.mark.parametrize("action", [Action.PAUSE, Action.STOP])
def test_the_loop_ends_when_told(recording: RecordingRuntime, action: Action) -> None:
    recording.decisions = {2: action}
    t = recording.trial()
    assert run(t, Counter()) == [1, 2]
    assert t.ended
    with pytest.raises(Ended, match=f"{action.value}: as told"):
        t.report(count=0)
    assert len(recording.reports) == 2


def test_behind_the_full_budget_a_trial_was_not_told_to_leave_and_reports_no_more(
    recording: RecordingRuntime,
) -> None:
    recording.decisions = {recording.rungs[-1]: Action.STOP}
    t = recording.trial()
    run(t, Counter())
    assert not t.ended
    with pytest.raises(ValueError, match=r"the trial is over, for it has reported step \d+ of \d+\. Report"):
        t.report(count=0)


def test_one_report_behind_the_loop_is_of_the_last_step(recording: RecordingRuntime) -> None:
    recording.rungs = (recording.rungs[-1],)
    t = recording.trial()
    for _ in t.steps():
        pass
    t.report(loss=1.0)
    assert [report.step for report in recording.reports] == [t.max_steps]


def test_a_new_process_continues(recording: RecordingRuntime) -> None:
    run(recording.trial(), Counter(), until=3)
    t, counter = recording.trial(), Counter()
    assert t.resumed
    assert run(t, counter) == [3, 4], "step 3 had no checkpoint: it is trained again"
    assert counter.count == 4
    assert recording.restores == 1


def test_a_trial_that_resumes_between_two_rungs_continues_to_the_next(recording: RecordingRuntime) -> None:
    recording.rungs = (2, 8)
    t = recording.trial()
    t.state["a"] = 1
    t.report(loss=1, step=2)
    t.report(loss=1, step=5, save=True)
    recording.trial().report(loss=1, step=8)
    with pytest.raises(ValueError, match="step 9 is past the full budget of 8 steps"):
        recording.trial().report(loss=1, step=9)


def test_a_parameter_that_is_not_active_says_what_is(recording: RecordingRuntime) -> None:
    with pytest.raises(KeyError, match="this trial has no parameter 'momentum'; it has act, lr"):
        recording.trial().params["momentum"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        (
            "suggest_float",
            r"Trial has no attribute 'suggest_float': the study file's space .* t.params\['NAME'\]",
        ),
        ("should_prune", r"Trial has no attribute 'should_prune': t.report\(...\) asks the study's policy"),
        ("set_user_attr", "report numbers as further metrics"),
        ("get_checkpoint", r"t.track\(model=..., optimizer=...\)"),
        ("get_trial_id", "use t.id, t.number, or t.name"),
        ("trial_dir", "all trials share the study's working_dir, so put t.id into a file's name"),
        ("colour", "^Trial has no attribute 'colour'$"),
    ],
)
def test_a_name_of_another_tuner_says_what_it_is_here(
    recording: RecordingRuntime, name: str, hint: str
) -> None:
    with pytest.raises(AttributeError, match=hint):
        getattr(recording.trial(), name)


def test_a_configuration_read_in_another_way_says_how_it_goes(recording: RecordingRuntime) -> None:
    t: Any = recording.trial()
    with pytest.raises(AttributeError, match=r"a parameter is read as t.params\['lr'\]"):
        t.params.lr  # noqa: B018 - the error is meant
    with pytest.raises(
        TypeError, match=r"metric 'checkpoint' is 'x' .*; t.track\(model=..., optimizer=...\) names"
    ):
        t.report({"loss": 0.1}, checkpoint="x")


def test_a_trial_reads_as_the_mapping_of_its_parameters(recording: RecordingRuntime) -> None:
    t = recording.trial()
    assert (t["lr"], dict(**t), list(t), "act" in t) == (0.1, {"lr": 0.1, "act": "relu"}, ["lr", "act"], True)
    with pytest.raises(KeyError, match="this trial has no parameter 'width'; it has act, lr"):
        t["width"]


def test_the_module_says_what_is_the_trials() -> None:
    module: Any = headrace.trial
    with pytest.raises(
        AttributeError, match=r"it is the trial's, t.report, and `t` is what the training function"
    ):
        module.report(loss=1.0)
    with pytest.raises(AttributeError, match=r"t\.params"):
        module.params  # noqa: B018 - the error is meant
    with pytest.raises(AttributeError, match=r"'headrace\.trial' has no attribute 'colour'$"):
        module.colour  # noqa: B018 - the error is meant


def test_the_trial_api_is_an_attribute_of_the_library() -> None:
    code = "import headrace; print(headrace.trial.main.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "main\n"


def test_a_checkpoint_in_the_folder_that_all_trials_share_is_warned_of(
    recording: RecordingRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "before.pt").touch()
    os.utime(tmp_path / "before.pt", (0, 0))
    t = recording.trial()
    for name in ("own.pt", "trial-3.pt", "notes.txt"):
        (tmp_path / name).touch()
    t.report(loss=1.0)
    t.report(loss=0.5)
    (told,) = (warning for report in recording.reports for warning in report.warnings)
    assert told.startswith("own.pt was written in the folder that all trials share")
    assert "t.id" in told


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("run", "use `headrace run STUDY.yaml`"),
        ("choice", "`space`. Write `type: categorical` with `values"),
        ("uniform", "`space`. Write `type: float`."),
        ("loguniform", "`space`. Write `type: float` with `log: true`."),
        ("randint", "`space`. Write `type: int`."),
        ("grid_search", "use `sampler: grid`"),
        ("get_checkpoint", "t.track(model=..., optimizer=...)"),
        ("Checkpoint", "t.track(model=..., optimizer=...)"),
        ("get_context", "t.number, t.rank and t.world_size"),
        ("TrialPruned", "t.report(...) asks the study's policy"),
        ("Tuner", "use Client().create_study(name, spec)"),
        ("TuneConfig", "`objective`, `trials`"),
        ("with_resources", "use the study's `resources`"),
    ],
)
def test_names_of_other_tuners_say_what_takes_their_place(name: str, instead: str) -> None:
    for module in (headrace, headrace.trial):
        with pytest.raises(
            AttributeError, match=rf"'{module.__name__}' has no attribute '{name}': .*{re.escape(instead)}"
        ):
            getattr(module, name)


def test_report_is_the_trials() -> None:
    """Only `headrace.trial` has it: `headrace.report` is the package that draws pages."""
    with pytest.raises(AttributeError, match=r"it is the trial's, t\.report"):
        getattr(headrace.trial, "report")  # noqa: B009
