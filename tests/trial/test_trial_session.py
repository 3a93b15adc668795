"""`Trial` in one process, over a runtime in memory: what it saves, when, and what it refuses."""

import errno
import logging
import random
import re
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from recording_runtime import RecordingRuntime

import headrace
from headrace.trial import Ended, Trial, checkpoint
from headrace.trial.runtime import Action


class Counter:
    """The least that can be tracked."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def run(t: Trial, counter: Counter, *, until: int = 99, **steps_options: Any) -> list[int]:
    t.track(counter=counter)
    seen = []
    for step in t.steps(**steps_options):
        counter.count += 1
        seen.append(step)
        t.report(count=counter.count)
        if step == until:
            break
    return seen


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


def test_none_is_no_value_of_the_objective(recording: RecordingRuntime) -> None:
    recording.metric = "loss"
    t = recording.trial()
    with pytest.raises(TypeError, match="metric 'loss' is None; report a number, or NaN"):
        t.report({"loss": None}, other=1.0)


def test_a_new_process_continues(recording: RecordingRuntime) -> None:
    run(recording.trial(), Counter(), until=3)
    t, counter = recording.trial(), Counter()
    assert t.resumed
    assert run(t, counter) == [3, 4], "step 3 had no checkpoint: it is trained again"
    assert counter.count == 4
    assert recording.restores == 1


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


def test_a_trial_that_resumes_between_two_rungs_goes_on_to_the_next(recording: RecordingRuntime) -> None:
    recording.rungs = (2, 8)
    t = recording.trial()
    t.state["a"] = 1
    t.report(loss=1, step=2)
    t.report(loss=1, step=5, save=True)
    recording.trial().report(loss=1, step=8)
    with pytest.raises(ValueError, match="step 9 is past the full budget of 8 steps"):
        recording.trial().report(loss=1, step=9)


@pytest.mark.parametrize(
    ("step", "taken"), [(np.int64(2), 2), (torch.tensor(2), 2), (2.0, None), ("2", None)]
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


def test_generators_are_restored_after_the_scripts_own_seeding(recording: RecordingRuntime) -> None:
    t = recording.trial()
    t.track(counter=Counter())
    for step in t.steps():
        if step == 3:
            expected = random.random(), np.random.rand(), torch.rand(()).item()
            break
        t.report(loss=1)
    t = recording.trial()
    t.track(counter=Counter())
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    next(t.steps())
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected


def test_state_keeps_plain_values_and_wins_over_the_scripts_initial_ones(recording: RecordingRuntime) -> None:
    kept = {
        "best": float("-inf"),
        "nan": float("nan"),
        "history": [1, 2.5, None, True, "x"],
        "pair": (1, (2,)),
        "by_number": {0: "a", 1.5: "b", None: "c"},
        "seen": {3, 4},
        "raw": b"\x00\xff",
        "tensor": torch.arange(3, dtype=torch.float64),
        "array": np.array([[1, 2]], dtype=np.int16),
        "scalar": np.float32(0.1),
    }
    t = recording.trial()
    t.state.update(kept)
    t.report(loss=1, save=True)
    again = recording.trial()
    assert again.state.keys() == kept.keys(), "readable before track()"
    again.state["best"] = 0.0
    next(again.steps())
    assert again.state["best"] == float("-inf")
    for name in ("history", "pair", "seen", "raw"):
        assert again.state[name] == kept[name]
        assert type(again.state[name]) is type(kept[name])
    assert torch.equal(again.state["tensor"], torch.arange(3, dtype=torch.float64))
    assert again.state["array"].dtype == np.int16
    assert type(again.state["scalar"]) is np.float32


@pytest.mark.parametrize(
    "generator", [random.Random, np.random.default_rng, np.random.RandomState, torch.Generator]
)
def test_generators_of_every_kind_can_be_tracked(recording: RecordingRuntime, generator: Any) -> None:
    def draw(made: Any) -> float:
        if isinstance(made, torch.Generator):
            return torch.rand((), generator=made).item()
        return made.random() if hasattr(made, "random") else made.random_sample()

    made = generator()
    t = recording.trial()
    t.track(own=made)
    draw(made)
    t.report(loss=1, save=True)
    expected = draw(made)
    made = generator()
    recording.trial().track(own=made)
    assert draw(made) == expected


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


def test_what_is_tracked_without_a_name_is_called_by_its_type(recording: RecordingRuntime) -> None:
    def build() -> tuple[torch.nn.Linear, torch.optim.SGD, Any]:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)

    model, optimizer, schedule = build()
    t = recording.trial()
    t.track(model, optimizer, schedule, count=Counter())
    assert list(t.tracked_objects()) == ["linear", "sgd", "cosine_annealing_lr", "count"]
    t.report(loss=1, save=True)
    again, other, counter = build()[0], torch.nn.Sequential(), Counter()
    t = recording.trial()
    t.track(again, *build()[1:], count=counter)
    assert torch.equal(again.weight, model.weight)
    with pytest.raises(ValueError, match=re.escape("t.track(sequential=...): the checkpoint holds")):
        t.track(other)


@pytest.mark.parametrize(
    ("objects", "named", "message"),
    [
        (
            (Counter(), Counter()),
            {},
            (
                "t.track(...) got more than one object of the type Counter, or called 'counter'; "
                "give each a name of its own, as in t.track(counter_1=..., counter_2=...)"
            ),
        ),
        ((Counter(),), {"counter": Counter()}, "or called 'counter'"),
        (
            ({"a": Counter()},),
            {},
            "t.track(...) got a dict; give each object a name, as in t.track(**objects)",
        ),
        (([],), {}, "t.track(list=...) got a list, which has no state_dict()"),
    ],
)
def test_objects_that_cannot_be_called_by_their_type(
    recording: RecordingRuntime, objects: Any, named: Any, message: str
) -> None:
    t = recording.trial()
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        t.track(*objects, **named)
    assert t.tracked_objects() == {}


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


def test_what_cannot_be_saved_is_refused_before_the_first_step(recording: RecordingRuntime) -> None:
    class Unsafe(Counter):
        def state_dict(self) -> dict[str, Any]:
            return {"hooks": [print]}

    t = recording.trial()
    with pytest.raises(TypeError, match=r"unsafe.hooks\[0\] is a builtins.builtin_function_or_method"):
        t.track(unsafe=Unsafe())
    with pytest.raises(TypeError, match=r"t.track\(words=...\) got a list.*t.state\['words'\]"):
        t.track(words=[])
    t.track(counter=Counter())
    with pytest.raises(ValueError, match=r"t.track\(counter=...\) was called before"):
        t.track(counter=Counter())
    next(t.steps())
    with pytest.raises(ValueError, match="comes before the loop"):
        t.track(late=Counter())


def test_another_script_than_the_one_that_saved_is_told_apart(
    recording: RecordingRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    run(recording.trial(), Counter())
    with pytest.raises(
        ValueError, match=r"t.track\(model=...\): the checkpoint holds counter, but no 'model'"
    ):
        recording.trial().track(model=Counter())
    with caplog.at_level(logging.WARNING):
        next(recording.trial().steps(), None)
        recording.trial().report(loss=1)
    assert "the checkpoint also holds counter, which t.track(...) was not given" in caplog.text


def test_a_parameter_that_is_not_active_says_what_is(recording: RecordingRuntime) -> None:
    with pytest.raises(KeyError, match="this trial has no parameter 'momentum'; it has act, lr"):
        recording.trial().params["momentum"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("suggest_float", r"a Trial has no 'suggest_float': the study file's space .* t.params\['NAME'\]"),
        ("should_prune", r"a Trial has no 'should_prune': t.report\(...\) asks the study's policy"),
        ("set_user_attr", "report numbers as further metrics"),
        ("get_checkpoint", r"t.track\(model=..., optimizer=...\)"),
        ("get_trial_id", "use t.number, or t.name"),
        ("trial_dir", "all trials share the study's working_dir, so put t.number into a file's name"),
        ("colour", "a Trial has no 'colour'$"),
    ],
)
def test_a_name_of_another_tuner_says_what_it_is_here(
    recording: RecordingRuntime, name: str, hint: str
) -> None:
    with pytest.raises(AttributeError, match=hint):
        getattr(recording.trial(), name)


def test_a_configuration_read_in_another_way_says_how_it_goes(recording: RecordingRuntime) -> None:
    t: Any = recording.trial()
    with pytest.raises(TypeError, match=r"as in t.params\['lr'\]"):
        t["lr"]
    with pytest.raises(AttributeError, match=r"a parameter is read as t.params\['lr'\]"):
        t.params.lr  # noqa: B018 - the error is meant
    with pytest.raises(
        TypeError, match=r"metric 'checkpoint' is 'x' .*; t.track\(model=..., optimizer=...\) names"
    ):
        t.report({"loss": 0.1}, checkpoint="x")


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


def test_a_model_without_state_dict_is_kept_as_bytes(recording: RecordingRuntime) -> None:
    with pytest.raises(TypeError, match=r"keep pickle.dumps\(model\), .* in t.state\['model'\]"):
        recording.trial().track(model=object())
    with pytest.raises(TypeError, match=r"got a int, .*; keep the value in t.state\['n'\]"):
        recording.trial().track(n=3)


def test_a_half_written_checkpoint_is_never_seen(
    recording: RecordingRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_disk(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.fsync", broken_disk)
    with pytest.raises(OSError, match="Input/output error"):
        run(recording.trial(), Counter())
    assert recording.checkpoint_dir is not None
    assert not list(recording.checkpoint_dir.iterdir())
    assert [report.step for report in recording.reports] == [1], (
        "a step without its checkpoint is not reported"
    )


@pytest.mark.parametrize("said_by_torch", [False, True])
def test_on_a_full_disk_the_trial_waits(
    recording: RecordingRuntime,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    said_by_torch: bool,
) -> None:
    save, failures = torch.save, []

    def failing(*arguments: Any) -> None:
        if len(failures) < 2:
            failures.append(1)
            full = OSError(errno.ENOSPC, "No space left on device")
            if not said_by_torch:
                raise full
            raise RuntimeError("unexpected pos 704 vs 598") from full
        save(*arguments)

    monkeypatch.setattr(torch, "save", failing)
    monkeypatch.setattr("headrace.trial.session._FULL_DISK_WAITS_S", (0.0, 0.0))
    with caplog.at_level(logging.WARNING):
        run(recording.trial(), Counter())
    assert len(failures) == 2
    assert recording.reports[-1].checkpoint_dir is not None
    assert caplog.text.count("No space left on device") == 1


def test_checkpoints_are_loaded_without_running_code(recording: RecordingRuntime) -> None:
    assert recording.checkpoint_dir is not None
    folder = recording.checkpoint_dir / "evil"
    folder.mkdir(parents=True)
    torch.save({"format": 1, "run": print}, folder / "state.pt")
    with pytest.raises(Exception, match="Weights only load failed"):
        checkpoint.read(folder)
