"""`keep: best` in a trial's process: the best report so far is saved, between rungs too."""

from pathlib import Path
from typing import Any

import pytest
from counting import Counter
from fake_group import FakeGroup
from recording_runtime import RecordingRuntime

from headrace.trial import Bundle, read_checkpoint
from headrace.trial.bundle_run import run_bundle
from headrace.trial.bundle_solo import SoloBundle
from headrace.trial.runtime import EndsStudy, KeepBest, MetricBound

NAN = float("nan")


def runtime(folder: Path, **keep: Any) -> RecordingRuntime:
    return RecordingRuntime(
        checkpoint_dir=folder / "checkpoints",
        rungs=(9,),
        metric="loss",
        keep_best=KeepBest(**{"maximize": False, **keep}),
    )


def saved_steps(
    recording: RecordingRuntime, losses: list[float], more: list[dict[str, float]] | None = None
) -> list[int]:
    """The steps that a new process saves; it counts them in what it tracks."""
    t = recording.trial()
    counter = Counter()
    t.track(counter=counter)
    before = len(recording.reports)
    for step in t.steps():
        counter.count = step
        t.report({"loss": losses[step - 1], **(more[step - 1] if more else {})})
        if step == len(losses):
            break
    return [report.step for report in recording.reports[before:] if report.checkpoint_dir is not None]


def test_each_report_that_is_the_best_so_far_is_saved(tmp_path: Path) -> None:
    losses = [3.0, 2.0, 2.0, 2.5, NAN, 1.0, float("-inf"), 1.5]
    recording = runtime(tmp_path)
    assert saved_steps(recording, losses) == [1, 2, 6]
    best = recording.reports[5].checkpoint_dir
    assert best is not None
    assert read_checkpoint(best).tracked == {"counter": {"count": 6}}
    assert saved_steps(runtime(tmp_path / "up", maximize=True), [1.0, 3.0, 2.0, 3.0, 4.0]) == [1, 2, 5]


def test_a_report_that_ends_its_study_is_saved(tmp_path: Path) -> None:
    bound = (MetricBound(metric="size", at_most=1.0),)
    recording = RecordingRuntime(
        checkpoint_dir=tmp_path,
        rungs=(9,),
        metric="loss",
        ends_study=EndsStudy(maximize=False, value=2.0, constraints=bound),
    )
    sizes = [{"size": size} for size in (0.0, 2.0, 1.0, 0.0, 0.0)]
    assert saved_steps(recording, [2.1, 1.0, 2.0, NAN, 1.5], sizes) == [3, 5]
    best = KeepBest(maximize=False)
    both = RecordingRuntime(
        checkpoint_dir=tmp_path / "both",
        rungs=(9,),
        metric="loss",
        keep_best=best,
        ends_study=EndsStudy(maximize=False, value=2.0),
    )
    assert saved_steps(both, [3.0, 1.0, 1.5, 3.0]) == [1, 2, 3]


def test_without_it_only_rungs_save(tmp_path: Path) -> None:
    recording = RecordingRuntime(checkpoint_dir=tmp_path, rungs=(9,), metric="loss")
    assert saved_steps(recording, [3.0, 2.0, 1.0]) == []


def test_a_later_process_saves_nothing_worse_than_an_earlier_ones_best(tmp_path: Path) -> None:
    recording = runtime(tmp_path, best_value=2.0)
    assert saved_steps(recording, [3.0, 2.0, 1.9, 5.0]) == [3]


@pytest.mark.parametrize("bound", [{"at_most": 1.0}, {"at_least": -1.0}])
def test_a_report_that_misses_a_constraint_is_never_the_best(tmp_path: Path, bound: dict[str, float]) -> None:
    bad = 2.0 if "at_most" in bound else -2.0
    recording = runtime(tmp_path, constraints=(MetricBound(metric="size", **bound),))
    sizes = [{"size": 0.0}, {"size": bad}, {}, {"size": NAN}, {"size": 1.0}]
    assert saved_steps(recording, [3.0, 2.0, 2.0, 2.0, 2.5], sizes) == [1, 5]


def test_a_member_of_a_bundle_saves_its_best_too(tmp_path: Path) -> None:
    losses = [3.0, 2.0, 2.5, 1.0, 4.0]
    recording = runtime(tmp_path)
    recording.params = {"lr": 2}

    def train(bundle: Bundle) -> None:
        group = FakeGroup()
        bundle.track(group=group)
        for step in bundle.steps():
            if step > len(losses):
                break
            group.step()
            bundle.report(loss=[losses[step - 1]])

    solo = SoloBundle(recording)
    run_bundle(train, solo, solo.attach())
    assert [one.step for one in recording.reports if one.checkpoint_dir is not None] == [1, 2, 4]
