"""`Trial` in one process, over a runtime in memory: what it saves, when, and what it refuses."""

import errno
import logging
import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from recording_runtime import RecordingRuntime

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
