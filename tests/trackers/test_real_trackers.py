"""Real trackers have what the study has: MLflow's server, TensorBoard, and W&B offline. `make test-trackers`."""

import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

pytestmark = [pytest.mark.full, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]
for package in ("mlflow", "tensorboard", "wandb"):
    pytest.importorskip(package, reason="`make test-trackers` installs it")

from copied_study import KilledError, Points, copied, info, same, story, table, updates  # noqa: E402  # after the check for the packages
from exporter_site import ScriptedStudy, Site, cut  # noqa: E402  # after the check for the packages
from fake_mlflow import LARGEST  # noqa: E402  # after the check for the packages
from real_trackers import (  # noqa: E402  # after the check for the packages
    asked,
    free_port,
    mlflow_points,
    mlflow_runs,
    mlflow_server,
    tensorboard_points,
    tensorboard_records,
    tensorboard_server,
    wandb_points,
)
from scripted_study import Script  # noqa: E402  # after the check for the packages

from headrace.client import convert  # noqa: E402  # after the check for the packages
from headrace.errors import InvalidFieldError  # noqa: E402  # after the check for the packages
from headrace.track import positions, tensorboard_files  # noqa: E402  # after the check for the packages
from headrace.track.mlflow_runs import MlflowTool  # noqa: E402  # after the check for the packages
from headrace.track.targets import RunsTarget, parse, target_of  # noqa: E402  # after the check for the packages
from headrace.track.tensorboard_files import TensorboardTool  # noqa: E402  # after the check for the packages
from headrace.track.tracker import AwayError, ForgottenError, RefusedError, RunsSink, Start  # noqa: E402  # after the check for the packages
from headrace.track.wandb_folders import WandbTool  # noqa: E402  # after the check for the packages

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_mlflow_has_every_point_parameter_and_end(script: Script, tmp_path: Path) -> None:
    said: list[str] = []
    with mlflow_server(tmp_path) as uri:
        copied(MlflowTool(uri), script, said, batch=50)
        copied(MlflowTool(uri), script, said, batch=50, again=True)  # nothing is doubled
        same(mlflow_points(uri, "digits"), table(script), LARGEST)
        runs = mlflow_runs(uri, "digits")
        assert len(runs) == 28
        failed = runs[13]
        assert failed.info.status == "FAILED"
        assert failed.info.run_name == "trial 13"
        assert "ValueError" in failed.data.tags["headrace.detail"]
        assert runs[1].data.params["momentum"] == "0.17"
        assert {
            run.data.tags["headrace.rule"] for run in runs.values() if "headrace.rule" in run.data.tags
        } == {"asha_promotion"}
        print(f"\nMLflow: {len(runs)} runs, {sum(map(len, mlflow_points(uri, 'digits').values()))} points")
        print({key: value for key, value in runs[1].data.tags.items() if key.startswith("headrace.")})
    assert sum("'a//b'" in line for line in said) == 1


