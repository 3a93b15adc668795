"""The exporter is killed 20 times while 30 trials of a real service report: the trackers' points are the trial table.

One process writes to MLflow's server and to TensorBoard. W&B has a test of its own, with fewer trials: each of its
restarts writes every open run again.
"""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.timeout(1200), pytest.mark.filterwarnings("default")]
for package in ("mlflow", "tensorboard", "wandb"):
    pytest.importorskip(package, reason="`make test-trackers` installs it")

from copied_study import Points, same  # noqa: E402  # after the check for the packages
from fake_mlflow import LARGEST  # noqa: E402  # after the check for the packages
from real_service import service  # noqa: E402  # after the check for the packages
from real_trackers import (  # noqa: E402  # after the check for the packages
    mlflow_points,
    mlflow_processes,
    mlflow_server,
    tensorboard_points,
    wandb_points,
)

from headrace import Client  # noqa: E402  # after the check for the packages
from headrace.client import AskedTrial, Study  # noqa: E402  # after the check for the packages

KILLS = int(os.environ.get("HEADRACE_KILLS", "20"))


class Trials:
    """Trials in this process that report until they are told to end, each at its own pace."""

    def __init__(self, client: Client, trials: int, pause_s: float) -> None:
        spec = {
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {"lr": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True}},
            "policy": {"kind": "run_all"},
            "trials": trials,
            "steps": 100_000,
        }
        self.study: Study = client.create_study("kills", spec)
        self.pause_s = pause_s
        self.ending = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(trials)]

    def __enter__(self) -> "Trials":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        asked = self.study.ask(client_id=f"trial {number}")
        assert asked is not None
        self._report(asked, random.Random(number))

    def _report(self, asked: AskedTrial, rng: random.Random) -> None:
        step = 0
        while not self.ending.wait(self.pause_s * rng.uniform(0.5, 1.5)):
            step += 1
            metrics = {
                "loss": rng.random(),
                "val/acc": rng.random(),
                "grad norm@0": rng.choice([1.0, float("nan")]),
            }
            asked.report(step, metrics)
        asked.complete()


def exporter(address: str, home: Path, *targets: str, **variables: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "headrace.cli", "track", "kills", "--address", address]
    command += [word for target in targets for word in ("--to", target)]
    env = {**os.environ, "HEADRACE_HOME": str(home), **variables}
    with (home / "track.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)


def experiments(uri: str) -> list[str]:
    from mlflow import MlflowClient

    return [one.name for one in MlflowClient(tracking_uri=uri).search_experiments()]


def table_of(study: Study) -> Points:
    found: Points = {}
    for report in study.reports():
        for name, value in report.metrics.items():
            found.setdefault((report.trial, name), []).append((report.step, value))
    return found


def killed_repeatedly(
    address: str, home: Path, trials: Trials, kills: int, written: Callable[[], object], *targets: str
) -> None:
    """Kills exporters, each up to three seconds after it has begun to write, however busy the machine is."""
    rng = random.Random(7)
    for _ in range(kills):
        before = written()
        running = exporter(address, home, *targets)
        deadline = time.monotonic() + 120
        while written() == before:
            assert running.poll() is None, (home / "track.log").read_text()
            assert time.monotonic() < deadline, (home / "track.log").read_text()
            time.sleep(0.1)  # the exporter says nothing about single writes
        time.sleep(rng.uniform(0.0, 3.0))
        assert running.poll() is None, (home / "track.log").read_text()
        running.kill()
        running.wait()
    trials.ending.set()


def stored_points(database: Path) -> int:
    """How many points MLflow's database has, without asking its server."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return int(connection.execute("SELECT count(*) FROM metrics").fetchone()[0])


def test_twenty_kills_while_thirty_trials_report(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with service(home) as address, mlflow_server(tmp_path / "mlflow") as uri, Client(address) as client:
        targets = (f"mlflow={uri}", f"tensorboard={tmp_path / 'runs'}")
        with Trials(client, 30, 0.5) as trials:
            killed_repeatedly(
                address, home, trials, KILLS, lambda: stored_points(tmp_path / "mlflow/mlflow.db"), *targets
            )
        status = trials.study.wait(60)
        during = sum(map(len, mlflow_points(uri, "kills").values()))
        last = exporter(address, home, *targets)
        assert last.wait(timeout=600) == 0, (home / "track.log").read_text()
        expected = table_of(trials.study)
        same(mlflow_points(uri, "kills"), expected, LARGEST)
        same(tensorboard_points(tmp_path / "runs/kills"), expected)
        total = sum(map(len, expected.values()))
        assert during
        print(
            f"\n{KILLS} kills, {status.counts.total} trials, {status.cursor} events: {total} points in the trial "
            f"table, {sum(map(len, mlflow_points(uri, 'kills').values()))} in MLflow ({during} of them before the "
            f"last start), {sum(map(len, tensorboard_points(tmp_path / 'runs/kills').values()))} in TensorBoard"
        )


def test_a_frozen_mlflow_stops_no_trial_and_doubles_nothing(tmp_path: Path) -> None:
    """Requests that were given up are still carried out once the server continues, after they were sent again."""
    home = tmp_path / "home"
    with (
        service(home) as address,
        mlflow_processes(tmp_path / "mlflow") as (uri, group),
        Client(address) as client,
    ):
        with Trials(client, 10, 0.5) as trials:
            running = exporter(address, home, f"mlflow={uri}", MLFLOW_HTTP_REQUEST_TIMEOUT="3")
            while "kills" not in experiments(uri):
                time.sleep(0.5)
            time.sleep(3)
            os.killpg(group, signal.SIGSTOP)
            before = trials.study.status().cursor
            time.sleep(25)
            after = trials.study.status().cursor
            os.killpg(group, signal.SIGCONT)
        assert running.wait(timeout=300) == 0, (home / "track.log").read_text()
        expected = table_of(trials.study)
        same(mlflow_points(uri, "kills"), expected, LARGEST)
        said = (home / "track.log").read_text()
        print(
            f"\nfrozen for 25 s: {after - before} events meanwhile, {sum(map(len, expected.values()))} points\n{said}"
        )
        assert after - before > 100
        assert said.count("does not answer") == 1
        assert said.count("works again") == 1


def test_wandb_after_five_kills(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with service(home) as address, Client(address) as client:
        target = f"wandb={tmp_path / 'w'}"
        with Trials(client, 4, 0.3) as trials:
            killed_repeatedly(
                address, home, trials, 5, lambda: sorted((tmp_path / "w/wandb").glob("offline-run-*")), target
            )
        trials.study.wait(60)
        last = exporter(address, home, target)
        assert last.wait(timeout=300) == 0, (home / "track.log").read_text()
        expected = table_of(trials.study)
        same(wandb_points(tmp_path / "w"), expected)
        print(f"\n5 kills: {sum(map(len, expected.values()))} points in the trial table and in W&B's files")
