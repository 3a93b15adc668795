"""What a bundle reports of its turns: their cost, a model that cannot be fused, and one that is not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_group import FakeGroup, MemberError
from recording_runtime import RecordingRuntime

from headrace.trial import Bundle, bundle_cost
from headrace.trial.bundle_cost import Stopwatch
from headrace.trial.bundle_local import LocalBundle
from headrace.trial.bundle_run import run_bundle
from headrace.trial.bundle_runtime import Answer, Ended, Said
from headrace.trial.bundle_solo import SoloBundle
from headrace.trial.runtime import TurnCost


class Clock:
    """Time that a test advances."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(bundle_cost, "time", found)
    monkeypatch.setattr(bundle_cost, "held_bytes", lambda: 7)
    return found


def cost(members: int, turns: int, time_s: float, *, memory_bytes: int = 7, fresh: bool = False) -> TurnCost:
    return TurnCost(members=members, turns=turns, time_s=time_s, memory_bytes=memory_bytes, fresh=fresh)


def test_turns_are_summed_until_they_are_reported(clock: Clock) -> None:
    watch = Stopwatch()
    assert watch.told() is None
    for _ in range(4):
        watch.begin([0, 1])
        clock.now_s += 2
    assert watch.told() == cost(2, 3, 6.0), "the first one, which is fresh, is not one of them"
    assert watch.told() is None
    clock.now_s += 50  # a checkpoint, and the call to the worker
    watch.begin([0, 1])
    clock.now_s += 1
    assert watch.told() == cost(2, 1, 1.0)


def test_a_turn_with_other_members_is_fresh_and_memory_belongs_to_the_most(clock: Clock) -> None:
    watch = Stopwatch()
    watch.begin([0, 1, 2])
    clock.now_s += 2
    assert watch.told() == cost(3, 1, 2.0, fresh=True)
    watch.begin([0, 1, 2])
    clock.now_s += 5
    watch.begin([0, 1, 3])
    clock.now_s += 1
    assert watch.told() == cost(3, 1, 1.0, fresh=True), "as many, but not the same"
    watch.begin([0, 1])
    clock.now_s += 1
    assert watch.told() == cost(2, 1, 1.0, memory_bytes=0, fresh=True)
    watch.begin([0, 1])
    clock.now_s += 1
    assert watch.told() == cost(2, 1, 1.0, memory_bytes=0)
    watch.begin([0, 1, 4, 5])
    assert watch.told() == cost(4, 1, 0.0, fresh=True)


