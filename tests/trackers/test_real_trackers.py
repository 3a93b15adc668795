"""Real trackers have what the study has: MLflow's server, TensorBoard, and W&B offline. `make test-trackers`."""

import math
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

pytestmark = [pytest.mark.full, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]
for package in ("mlflow", "tensorboard", "wandb"):
    pytest.importorskip(package, reason="`make test-trackers` installs it")

from copied_study import KilledError, copied, info, same, table, updates  # noqa: E402
from fake_mlflow import LARGEST  # noqa: E402
from real_trackers import (  # noqa: E402
    asked,
    free_port,
    mlflow_points,
    mlflow_runs,
    mlflow_server,
    tensorboard_points,
    tensorboard_server,
    wandb_points,
    wandb_runs,
)
from scripted_study import Script  # noqa: E402

from headrace.client import convert  # noqa: E402
from headrace.track import positions, tensorboard_files, wandb_folders  # noqa: E402
from headrace.track.mlflow_runs import MlflowTool  # noqa: E402
from headrace.track.tensorboard_files import TensorboardTool  # noqa: E402
from headrace.track.tracker import AwayError, RefusedError, RunsSink, Start  # noqa: E402
from headrace.track.wandb_folders import WandbTool  # noqa: E402


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
    runs = WandbTool(tmp_path).open(info(script), print, Start.RESUME)
    sink = RunsSink(runs)
    for update in part:
        sink.write(update)
    sink.close(ended=False)
    found = wandb_runs(tmp_path)
    assert any(len(list(tmp_path.glob(f"wandb/offline-run-*-{trial}"))) > 1 for trial in found)
    assert all(run["steps"] == list(range(len(run["steps"]))) for run in found.values())
    expected: dict[tuple[int, str], list[tuple[int, float]]] = {}
    for event in (event for update in part for event in update.events):
        if event.detail is not None and hasattr(event.detail, "metrics"):
            for name, value in event.detail.metrics.items():
                expected.setdefault((event.trial or 0, name), []).append((event.detail.step, value))
    same(wandb_points(tmp_path), expected)


@pytest.mark.parametrize("tool", ["tensorboard", "wandb"])
def test_a_study_is_copied_from_its_tables(script: Script, tmp_path: Path, tool: str) -> None:
    """Some runs have half of their events: they are written again from the start."""
    made = TensorboardTool(tmp_path) if tool == "tensorboard" else WandbTool(tmp_path)
    sink = RunsSink(made.open(info(script), print, Start.RESUME))
    for update in updates(script, batch=60):
        sink.write(update)
        break
    sink.close(ended=False)
    sink = RunsSink(made.open(info(script), print, Start.RESUME))
    trials = [convert.trial(trial) for trial in script.final.trials]
    reports = [convert.report(report) for report in script.reports]
    for _ in range(2):  # the second time changes nothing
        sink.write_tables(info(script), trials, reports)
    sink.close(ended=True)
    found = tensorboard_points(tmp_path / "digits") if tool == "tensorboard" else wandb_points(tmp_path)
    same(found, table(script))
