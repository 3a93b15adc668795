"""The process of a function that takes a bundle, in a study that does not fuse."""

from collections.abc import Callable
from pathlib import Path

from scripted_daemon import Daemon

SOURCE = (
    (Path(__file__).parent / "fake_group.py").read_text()
    + """

from headrace import trial

def train(bundle: trial.Bundle):
    group = FakeGroup()
    bundle.track(group=group)
    for _ in bundle.steps():
        bundle.report(loss=group.step())
"""
)


def test_a_bundle_of_one_is_paused_and_continues_as_a_trial(daemon: Callable[..., Daemon]) -> None:
    straight = daemon(SOURCE, rungs=(2, 4), params={"lr": 3})
    assert straight.start().returncode == 0
    paused = daemon(SOURCE, rungs=(2, 4), pauses=(2,), params={"lr": 3})
    assert [paused.start().returncode, paused.start().returncode] == [0, 0]
    assert paused.metrics("loss") == straight.metrics("loss")
    assert [report.step for report in paused.reports] == [1, 2, 3, 4]
    assert len(paused.restored) == 1
    assert [finish.error for finish in paused.finished] == ["", ""]