def test_mlflow_that_is_down_deleted_or_forgets(script: Script, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    port = free_port()
    with pytest.raises(AwayError, match="Connection refused"):
        MlflowTool(f"http://127.0.0.1:{port}").open(info(script), print, Start.RESUME)
    todo = list(updates(script, batch=100))
    with mlflow_server(tmp_path / "a", port) as uri:
        sink = RunsSink(MlflowTool(uri).open(info(script), print, Start.RESUME))
        sink.write(todo[0])
    with pytest.raises(AwayError):
        sink.write(todo[1])
    with mlflow_server(tmp_path / "a", port) as uri:
        for update in todo[1:]:
            sink.write(update)
        sink.close(ended=True)
        same(mlflow_points(uri, "digits"), table(script), LARGEST)
        client = MlflowClient(tracking_uri=uri)
        runs = mlflow_runs(uri, "digits")
        client.delete_run(runs[4].info.run_id)
        said: list[str] = []
        copied(MlflowTool(uri), script, said, again=True, batch=100)
        assert 4 not in mlflow_runs(uri, "digits")
        client.delete_experiment(runs[4].info.experiment_id)
        with pytest.raises(RefusedError, match="was deleted"):
            MlflowTool(uri).open(info(script), print, Start.RESUME)
    with mlflow_server(tmp_path / "b", port) as uri:  # another database: it has forgotten everything
        copied(MlflowTool(uri), script, [], batch=100)
        same(mlflow_points(uri, "digits"), table(script), LARGEST)


@pytest.mark.parametrize("status", [401, 403])
def test_mlflow_that_rejects_the_credentials(script: Script, status: int) -> None:
    class Rejecting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

        def do_POST(self) -> None:
            self.send_error(status)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Rejecting)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        with pytest.raises(RefusedError, match=f"rejects the credentials: .*{status}"):
            MlflowTool(f"http://127.0.0.1:{server.server_port}").open(info(script), print, Start.RESUME)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_tensorboard_has_every_point(script: Script, tmp_path: Path) -> None:
    copied(TensorboardTool(tmp_path), script, [])
    before = {file: file.read_bytes() for file in tmp_path.rglob("*tfevents*")}
    copied(TensorboardTool(tmp_path), script, [], again=True)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*tfevents*")} == before
    same(tensorboard_points(tmp_path / "digits"), table(script))