def test_memory_is_of_the_gpu_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bundle_cost.held_bytes() > 1 << 20
    cuda = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, max_memory_reserved=lambda: 12345
    )
    monkeypatch.setitem(bundle_cost.sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert bundle_cost.held_bytes() == 12345


def train(bundle: Bundle) -> None:
    group = FakeGroup()
    bundle.track(group=group)
    for _ in bundle.steps():
        bundle.report(loss=group.step())


class Listening(LocalBundle):
    """Keeps what it is told."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.said: list[Said] = []
        self.end: Ended | None = None

    def turn(self, said: Said) -> Answer:
        self.said.append(said)
        return super().turn(said)

    def finish(self, end: Ended) -> None:
        self.end = end


@pytest.fixture
def listening(tmp_path: Path) -> Listening:
    return Listening(params=[{"lr": 2}, {"lr": 3}], steps=3, seed=0, checkpoints=tmp_path)


def test_one_report_of_a_turn_tells_what_it_cost(listening: Listening) -> None:
    run_bundle(train, listening, listening.attach())
    turns = [[report.turn for _, report in said.reports] for said in listening.said if said.reports]
    assert [[one and one.members for one in costs] for costs in turns] == [[2, None]] * 3
    assert all(costs[0] is not None and costs[0].time_s > 0 and costs[0].turns == 1 for costs in turns)


class Looking(FakeGroup):
    """Finds out in its first step how to run its members, and knows in the second one what a later step takes."""

    report: object = None
    first_step: Any = None

    def step(self) -> list[float]:
        if self.first_step is None:
            self.report = object()
            self.first_step = SimpleNamespace(members=len(self), time_s=1.5, later_s=0.0)
        else:
            self.first_step.later_s = 0.03
        return super().step()


def test_the_first_step_is_reported_once_when_a_later_one_is_known(listening: Listening) -> None:
    def looking(bundle: Bundle) -> None:
        group = Looking()
        bundle.track(group=group)
        for _ in bundle.steps():
            bundle.report(loss=group.step())

    run_bundle(looking, listening, listening.attach())
    told = [said.reports[0][1].turn for said in listening.said if said.reports]
    assert told[0] is None, "the group looked anew, and how long a later step takes is not known"
    assert [(one.first_step_s, one.later_step_s) for one in told[1:] if one] == [(1.5, 0.03), (0.0, 0.0)]


def test_the_first_step_of_a_turn_with_several_is_reported_without_the_turn(listening: Listening) -> None:
    def looking(bundle: Bundle) -> None:
        group = Looking()
        bundle.track(group=group)
        for _ in bundle.steps():
            group.step()
            bundle.report(loss=group.step())

    run_bundle(looking, listening, listening.attach())
    told = [said.reports[0][1].turn for said in listening.said if said.reports]
    assert told[0] == TurnCost(
        members=2, turns=1, time_s=0.0, memory_bytes=0, fresh=False, first_step_s=1.5, later_step_s=0.03
    )


def test_a_bundle_of_one_tells_it_too(recording: RecordingRuntime) -> None:
    recording.params, recording.metric = {"lr": 2}, "loss"
    solo = SoloBundle(recording)
    run_bundle(train, solo, solo.attach())
    assert {report.turn.members for report in recording.reports if report.turn} == {1}


class FuseError(Exception): ...


class FusionGapError(FuseError, RuntimeError): ...


class OutOfMemoryError(FuseError, MemoryError): ...


def _in_the_function(_: Bundle) -> None:
    raise FusionGapError("this model cannot be fused: layer rnn; use engine='auto'")


def _at_the_first_step(bundle: Bundle) -> None:
    bundle.track(group=FakeGroup())
    for _ in bundle.steps():
        raise FuseError("layer fc is compiled")


def _later(bundle: Bundle) -> None:
    group = FakeGroup()
    bundle.track(group=group)
    for turn in bundle.steps():
        if turn == 2:
            raise FuseError("one loss per row")
        bundle.report(loss=group.step())


def _of_memory(bundle: Bundle) -> None:
    raise OutOfMemoryError(f"cuda:0 has too little memory for {len(bundle)} members")


def _of_a_member(bundle: Bundle) -> None:
    raise MemberError(f"one of {len(bundle)}", member=7)


@pytest.mark.parametrize(
    ("function", "of_each"),
    [
        (_in_the_function, True),
        (_at_the_first_step, True),
        (_later, False),
        (_of_memory, False),
        (_of_a_member, False),
    ],
)
def test_a_model_that_cannot_be_fused_is_reported_with_the_reason_and_the_remedy(
    listening: Listening, function: Callable[[Bundle], None], *, of_each: bool
) -> None:
    with pytest.raises(Exception, match=r"fuse|compiled|row|memory|one of"):
        run_bundle(function, listening, listening.attach())
    assert listening.end is not None
    assert listening.end.of_each is of_each
    assert ("leave out fuse" in listening.end.error) is of_each


def apart(bundle: Bundle) -> None:
    group: Any = FakeGroup()
    group.engine, group.report = "separate", SimpleNamespace(reason="layer lstm (LSTM) has no batched kernel")
    bundle.track(group=group)
    for _ in bundle.steps():
        bundle.report(loss=group.step())


def test_a_group_that_trains_its_members_apart_is_told_of_once(listening: Listening) -> None:
    run_bundle(apart, listening, listening.attach())
    warned = [text for said in listening.said for _, report in said.reports for text in report.warnings]
    assert len(warned) == 1
    assert "layer lstm (LSTM) has no batched kernel" in warned[0]
    assert "leave out fuse" in warned[0]


def test_a_member_that_is_alone_is_not_told_of_it(recording: RecordingRuntime) -> None:
    recording.params, recording.metric = {"lr": 2}, "loss"
    solo = SoloBundle(recording)
    run_bundle(apart, solo, replace(solo.attach(), seats=16))
    assert recording.reports
    assert not any(report.warnings for report in recording.reports)


def test_a_turn_in_which_the_group_looks_how_to_run_is_no_measure(listening: Listening) -> None:
    def probing(bundle: Bundle) -> None:
        group: Any = FakeGroup()
        group.report = None
        bundle.track(group=group)
        for turn in bundle.steps():
            if turn < 3:
                group.report = SimpleNamespace(reason=f"probe {turn}")
            bundle.report(loss=group.step())

    run_bundle(probing, listening, listening.attach())
    turns = [said.reports[0][1].turn for said in listening.said if said.reports]
    assert [one is not None for one in turns] == [False, False, True]
