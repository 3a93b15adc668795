"""W&B offline: its files have what the study has, whatever fails, and `wandb sync` uploads it. `make test-trackers`."""

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.full, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]
pytest.importorskip("wandb", reason="`make test-trackers` installs it")

from copied_study import copied, info, same, table, updates  # noqa: E402  # after the check for the packages
from exporter_site import Listed, ScriptedStudy, Site, cut  # noqa: E402  # after the check for the packages
from fake_wandb import Received, wandb_server  # noqa: E402  # after the check for the packages
from real_trackers import wandb_points, wandb_runs  # noqa: E402  # after the check for the packages
from scripted_study import Script  # noqa: E402  # after the check for the packages
from test_track_exporter import followed  # noqa: E402  # after the check for the packages

from headrace.track import positions, wandb_files, wandb_folders  # noqa: E402  # after the check for the packages
from headrace.track.entries import Entry  # noqa: E402  # after the check for the packages
from headrace.track.targets import RunsTarget  # noqa: E402  # after the check for the packages
from headrace.track.tracker import RunsSink, Start  # noqa: E402  # after the check for the packages
from headrace.track.wandb_folders import WandbRuns, WandbTool  # noqa: E402  # after the check for the packages


def test_wandb_offline_has_every_point(script: Script, tmp_path: Path) -> None:
    said: list[str] = []
    copied(WandbTool(tmp_path), script, said, batch=50)
    same(wandb_points(tmp_path), table(script))
    copied(WandbTool(tmp_path), script, said, again=True)
    same(wandb_points(tmp_path), table(script))
    runs = wandb_runs(tmp_path)
    assert len(runs) == 28
    assert runs[1]["group"] == "digits"
    assert runs[1]["name"] == "digits/1"
    assert runs[1]["config"]["optimizer"] == "sgd"
    assert runs[13]["summary"]["headrace/reason"] == "failed"
    assert runs[13]["exit"] == 1
    assert runs[0]["exit"] == 0
    assert runs[0]["steps"] == list(range(27))
    assert math.isnan(wandb_points(tmp_path)[2, "accuracy"][0][1])
    print(f"\nW&B: {len(runs)} runs; trial 1: {runs[1]['config']}, {runs[1]['summary']}")


