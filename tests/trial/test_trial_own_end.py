"""A trial that ends by itself before its budget leaves its state, and a failed save takes nothing from it."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from counting import Counter
from fake_group import FakeGroup
from recording_runtime import RecordingRuntime
from scripted_daemon import Daemon

from headrace.trial import Bundle, Trial, checkpoint, read_checkpoint, script
from headrace.trial.bundle_run import run_bundle
from headrace.trial.bundle_solo import SoloBundle
from headrace.trial.runtime import Action, OwnEnd
from headrace.trial.tracking import Unchanged


@pytest.fixture
def early(recording: RecordingRuntime) -> RecordingRuntime:
    """Its only rung is its budget of 8 steps, so nothing is saved on the way."""
    recording.rungs = (8,)
    return recording


def own_end(runtime: RecordingRuntime, function: Callable[[Trial], object]) -> OwnEnd:
    """How a function's trial ended, in the words of its library."""
    script.run(function, runtime, runtime.attach())
    assert runtime.finished[-1] == ""
    return runtime.ends[-1]


def counting(t: Trial, leave: Callable[[int], bool], *, first: bool = False) -> None:
    """Counts its steps, and leaves at one of them: after its report, or before the step starts."""
    counter = Counter()
    t.track(counter=counter)
    for step in t.steps():
        if first and leave(step):
            return
        counter.count += 1
        t.report(loss=step)
        if not first and leave(step):
            return


@pytest.mark.parametrize(("first", "at"), [(False, 3), (True, 4)])
def test_the_state_at_a_trials_own_end_is_saved_as_of_its_last_report(
    early: RecordingRuntime, first: bool, at: int
) -> None:
    end = own_end(early, lambda t: counting(t, lambda step: step == at, first=first))
    assert end.by_itself
    assert end.step == 3
    assert end.checkpoint_dir is not None
    saved = read_checkpoint(end.checkpoint_dir)
    assert (saved.step, saved.tracked["counter"]) == (3, {"count": 3})
    assert checkpoint.read(end.checkpoint_dir)["loop_step"] == 3, "a trial that goes on trains step 4 next"


def test_a_script_that_exits_with_success_leaves_its_state(early: RecordingRuntime) -> None:
    def train(t: Trial) -> None:
        counting(t, lambda step: step == 3)
        raise SystemExit(0)

    with pytest.raises(SystemExit):
        script.run(train, early, early.attach())
    assert early.ends[-1].checkpoint_dir is not None


def test_what_changes_after_a_report_that_was_saved_is_saved_too(recording: RecordingRuntime) -> None:
    def train(t: Trial) -> None:
        counting(t, lambda step: step == 2)
        t.state["best put back"] = True

    end = own_end(recording, train)
    assert recording.reports[-1].checkpoint_dir is not None
    assert end.checkpoint_dir not in (None, recording.reports[-1].checkpoint_dir)
    assert end.step == 2
    assert read_checkpoint(recording.reports[-1].checkpoint_dir).state == {}
    assert read_checkpoint(end.checkpoint_dir).state == {"best put back": True}


def test_a_trial_that_resumes_where_it_had_ended_leaves_what_its_code_after_the_loop_does(
    recording: RecordingRuntime,
) -> None:
    recording.decisions = {2: Action.PAUSE}
    script.run(lambda t: counting(t, lambda _: False), recording, recording.attach())
    assert recording.ends[-1] == OwnEnd(), "it was told to end"

    def train(t: Trial) -> None:
        counting(t, lambda step: step == 3, first=True)
        t.state["done"] = True

    end = own_end(recording, train)
    assert end.by_itself
    assert end.checkpoint_dir is not None
    saved = read_checkpoint(end.checkpoint_dir)
    assert (saved.step, saved.tracked["counter"], saved.state) == (2, {"count": 2}, {"done": True})
    assert [report.step for report in recording.reports] == [1, 2]


class SavesAtReports:
    """An object that saves itself only while a report is taken, as the Trainer does."""

    def __init__(self) -> None:
        self.trained = False

    def save_files(self, folder: Path) -> None:
        if self.trained:
            raise Unchanged("it saves itself at reports")
        (folder / "model.bin").write_bytes(b"weights")

    def load_files(self, folder: Path) -> None:
        """Nothing to load."""


@pytest.mark.parametrize("more", [False, True])
def test_an_object_that_has_not_changed_since_it_saved_itself_is_not_said_to_be_unsaved(
    recording: RecordingRuntime, more: bool
) -> None:
    def train(t: Trial) -> None:
        model = SavesAtReports()
        t.track(model=model)
        for step in t.steps():
            t.report(loss=step)
            if step == 2:
                break
        model.trained = True
        if more:
            t.state["best put back"] = True

    end = own_end(recording, train)
    assert recording.reports[-1].checkpoint_dir is not None
    assert ("what changed after the last report is not saved: it saves itself" in end.unsaved) == more


def test_one_that_fails_or_tracks_nothing_or_reports_nothing_leaves_nothing(early: RecordingRuntime) -> None:
    def fails(t: Trial) -> None:
        counting(t, lambda step: step == 3)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        script.run(fails, early, early.attach())
    assert early.ends[-1] == OwnEnd()
    assert own_end(early, lambda t: t.report(loss=1)).checkpoint_dir is None
    assert own_end(early, lambda t: t.track(counter=Counter())).checkpoint_dir is None