def test_tensorboard_is_whole_after_a_kill_at_any_write(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a write, in the middle of it, between it and its position, and after the position."""
    append, write = tensorboard_files._append, positions.write
    count = 0

    def killed() -> bool:
        nonlocal count
        count += 1
        return count % 17 == 0

    def append_and_die(file: Path, size: int, records: object) -> int:
        if killed():
            raise KilledError
        found = append(file, size, records)  # type: ignore[arg-type]
        if killed():
            raise KilledError
        if killed():
            with file.open("r+b") as half:
                half.truncate(max(size, found - 5))
            raise KilledError
        return found

    def write_and_die(*arguments: object) -> None:
        if killed():
            raise KilledError
        write(*arguments)  # type: ignore[arg-type]
        if killed():
            raise KilledError

    copied(TensorboardTool(tmp_path / "undisturbed"), script, [])
    monkeypatch.setattr(tensorboard_files, "_append", append_and_die)
    monkeypatch.setattr(positions, "write", write_and_die)
    deaths = 0
    for _ in range(2000):
        try:
            copied(TensorboardTool(tmp_path / "killed"), script, [], batch=5)
        except KilledError:
            deaths += 1
            continue
        break
    assert deaths > 20
    same(tensorboard_points(tmp_path / "killed/digits"), table(script))
    for file in (tmp_path / "undisturbed").rglob("*tfevents*"):
        assert (
            tmp_path / "killed" / file.relative_to(tmp_path / "undisturbed")
        ).read_bytes() == file.read_bytes()


def test_tensorboard_itself_shows_scalars_and_hparams(script: Script, tmp_path: Path) -> None:
    copied(TensorboardTool(tmp_path / "runs"), script, [])
    with tensorboard_server(tmp_path / "runs") as url:
        deadline = time.monotonic() + 60
        while len(asked(f"{url}/data/runs")) < 29:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        points = asked(f"{url}/data/plugin/scalars/scalars?run=digits/trial-0000&tag=val_loss")
        assert [(step, value) for _, step, value in points] == table(script)[0, "val_loss"]
        experiment = asked(f"{url}/data/plugin/hparams/experiment", {"experimentName": "digits"})
        assert {one["name"] for one in experiment["hparamInfos"]} == {"lr", "momentum", "optimizer", "width"}
        request = {
            "experimentName": "digits",
            "allowedStatuses": ["STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING", "STATUS_UNKNOWN"],
            "colParams": [{"metric": {"tag": "val_loss", "group": ""}, "order": "ORDER_ASC"}],
            "startIndex": 0,
            "sliceSize": 100,
        }
        groups = asked(f"{url}/data/plugin/hparams/session_groups", request)["sessionGroups"]
        assert len(groups) == 28
        by_name = {group["name"]: group for group in groups}
        assert by_name["trial 13"]["sessions"][0]["status"] == "STATUS_FAILURE"
        assert by_name["trial 1"]["hparams"]["optimizer"] == "sgd"
        print(f"\nTensorBoard: {len(groups)} session groups, such as {json_of(by_name['trial 1'])}")


def json_of(group: object) -> str:
    return str(group)[:300]


@pytest.mark.parametrize("tool", ["mlflow", "tensorboard", "wandb"])
def test_a_study_is_copied_from_its_tables(script: Script, tmp_path: Path, tool: str) -> None:
    """Some runs have half of their events: they are written again from the start, or get what they lack."""
    with made(tool, tmp_path) as (target, points):
        sink = RunsSink(target.open(info(script), print, Start.RESUME))
        for update in updates(script, batch=60):
            sink.write(update)
            break
        sink.close(ended=False)
        sink = RunsSink(target.open(info(script), print, Start.RESUME))
        trials = [convert.trial(trial) for trial in script.final.trials]
        reports = [replace(convert.report(report), time=NOON) for report in script.reports]
        for _ in range(2):  # the second time changes nothing
            sink.write_tables(info(script), trials, reports)
        sink.close(ended=True)
        same(points(), table(script), LARGEST if tool == "mlflow" else math.inf)


@pytest.mark.parametrize("tool", ["mlflow", "tensorboard", "wandb"])
def test_a_study_whose_scheduler_was_restored_is_set_aside(script: Script, tmp_path: Path, tool: str) -> None:
    restored = cut(120)
    with made(tool, tmp_path) as (target, points):
        copied(target, script, [], batch=50)
        assert target.open(info(restored), print, Start.RESUME).newest > info(restored).cursor
        sink = RunsSink(target.open(info(restored), print, Start.SET_ASIDE))
        assert sink.cursor == sink.newest == 0
        for update in updates(restored, batch=50):
            sink.write(update)
        sink.close(ended=True)
        copied(target, restored, [])  # a new process continues the new copy
        if tool == "wandb":
            for folder in sorted(tmp_path.glob("wandb/offline-run-*")):  # first listed, then moved
                if "r1-" not in folder.name:
                    folder.rename(tmp_path / folder.name)
        assert tool != "wandb" or len(list(tmp_path.glob("offline-run-*"))) == 28
        same(points(), table(restored), LARGEST if tool == "mlflow" else math.inf)
        if tool == "tensorboard":
            (aside,) = tmp_path.glob("digits-until-*")
            same(tensorboard_points(aside), table(script))


@contextmanager
def made(tool: str, folder: Path) -> Iterator[tuple[Any, Callable[[], Points]]]:
    """A tool, and a reader of its points."""
    match tool:
        case "mlflow":
            with mlflow_server(folder) as uri:
                yield MlflowTool(uri), lambda: mlflow_points(uri, "digits")
        case "tensorboard":
            yield TensorboardTool(folder), lambda: tensorboard_points(folder / "digits")
        case _:
            yield WandbTool(folder), lambda: wandb_points(folder)


@pytest.mark.parametrize("damage", ["gone", "shorter", "folder gone"])
def test_a_tensorboard_file_that_is_damaged_is_written_again(
    script: Script, tmp_path: Path, damage: str
) -> None:
    target = TensorboardTool(tmp_path)
    sink = RunsSink(target.open(info(script), print, Start.RESUME))
    for update in updates(script):
        if update.events[-1].cursor < 100:
            sink.write(update)
    later = {event.trial for update in updates(script, after=100) for event in update.events}
    file = next(
        file for file in sorted(tmp_path.glob("digits/trial-*/*tfevents*")) if number_of(file) in later
    )
    match damage:
        case "gone":
            file.unlink()
        case "shorter":
            file.write_bytes(file.read_bytes()[:-30])
        case _:
            shutil.rmtree(file.parent)
    site = Site()
    assert site.exporter(RunsTarget(target)).follow(ScriptedStudy(script)) is not None  # type: ignore[arg-type]
    (line,) = [line for line in site.said if file.parent.name in line]
    assert line.endswith("Writing digits again from its first event.")
    assert len(site.waited) == 1
    same(tensorboard_points(tmp_path / "digits"), table(script))


def test_a_tensorboard_folder_that_is_removed_is_written_again(script: Script, tmp_path: Path) -> None:
    """Also if a new trial is the next that is written."""
    sink = RunsSink(TensorboardTool(tmp_path).open(info(script), print, Start.RESUME))
    first, second, *_ = updates(script, batch=31)
    assert second.events[0].detail is not None
    sink.write(first)
    shutil.rmtree(tmp_path / "digits")
    with pytest.raises(ForgottenError, match="digits is gone"):
        sink.write(second)
    copied(TensorboardTool(tmp_path), script, [], again=True)
    assert (tmp_path / "digits" / tensorboard_files.FILE).exists()
    same(tensorboard_points(tmp_path / "digits"), table(script))


def test_no_metric_has_the_tag_of_a_text(tmp_path: Path) -> None:
    script = story()
    for event in script.events:
        if event.HasField("report_recorded"):
            event.report_recorded.metrics.update({"headrace/state": 1.0, "_u68_eadrace/state": 2.0})
    copied(TensorboardTool(tmp_path), script, [])
    kinds: dict[str, set[str]] = {}
    for _, record in tensorboard_records(tmp_path / "digits"):
        for value in record.summary.value:
            if value.metadata.plugin_data.plugin_name != "hparams":
                kinds.setdefault(value.tag, set()).add(value.metadata.plugin_data.plugin_name)
    assert kinds["headrace/state"] == {"text"}
    assert kinds["_u68_eadrace/state"] == kinds["_u5f_u68_eadrace/state"] == {"scalars"}


def number_of(file: Path) -> int:
    return int(file.parent.name.removeprefix("trial-"))


def test_tensorboard_has_the_checkpoint_the_reason_and_the_rule(tmp_path: Path) -> None:
    from tensorboard.util.tensor_util import make_ndarray

    script = story()
    for event in script.events:
        if event.HasField("report_recorded") and event.trial_number == 5:
            report = event.report_recorded
            report.checkpoint.uri, report.checkpoint.step = f"s3://bucket/5/{report.step}", report.step
            last = report.step
    copied(TensorboardTool(tmp_path), script, [])
    texts: dict[tuple[int, str], str] = {}
    for trial, record in tensorboard_records(tmp_path / "digits"):
        for value in record.summary.value:
            if value.metadata.plugin_data.plugin_name == "text":
                texts[trial, value.tag] = make_ndarray(value.tensor).item().decode()
    assert texts[5, "headrace/checkpoint"] == f"s3://bucket/5/{last}"
    assert texts[5, "headrace/checkpoint_step"] == str(last)
    assert texts[13, "headrace/reason"] == "failed"
    assert "asha_promotion" in {text for (_, tag), text in texts.items() if tag == "headrace/rule"}


@pytest.mark.parametrize("uri", ["foo://user:s3cret@m", "./somewhere"])
def test_a_uri_that_mlflow_cannot_use_is_an_error_with_a_remedy(uri: str) -> None:
    with pytest.raises(InvalidFieldError, match="MLflow cannot use this URI") as caught:
        target_of(parse(f"mlflow={uri}", {}), {})
    assert "s3cret" not in str(caught.value)
    assert "mlflow=http://HOST:PORT" in str(caught.value)


def test_mlflow_shows_no_password_when_it_is_down(script: Script) -> None:
    tool = MlflowTool(f"http://user:s3cret@127.0.0.1:{free_port()}")
    with pytest.raises(AwayError) as caught:
        tool.open(info(script), print, Start.RESUME)
    assert "s3cret" not in f"{tool.title}{caught.value}"
