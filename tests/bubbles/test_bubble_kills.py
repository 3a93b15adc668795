"""A primary beside an agent and trials that are killed, stopped and misbehave: it continues, with the same losses."""

from pathlib import Path

import pytest
from kills import Scene, play, unlearnt
from primary_site import Primary

from headrace_services.bubble_agent.predictor import LEAST
from headrace_torch.bubble_shm import AT

pytestmark = pytest.mark.full


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("k")
    made.chmod(0o700)
    return made


def test_a_primary_continues_whatever_dies_beside_it(primary: Primary, folder: Path) -> None:
    scene = Scene(primary, folder, steps=5000)
    try:
        play(scene)
        (folder / "enough").touch()
        told = scene.running.results()
    finally:
        scene.close()
    assert all(one["active"] for one in told)
    plain = primary.start(folder.parent / "plain", hook=False, steps=len(told[0]["losses"])).results()
    assert [one["losses"] for one in told] == [one["losses"] for one in plain]


def test_after_a_change_no_window_is_used_before_it_is_learnt(primary: Primary, folder: Path) -> None:
    """Other micro-batches, a different shape, then a rank that stalls for the time of eight steps."""
    changes = {"change_at": 30, "change_to": 6, "reshape_at": 60, "pause_at": 85}
    scene = Scene(primary, folder, steps=110, **changes)
    try:
        scene.running.results()
        windows = scene.file.records(0, AT["windows"], 0)
        before, after = ({g for at, _, _, g in windows if at >> 16 == step} for step in (84, 87))
        assert max(before) < min(after), "the pause is a change too"
        assert scene.says("generation") >= 4
        assert scene.says("trial_stretches") > 10
        assert unlearnt(scene.file, LEAST) == []
    finally:
        scene.close()
