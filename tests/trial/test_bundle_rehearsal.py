"""A bundle's function that fails before any report: is it a failure of each member, or of one?"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_group import FakeGroup

from headrace.trial import Bundle, bundle_rehearsal
from headrace.trial.bundle_local import LocalBundle
from headrace.trial.bundle_run import run_bundle
from headrace.trial.bundle_runtime import Attached, Ended


class Charging(LocalBundle):
    """Looks for the member to charge, like a cluster."""

    end: Ended | None = None

    def attach(self) -> Attached:
        return replace(super().attach(), charges=True)

    def finish(self, end: Ended) -> None:
        self.end = end


@pytest.fixture
def charging(tmp_path: Path) -> Charging:
    return Charging(params=[{"lr": 2}, {"lr": 3}, {"lr": 5}], steps=3, seed=0, checkpoints=tmp_path)


def _training(fault: Callable[[Bundle, int], object]) -> Callable[[Bundle], None]:
    def train(bundle: Bundle) -> None:
        group: Any = FakeGroup()
        bundle.track(group=group)
        for turn in bundle.steps():
            losses = group.step()
            fault(bundle, turn)
            bundle.report(loss=losses)

    return train


def _always(bundle: Bundle, turn: int) -> None:
    raise NameError(f"name 'citerion' is not defined, of {len(bundle)} members in turn {turn}")


def _of_one(bundle: Bundle, turn: int) -> None:
    if any(member.params["lr"] == 3 for member in bundle.members):
        raise ValueError("lr is too large")


def _of_the_first(bundle: Bundle, turn: int) -> None:
    if any(member.params["lr"] == 2 for member in bundle.members):
        raise ValueError("lr is too small")


def _of_all_but_one(bundle: Bundle, turn: int) -> None:
    if any(member.params["lr"] != 3 for member in bundle.members):
        raise AssertionError("the loss is not finite")


def _exits_alone(bundle: Bundle, turn: int) -> None:
    if len(bundle) == 1:
        raise SystemExit(0)
    raise ValueError("together")


def _waits_alone(bundle: Bundle, turn: int) -> None:
    if len(bundle) == 1:
        time.sleep(30)  # the rehearsal ends it
    raise ValueError("together")


def _of_the_crowd(bundle: Bundle, turn: int) -> None:
    if len(bundle) > 1:
        raise RuntimeError("too many members")


def _each_elsewhere(bundle: Bundle, turn: int) -> None:
    if len(bundle) > 1:
        raise ValueError("together")
    raise ValueError("alone")


def _later(bundle: Bundle, turn: int) -> None:
    if turn == 2:
        raise ValueError("in the second turn")


@pytest.mark.parametrize(
    ("fault", "of_each"),
    [
        (_always, True),
        (_of_one, False),
        (_of_the_first, False),
        (_of_all_but_one, False),
        (_exits_alone, False),
        (_waits_alone, False),
        (_of_the_crowd, False),
        (_each_elsewhere, False),
        (_later, False),
    ],
)
def test_an_error_that_single_members_meet_too_is_each_ones(
    charging: Charging,
    fault: Callable[[Bundle, int], object],
    monkeypatch: pytest.MonkeyPatch,
    *,
    of_each: bool,
) -> None:
    monkeypatch.setattr(bundle_rehearsal, "LEAST_S", 0.3)
    with pytest.raises((NameError, ValueError, RuntimeError, AssertionError)):
        run_bundle(_training(fault), charging, charging.attach())
    assert charging.end is not None
    assert charging.end.of_each is of_each
    assert charging.end.error


def test_what_the_bundle_refuses_is_each_ones_though_a_single_member_would_pass(charging: Charging) -> None:
    def train(bundle: Bundle) -> None:
        group: Any = FakeGroup()
        bundle.track(group=group)
        for _ in bundle.steps():
            bundle.report(loss=group.step()[:1])

    with pytest.raises(ValueError, match="got 1 values for 3 members"):
        run_bundle(train, charging, charging.attach())
    assert charging.end is not None
    assert charging.end.of_each


def test_a_member_whose_value_cannot_be_taken_is_the_one(charging: Charging) -> None:
    calls = []

    def train(bundle: Bundle) -> None:
        calls.append(len(bundle))
        group: Any = FakeGroup()
        bundle.track(group=group)
        for _ in bundle.steps():
            group.step()
            bundle.report(loss=["none" if member.params["lr"] == 3 else 1.0 for member in bundle.members])

    with pytest.raises(RuntimeError, match="trials/1 failed in the middle of a step"):
        run_bundle(train, charging, charging.attach())
    assert charging.end is not None
    assert not charging.end.of_each
    assert calls == [3], "who is to blame is known, so nobody is tried alone"


def test_a_member_that_continues_is_not_tried_again(charging: Charging, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="second turn"):
        run_bundle(_training(_later), charging, charging.attach())
    again = Charging(params=[{"lr": 2}, {"lr": 3}, {"lr": 5}], steps=3, seed=0, checkpoints=tmp_path)
    with pytest.raises(NameError):
        run_bundle(_training(_always), again, again.attach())
    assert again.end is not None
    assert not again.end.of_each


def test_by_hand_nothing_is_tried(tmp_path: Path) -> None:
    calls = []

    def train(_: Bundle) -> None:
        calls.append(1)
        raise ValueError("at once")

    by_hand = LocalBundle(params=[{"lr": 2}, {"lr": 3}], steps=3, seed=0, checkpoints=tmp_path)
    with pytest.raises(ValueError, match="at once"):
        run_bundle(train, by_hand, by_hand.attach())
    assert calls == [1]
