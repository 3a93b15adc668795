"""Where a tracked learning-rate schedule ends, in steps of the trial, and how the reports show it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from recording_runtime import RecordingRuntime
from torch import nn, optim
from torch.optim import lr_scheduler

from headrace.trial.runtime import PastEnd, Schedule
from headrace.trial.schedules import end_of

ONE_CYCLE = {"kind": "OneCycleLR", "past_end": PastEnd.RAISES}


def optimizer() -> optim.Optimizer:
    return optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1, momentum=0.9)


def said(recording: RecordingRuntime) -> list[tuple[int, tuple[Schedule, ...]]]:
    """What reports said about schedules, each with its step."""
    return [(one.step, one.schedules) for one in recording.reports if one.schedules is not None]


def train(recording: RecordingRuntime, schedule: Any, *, batches: int, first: bool, last: int = 99) -> None:
    """A loop that steps the schedule before its report, or after it."""
    t = recording.trial()
    t.track(schedule=schedule)
    for step in t.steps():
        for _ in range(batches if first else 0):
            schedule.optimizer.step()
            schedule.step()
        t.report(loss=1.0)
        for _ in range(0 if first else batches):
            schedule.optimizer.step()
            schedule.step()
        if step == last:
            return


@pytest.mark.parametrize(("batches", "first"), [(1, True), (10, True), (1, False), (10, False)])
def test_the_end_of_a_schedule_is_reported_in_steps_of_the_trial(
    tmp_path: Path, batches: int, first: bool
) -> None:
    recording = RecordingRuntime(checkpoint_dir=tmp_path, rungs=(6,))
    schedule = lr_scheduler.OneCycleLR(optimizer(), 0.1, total_steps=8 * batches)
    train(recording, schedule, batches=batches, first=first)
    told = said(recording)
    last = 8 if first else 9  # the last step, after whose report the schedule ends
    assert told == [(1 if first else 2, (Schedule(name="schedule", last_step=last, **ONE_CYCLE),))]


def test_a_script_that_reports_once_says_it_too(tmp_path: Path) -> None:
    recording = RecordingRuntime(checkpoint_dir=tmp_path, rungs=(6,))
    t = recording.trial()
    schedule = lr_scheduler.CosineAnnealingLR(optimizer(), T_max=60)
    t.track(cosine=schedule)
    for _ in range(60):
        schedule.optimizer.step()
        schedule.step()
    t.report(loss=1.0, step=6)
    told = Schedule(name="cosine", kind="CosineAnnealingLR", last_step=6, past_end=PastEnd.RISES)
    assert said(recording) == [(6, (told,))]


def test_a_resumed_trial_says_it_again_and_says_when_it_is_true_no_more(tmp_path: Path) -> None:
    """The script holds the schedule at its end, as the warning of `headrace extend` suggests."""
    recording = RecordingRuntime(checkpoint_dir=tmp_path, rungs=(4, 8))
    train(recording, lr_scheduler.OneCycleLR(optimizer(), 0.1, total_steps=4), batches=1, first=True, last=4)
    assert [step for step, _ in said(recording)] == [1]
    t = recording.trial()
    schedule = lr_scheduler.OneCycleLR(optimizer(), 0.1, total_steps=8)
    t.track(schedule=schedule)
    assert schedule.total_steps == 4  # the checkpoint restores the old end
    for _ in t.steps():
        if schedule.last_epoch < schedule.total_steps:
            schedule.step()
        t.report(loss=1.0)
    assert said(recording)[1:] == [(5, ())]


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9), ("OneCycleLR", 0, 9, PastEnd.RAISES)),
        (lambda o: lr_scheduler.CosineAnnealingLR(o, 9), ("CosineAnnealingLR", 0, 9, PastEnd.RISES)),
        (
            lambda o: lr_scheduler.SequentialLR(
                o, [lr_scheduler.LinearLR(o), lr_scheduler.CosineAnnealingLR(o, 9)], milestones=[5]
            ),
            ("SequentialLR of CosineAnnealingLR", 0, 14, PastEnd.RISES),
        ),
        (
            lambda o: lr_scheduler.ChainedScheduler(
                [lr_scheduler.ExponentialLR(o, 0.9), lr_scheduler.CosineAnnealingLR(o, 9)]
            ),
            ("ChainedScheduler of CosineAnnealingLR", 0, 9, PastEnd.RISES),
        ),
        (lambda o: lr_scheduler.PolynomialLR(o, total_iters=9), ("PolynomialLR", 0, 9, PastEnd.UNKNOWN)),
        (
            lambda o: lr_scheduler.LinearLR(o, end_factor=0, total_iters=9),
            ("LinearLR", 0, 9, PastEnd.UNKNOWN),
        ),
        (lambda o: lr_scheduler.LinearLR(o, total_iters=9), None),
        (lambda o: lr_scheduler.ConstantLR(o, total_iters=9), None),
        (lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 9), None),
        (lambda o: lr_scheduler.StepLR(o, 9), None),
        (lambda o: lr_scheduler.LambdaLR(o, lambda _: 1.0), None),
        (lambda o: o, None),
    ],
)
def test_which_schedules_end(make: Any, wanted: tuple[Any, ...] | None) -> None:
    end = end_of(make(optimizer()))
    assert (None if end is None else (end.kind, end.count, end.last, end.past_end)) == wanted


def test_a_schedule_of_the_scripts_own_is_known_by_its_attributes() -> None:
    class Own:
        total_steps = 7
        last_epoch = 2

    end = end_of(Own())
    assert end is not None
    assert (end.kind, end.last, end.past_end) == ("Own", 7, PastEnd.UNKNOWN)
    Own.total_steps = None  # type: ignore[assignment]  # as a script may
    assert end_of(Own()) is None


def _warmed_up(o: optim.Optimizer, then: Any) -> Any:
    return lr_scheduler.SequentialLR(o, [lr_scheduler.LinearLR(o, total_iters=2), then(o)], milestones=[2])


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize(
    ("make", "kind", "past_end"),
    [
        (lambda o, n: lr_scheduler.CosineAnnealingLR(o, n), "CosineAnnealingLR", PastEnd.RISES),
        (lambda o, n: lr_scheduler.PolynomialLR(o, n), "PolynomialLR", PastEnd.UNKNOWN),
        (lambda o, n: lr_scheduler.LinearLR(o, 1.0, 0.0, n), "LinearLR", PastEnd.UNKNOWN),
        (
            lambda o, n: _warmed_up(o, lambda o: lr_scheduler.CosineAnnealingLR(o, n - 2)),
            "SequentialLR of CosineAnnealingLR",
            PastEnd.RISES,
        ),
        (
            lambda o, n: _warmed_up(o, lambda o: lr_scheduler.PolynomialLR(o, n - 2)),
            "SequentialLR of PolynomialLR",
            PastEnd.UNKNOWN,
        ),
        (
            lambda o, n: lr_scheduler.ChainedScheduler(
                [lr_scheduler.ExponentialLR(o, 0.9), lr_scheduler.CosineAnnealingLR(o, n)]
            ),
            "ChainedScheduler of CosineAnnealingLR",
            PastEnd.RISES,
        ),
    ],
)
def test_the_end_stays_where_it_was_however_often_the_trial_continues(
    tmp_path: Path, make: Any, kind: str, past_end: PastEnd, batches: int
) -> None:
    """Resumed twice past its end, as after two `headrace extend --steps`."""
    recording = RecordingRuntime(checkpoint_dir=tmp_path, rungs=(4, 8, 12))
    for last in (4, 8, 12):
        o = optimizer()
        train(recording, _with_optimizer(make(o, 4 * batches), o), batches=batches, first=True, last=last)
    told = Schedule(name="schedule", kind=kind, last_step=4, past_end=past_end)
    assert said(recording) == [(1, (told,)), (5, (told,)), (9, (told,))]


@pytest.mark.parametrize("batches", [1, 3])
def test_what_leaves_the_rate_at_0_does_so(batches: int) -> None:
    """torch does what the warning of `headrace extend` says about these classes."""
    for make in (
        lambda o: lr_scheduler.PolynomialLR(o, 4),
        lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, 4),
    ):
        o = optimizer()
        schedule = make(o)
        for _ in range(4 + batches):
            o.step()
            schedule.step()
        assert o.param_groups[0]["lr"] == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.CosineAnnealingLR(o, 4),
        lambda o: lr_scheduler.PolynomialLR(o, 4),
        lambda o: _warmed_up(o, lambda o: lr_scheduler.CosineAnnealingLR(o, 2)),
        lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.CosineAnnealingLR(o, 4)]),
        lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=4, cycle_momentum=False),
    ],
)
def test_the_remedy_trains_the_added_steps_with_the_rate_that_it_sets(make: Any) -> None:
    """What the warning of `headrace extend` advises, from a checkpoint of the schedule's end on."""
    before, weight = (torch.zeros(1, requires_grad=True) for _ in range(2))
    o, after = (optim.SGD([one], lr=0.1) for one in (before, weight))
    schedule, resumed = make(o), make(after)
    for _ in range(4):
        o.step()
        schedule.step()
    resumed.load_state_dict(schedule.state_dict())
    after.load_state_dict(o.state_dict())
    weight.grad = torch.ones(1)
    for step in range(1, 13):
        for group in after.param_groups:
            group["lr"] = 0.05
        after.step()
        if not isinstance(resumed, lr_scheduler.OneCycleLR) or resumed.last_epoch < resumed.total_steps:
            resumed.step()
        assert weight.item() == pytest.approx(-0.05 * step)


def _with_optimizer(schedule: Any, o: optim.Optimizer) -> Any:
    schedule.optimizer = o  # those that hold others do not have it in every version of PyTorch
    return schedule