def test_a_wandb_run_continues_after_its_trial_was_finished(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one open run at a time, every trial that is promoted has several folders, with rows that count on."""
    monkeypatch.setattr(wandb_folders, "MOST_OPEN", 1)
    part = [update for update in updates(script, batch=20) if update.events[-1].cursor < 160]
    for first in range(0, len(part), 3):  # in several processes
        sink = RunsSink(WandbTool(tmp_path).open(info(script), print, Start.RESUME))
        assert sink.cursor == (part[first - 1].events[-1].cursor if first else 0)
        for update in part[first : first + 3]:
            sink.write(update)
        sink.close(ended=False)
    found = wandb_runs(tmp_path)
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) > len(found)
    assert all(run["steps"] == list(range(len(run["steps"]))) for run in found.values())
    expected: dict[tuple[int, str], list[tuple[int, float]]] = {}
    for event in (event for update in part for event in update.events):
        if event.detail is not None and hasattr(event.detail, "metrics"):
            for name, value in event.detail.metrics.items():
                expected.setdefault((event.trial or 0, name), []).append((event.detail.step, value))
    same(wandb_points(tmp_path), expected)


@pytest.mark.parametrize("place", [1, 40, 77, 150])
def test_a_wandb_row_that_cannot_be_written_doubles_nothing(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    log, count = WandbRuns._log, 0

    def failing(runs: WandbRuns, copy: Any, entry: Entry) -> None:
        nonlocal count
        count += 1
        if count == place:
            raise BrokenPipeError("W&B's process is gone")
        log(runs, copy, entry)

    monkeypatch.setattr(WandbRuns, "_log", failing)
    site = Site()
    target = RunsTarget(WandbTool(tmp_path))
    assert site.exporter(target).follow(ScriptedStudy(script)) is not None  # type: ignore[arg-type]
    assert any("could not be written: BrokenPipeError" in line for line in site.said)
    same(wandb_points(tmp_path), table(script))


def test_a_file_without_its_exit_record_is_not_complete(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W&B's process writes the last records after `finish` has returned."""
    copied(WandbTool(tmp_path), script, [])
    monkeypatch.setattr(wandb_files, "LIMIT_S", 0.0)
    folder = next(tmp_path.glob("wandb/offline-run-*"))
    assert wandb_files.completed(folder)
    (file,) = folder.glob("run-*.wandb")
    file.write_bytes(file.read_bytes()[:-5])
    assert not wandb_files.completed(folder)
    file.unlink()
    assert not wandb_files.completed(folder)


def test_wandb_runs_are_continued_by_other_threads(script: Script, tmp_path: Path) -> None:
    """With all studies, each turn of a study may have another thread."""
    growing = []
    for events in (250, 200, 150, 100, 50):
        part = cut(events)
        part.moments[-1].study.state = part.moments[0].study.state
        growing += [[part]] * 20
    followed(Listed([*growing, [script]]), RunsTarget(WandbTool(tmp_path)), 1)  # type: ignore[arg-type]
    same(wandb_points(tmp_path), table(script))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_a_position_that_cannot_be_written_is_tried_again(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The folder is there, so its run is not written again."""
    write, count = positions.write, 0

    def failing(folder: Path, position: positions.Position, name: str = positions.NAME) -> None:
        nonlocal count
        count += 1
        if count % 3:
            raise OSError(code, os.strerror(code))
        write(folder, position, name)

    monkeypatch.setattr(positions, "write", failing)
    monkeypatch.setattr("exporter_site.BATCH", 60)
    site = Site()
    target = RunsTarget(WandbTool(tmp_path))
    assert site.exporter(target).follow(ScriptedStudy(script)) is not None  # type: ignore[arg-type]
    assert not any("first event" in line for line in site.said)
    assert any(f"cannot be written: {os.strerror(code)}." in line for line in site.said)
    same(wandb_points(tmp_path), table(script))


def upload(folder: Path, received: Received) -> None:
    """Uploads what is finished, as the how-to says."""
    bin_folder = Path(sys.executable).parent
    env = {**os.environ, "WANDB_BASE_URL": received.address, "WANDB_API_KEY": "a" * 40}
    env["PATH"] = f"{bin_folder}:{env['PATH']}"
    command = "wandb sync $(dirname wandb/offline-run-*/headrace.json)"
    subprocess.run(command, shell=True, cwd=folder, env=env, check=True, capture_output=True)


def test_a_kill_after_a_part_was_uploaded_doubles_nothing(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trial 1 has a finished folder, continues, and is killed."""
    monkeypatch.setattr(wandb_folders, "MOST_OPEN", 1)
    todo = list(updates(script, batch=5))
    with wandb_server() as received:
        sink = RunsSink(WandbTool(tmp_path).open(info(script), print, Start.RESUME))
        for update in todo[:8]:
            sink.write(update)
        sink.close(ended=False)
        upload(tmp_path, received)
        killed = WandbTool(tmp_path).open(info(script), print, Start.RESUME)
        sink = RunsSink(killed)
        for update in todo[8:11]:
            sink.write(update)
        upload(tmp_path, received)
        sink = RunsSink(WandbTool(tmp_path).open(info(script), print, Start.RESUME))
        assert sink.cursor == 0
        ((trial, run),) = [
            (trial, copy.run) for trial, copy in killed._copies.items() if copy.run is not None
        ]
        assert trial == 1
        run.finish()  # W&B's process notices the kill
        for update in todo:
            sink.write(update)
        sink.close(ended=True)
        upload(tmp_path, received)
    same(received.points(), table(script))
    assert received.overwritten == 0


@pytest.mark.parametrize("most_open", [50, 1])
def test_wandb_sync_uploads_every_point_once(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_open: int
) -> None:
    """W&B's own reader, and a double of its server. With one open run at a time, runs have several folders."""
    monkeypatch.setattr(wandb_folders, "MOST_OPEN", most_open)
    copied(WandbTool(tmp_path), script, [], batch=20)
    folders = len(list(tmp_path.glob("wandb/offline-run-*")))
    with wandb_server() as received:
        upload(tmp_path, received)
    same(received.points(), table(script))
    assert received.overwritten == 0
    run = received.runs["0123456789ab-1"]
    assert (run["groupName"], run["displayName"], run["project"]) == ("digits", "digits/1", "headrace")
    assert json.loads(run["config"])["optimizer"]["value"] == "sgd"
    assert received.summaries["0123456789ab-1"]["val_loss"] == table(script)[1, "val_loss"][-1][1]
    assert received.summaries["0123456789ab-13"]["headrace/reason"] == "failed"
    assert received.ended["0123456789ab-13"] == 1
    print(
        f"\nwandb sync: {folders} folders, {len(received.runs)} runs, "
        f"{sum(map(len, received.points().values()))} points"
    )