def test_a_full_disk_at_a_trials_own_end_is_reported_and_not_waited_out(
    early: RecordingRuntime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise checkpoint.DiskFullError(errno.ENOSPC, "No space left on device: /store")

    monkeypatch.setattr(checkpoint, "write", full)
    end = own_end(early, lambda t: counting(t, lambda step: step == 3))
    assert end.checkpoint_dir is None
    assert end.unsaved.startswith("the state at its end, after step 3, is not saved: ")
    assert "No space left on device" in end.unsaved
    assert end.unsaved in caplog.text


def test_an_object_that_cannot_be_saved_at_the_end_is_reported(early: RecordingRuntime) -> None:
    class Within(Counter):
        whole = True

        def state_dict(self) -> dict[str, int]:
            if not self.whole:
                raise RuntimeError("within an epoch")
            return super().state_dict()

    def train(t: Trial) -> None:
        counter = Within()
        t.track(counter=counter)
        for _ in t.steps():
            t.report(loss=1)
            counter.whole = False
            break

    assert "within an epoch" in own_end(early, train).unsaved


@pytest.mark.parametrize("drops", [False, True])
def test_a_member_leaves_its_state_when_the_function_returns_or_drops_it(
    early: RecordingRuntime, drops: bool
) -> None:
    def train(bundle: Bundle) -> None:
        group = FakeGroup()
        bundle.track(group=group, member=lambda m: {"lr": 2, "seed": m.seed})
        for turn in bundle.steps():
            bundle.report(loss=group.step())
            if turn == 3 and not drops:
                break
            if turn == 3:
                group.drop(list(group.ids))  # and loops on: no turn comes without a member

    solo = SoloBundle(early)
    run_bundle(train, solo, solo.attach())
    assert early.finished == [""]
    (end,) = early.ends
    assert (end.step, end.by_itself) == (3, drops)
    assert end.checkpoint_dir is not None
    assert read_checkpoint(end.checkpoint_dir).step == 3


LEAVES = """
from headrace import trial
t = trial.current()
t.state["sum"] = 0
for step in t.steps():
    t.state["sum"] += step
    t.report(loss=step)
    if step == 3:
        break
"""


def test_a_script_that_is_no_function_leaves_its_state_too(daemon: Callable[..., Daemon]) -> None:
    place = daemon(LEAVES, target="", rungs=(8,))
    ended = place.start(str(place.folder / "script.py"))
    assert ended.returncode == 0, ended.stderr
    (finish,) = place.finished
    assert (finish.step, finish.by_itself, finish.unsaved) == (3, True, "")
    saved: Any = read_checkpoint(finish.checkpoint_dir)
    assert (saved.step, saved.state) == (3, {"sum": 6})


def at_budget(runtime: RecordingRuntime, after: Callable[[Any, Trial], object]) -> None:
    """Trains a model to the full budget, then does something with it."""

    runtime.decisions = {8: Action.STOP}

    def train(t: Trial) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        t.track(model=model)
        t.state["best"] = [1.0]
        for step in t.steps():
            t.report(loss=step)
        after(model, t)

    assert own_end(runtime, train) == OwnEnd()


@pytest.mark.parametrize(
    ("after", "names"),
    [
        (
            lambda model, _: model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}),
            "`model`",
        ),
        (lambda _, t: t.state.update(best=[2.0]), "t.state['best']"),
        (lambda _, t: t.state.update(final=1), "t.state['final']"),
        (lambda _, t: t.state.update(plot=object()), "t.state['plot']"),
        (lambda model, _: model.eval()(torch.randn(4, 2)), ""),
        (lambda model, _: model.double().float(), ""),
    ],
)
def test_what_changes_after_the_full_budget_is_in_no_checkpoint_and_the_log_says_so(
    early: RecordingRuntime,
    caplog: pytest.LogCaptureFixture,
    after: Callable[[Any, Trial], object],
    names: str,
) -> None:
    at_budget(early, after)
    said = f"{names} changed after the report at the full budget (8 steps)"
    assert (said in caplog.text) == bool(names)
    assert ("at the full budget" in caplog.text) == bool(names)


class Odd:
    """A tracked object that cannot say whether it changed."""

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None: ...

    def parameters(self) -> list[torch.Tensor]:
        with torch.inference_mode():
            return [torch.zeros(1)]


def test_an_object_that_cannot_say_whether_it_changed_fails_nothing(early: RecordingRuntime) -> None:
    early.decisions = {8: Action.STOP}

    def train(t: Trial) -> None:
        t.track(odd=Odd())
        for step in t.steps():
            t.report(loss=step)

    assert own_end(early, train) == OwnEnd()


def test_a_process_that_leaves_before_it_tracks_keeps_the_checkpoint(recording: RecordingRuntime) -> None:
    recording.decisions = {2: Action.PAUSE}
    script.run(lambda t: counting(t, lambda _: False), recording, recording.attach())
    assert own_end(recording, lambda _: None).checkpoint_dir is None


def test_a_process_that_resumes_at_the_full_budget_saves_nothing(early: RecordingRuntime) -> None:
    early.decisions = {8: Action.STOP}
    script.run(lambda t: counting(t, lambda _: False), early, early.attach())

    def train(t: Trial) -> None:
        counting(t, lambda _: False)
        t.state["again"] = True

    assert own_end(early, train).checkpoint_dir is None


def test_a_save_at_the_end_that_fails_leaves_the_checkpoint_of_the_report(
    recording: RecordingRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(t: Trial) -> None:
        counting(t, lambda step: step == 2)
        monkeypatch.setattr(checkpoint, "write", full)

    def full(*_: object, **__: object) -> None:
        raise checkpoint.DiskFullError(errno.ENOSPC, "No space left on device: /store")

    unsaved = own_end(recording, train).unsaved
    assert unsaved.startswith("what changed after the last report is not saved: ")
    assert unsaved.endswith("The checkpoint of step 2 stands")
