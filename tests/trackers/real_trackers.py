"""The real trackers: a server of MLflow, and readers of what each tracker has, by its own library or its format."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from copied_study import Points

from headrace.track.names import original

LIMIT_S = 120.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextmanager
def served(command: list[str], url: str, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Runs a server in its own session until the end; it answers at `url`."""
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                urllib.request.urlopen(url, timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def mlflow_server(folder: Path, port: int | None = None) -> Iterator[str]:
    """A server of MLflow with a database in a folder; yields its URI."""
    with mlflow_processes(folder, port) as (uri, _):
        yield uri


@contextmanager
def mlflow_processes(folder: Path, port: int | None = None) -> Iterator[tuple[str, int]]:
    """The same; yields its URI, and the group of its processes."""
    folder.mkdir(exist_ok=True)
    port = port or free_port()
    store = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder)]
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1", *store]
    with served(command, f"http://127.0.0.1:{port}/health", folder / "server.log") as process:
        yield f"http://127.0.0.1:{port}", process.pid


def mlflow_runs(uri: str, experiment: str) -> dict[int, Any]:
    """The runs of an experiment, by trial."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    runs = client.search_runs([found.experiment_id], max_results=1000)
    by_trial = {int(run.data.tags["headrace.trial"]): run for run in runs}
    assert len(by_trial) == len(runs)
    return by_trial


def mlflow_points(uri: str, experiment: str) -> Points:
    """Every point of every metric's history."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    return {
        (trial, original(key)): [
            (one.step, one.value) for one in client.get_metric_history(run.info.run_id, key)
        ]
        for trial, run in mlflow_runs(uri, experiment).items()
        for key in run.data.metrics
    }


def tensorboard_records(folder: Path) -> Iterator[tuple[int, Any]]:
    """Every record of every trial's event files, raw."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    for trial in sorted(folder.glob("trial-*")):
        (file,) = trial.glob("events.out.tfevents.*")
        for record in LegacyEventFileLoader(str(file)).Load():
            yield int(trial.name.removeprefix("trial-")), record


def tensorboard_points(folder: Path) -> Points:
    """Every scalar of every record: one that was written twice is there twice."""
    from tensorboard.util.tensor_util import make_ndarray

    found: Points = {}
    for trial, record in tensorboard_records(folder):
        for value in record.summary.value:
            if value.metadata.plugin_data.plugin_name == "scalars":
                number = float(make_ndarray(value.tensor).item())
                found.setdefault((trial, value.tag), []).append((record.step, number))
    return found


@contextmanager
def tensorboard_server(folder: Path) -> Iterator[str]:
    """TensorBoard itself."""
    port = free_port()
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", str(port)]
    command += ["--load_fast", "false", "--reload_interval", "1"]
    with served(command, f"http://127.0.0.1:{port}/data/environment", folder.parent / "tensorboard.log"):
        yield f"http://127.0.0.1:{port}"


def asked(url: str, request: Any = None) -> Any:
    """The JSON of an answer."""
    data = None if request is None else json.dumps(request).encode()
    with urllib.request.urlopen(
        urllib.request.Request(url, data, {"content-type": "application/json"})
    ) as answer:
        return json.loads(answer.read())


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of a `.wandb` file: LevelDB's log format, with blocks of 32 KiB, after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = file.read_bytes()
    assert data[:4] == b":W&B"
    place, parts = 7, b""
    while place + 7 <= len(data):
        if (room := 32_768 - place % 32_768) < 7:
            place += room
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def _json(item: Any) -> tuple[str, Any]:
    return item.key or "/".join(item.nested_key), json.loads(item.value_json)


def wandb_runs(folder: Path) -> dict[int, dict[str, Any]]:
    """Each run: `points`, `config`, `summary`, `group`, `exit`, over all folders of the same run, in order."""
    found: dict[int, dict[str, Any]] = {}
    for place in sorted(folder.glob("wandb/offline-run-*")):
        (file,) = place.glob("run-*.wandb")
        trial = int(file.stem.rpartition("-")[2])
        run = found.setdefault(trial, {"points": {}, "config": {}, "summary": {}, "steps": []})
        for record in wandb_records(file):
            _add(run, record)
    return found


def _add(run: dict[str, Any], record: Any) -> None:
    match record.WhichOneof("record_type"):
        case "run":
            run |= {
                "group": record.run.run_group,
                "name": record.run.display_name,
                "project": record.run.project,
            }
            run["config"] |= dict(map(_json, record.run.config.update))
        case "config":
            run["config"] |= dict(map(_json, record.config.update))
        case "summary":
            run["summary"] |= dict(map(_json, record.summary.update))
        case "history":
            row = dict(map(_json, record.history.item))
            run["steps"].append(row.pop("_step", record.history.step.num))
            step = row.pop("headrace/step")
            for name, value in row.items():
                if not name.startswith("_") or original(name) != name:
                    run["points"].setdefault(original(name), []).append((step, float(value)))
        case "exit":
            run["exit"] = record.exit.exit_code
        case _:
            pass


def wandb_points(folder: Path) -> Points:
    return {
        (trial, name): points
        for trial, run in wandb_runs(folder).items()
        for name, points in run["points"].items()
    }
