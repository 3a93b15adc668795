"""A bundle's members: which error belongs to which member, and checkpoints that a plain trial reads."""

from pathlib import Path
from typing import Any

import pytest
from counting import Counter
from fake_group import FakeGroup, MemberError
from recording_runtime import RecordingRuntime

from headrace.trial import Bundle, main
from headrace.trial.bundle_local import LocalBundle
from headrace.trial.bundle_run import run_bundle
from headrace.trial.bundle_runtime import Ended
from headrace.trial.bundle_solo import SoloBundle

LOCAL: Any = {"defaults": {"lr": 2, "width": 1}, "steps": 3}


def test_by_hand_several_values_are_several_members(capsys: pytest.CaptureFixture[str]) -> None:
    def train(bundle: Bundle) -> None:
        group = FakeGroup(bundle.params["width"])
        bundle.track(group=group)
        for _ in bundle.steps():
            bundle.report(loss=group.step())

    main(train, argv=["--lr", "2,3,5"], **LOCAL)
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["step", "metric", "lr=2", "lr=3", "lr=5"]
    assert len(table) == 4
    with pytest.raises(ValueError, match="--width has 2 values and --lr has 3"):
        main(train, argv=["--lr", "2,3,5", "--width", "1,2"], **LOCAL)


def test_a_member_that_the_group_refuses_fails_alone(capsys: pytest.CaptureFixture[str]) -> None:
    def train(bundle: Bundle) -> None:
        group = FakeGroup()
        bundle.track(group=group)
        for _ in bundle.steps():
            bundle.report(loss=group.step())

    with pytest.raises(SystemExit):
        main(train, argv=["--width", "1,2,1"], **LOCAL)
    shown = capsys.readouterr().out
    assert "fuse.apart" in shown
    assert shown.splitlines()[-1].split()[0] == "3"


def test_an_error_that_names_a_member_ends_it_alone(capsys: pytest.CaptureFixture[str]) -> None:
    def train(bundle: Bundle) -> None:
        group = FakeGroup()
        bundle.track(group=group)
        for _ in bundle.steps():
            for member in bundle.members:
                if member.params["lr"] == 3 and member.step == 2:
                    assert member.id is not None
                    raise MemberError("its batch is too large", member=member.id)
            bundle.report(loss=group.step())

    def good(bundle: Bundle) -> None:
        group = FakeGroup()
        bundle.track(group=group)
        for _ in bundle.steps():
            bundle.report(loss=group.step())

    with pytest.raises(SystemExit):
        main(train, argv=["--lr", "2,3"], **LOCAL)
    broken = capsys.readouterr().out.splitlines()
    main(good, argv=["--lr", "2,3"], **LOCAL)
    whole = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in broken if line.lstrip()[0].isdigit()] == [
        line.split()[2] for line in whole[1:]
    ]


def test_the_others_continue_bit_for_bit_without_a_member_that_the_script_drops(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def train(bundle: Bundle, stop: int = 0) -> None:
        group = FakeGroup()
        bundle.track(group=group)
        for turn in bundle.steps():
            bundle.report(loss=group.step())
            if turn == stop:
                group.drop([one.id for one in bundle.members if one.params["lr"] == 3])

    main(train, argv=["--lr", "2,3,5"], **LOCAL)
    whole = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    folder = ["--checkpoints", str(tmp_path)]
    main(lambda bundle: train(bundle, 2), argv=["--lr", "2,3,5", *folder], **LOCAL)
    stopped = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert stopped == [*whole[:2], [*whole[2][:3], "-", whole[2][4]]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (1.0, "a mean over members"),
        ([1.0, 2.0], "got 2 values for 1 members"),
        ({0: 1.0}, "one number"),
    ],
)
def test_a_report_needs_a_value_of_each_member(
    recording: RecordingRuntime, values: Any, message: str
) -> None:
    recording.metric = "loss"

    def train(bundle: Bundle) -> None:
        bundle.track(group=FakeGroup(), member=lambda m: {"lr": 2, "seed": m.seed})
        for _ in bundle.steps():
            with pytest.raises(ValueError, match="no 'loss'"):
                bundle.report(other=[1.0])
            bundle.report(loss=values)

    solo = SoloBundle(recording)
    with pytest.raises((TypeError, ValueError), match=message):
        run_bundle(train, solo, solo.attach())
    assert message in recording.finished[0]


def test_a_member_without_a_value_fails_alone(recording: RecordingRuntime) -> None:
    recording.metric = "loss"

    def train(bundle: Bundle) -> None:
        bundle.track(group=FakeGroup(), member=lambda m: {"lr": 2, "seed": m.seed})
        for _ in bundle.steps():
            bundle.report(loss=[None])

    solo = SoloBundle(recording)
    with pytest.raises(SystemExit):
        run_bundle(train, solo, solo.attach())
    assert "that of studies/s/trials/5 is None" in recording.finished[0]


def test_a_plain_trial_continues_from_a_members_checkpoint(
    recording: RecordingRuntime, tmp_path: Path
) -> None:
    class Weights(Counter):
        key = "w"

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.count = state[self.key]

    class Moments(Weights):
        key = "m"

    group = FakeGroup()

    def train(bundle: Bundle) -> None:
        bundle.track(group=group, member=lambda m: {"lr": 2, "seed": m.seed})
        for turn in bundle.steps():
            bundle.report(loss=group.step())
            if turn == 2:
                return

    solo = SoloBundle(recording)
    run_bundle(train, solo, solo.attach())
    t, model, optimizer = recording.trial(), Weights(), Moments()
    t.track(model=model, optimizer=optimizer)
    row = group.rows[0]
    assert (t.step, model.count, optimizer.count) == (2, row["w"], row["m"])


@pytest.mark.parametrize(
    ("error", "out_of_memory"), [(MemoryError("too many"), True), (MemberError("late", member=0), False)]
)
def test_what_ends_the_whole_bundle(
    tmp_path: Path, error: Exception, *, out_of_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is nobody's fault. A member's error in the middle of a step leaves the others only their checkpoints."""
    told: list[tuple[str, bool]] = []

    def finish(_: LocalBundle, end: Ended) -> None:
        assert end.traceback
        told.append((end.error, end.out_of_memory))

    def train(bundle: Bundle) -> None:
        group = FakeGroup()
        bundle.track(group=group)
        for _ in bundle.steps():
            group.step()
            raise error

    monkeypatch.setattr(LocalBundle, "finish", finish)
    local = LocalBundle(params=[{"lr": 2}, {"lr": 3}], steps=3, seed=0, checkpoints=tmp_path)
    with pytest.raises((MemoryError, RuntimeError)):
        run_bundle(train, local, local.attach())
    assert [memory for _, memory in told] == [out_of_memory]
    assert out_of_memory or "in the middle of a step" in told[0][0]
