"""Real schedulers by host name, with and without TLS: clients and workers find them, and another one when one is
killed."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from headrace import Client
from headrace.spec import parse_spec

sys.path.insert(0, str(Path(__file__).parent.parent / "client"))

from certificates import self_signed

pytestmark = pytest.mark.full

SERVING = "headrace scheduler: serving on "
SPEC = {
    "objective": {"metric": "loss", "goal": "minimize"},
    "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
    "policy": {"kind": "run_all"},
    "max_trials": 1,
    "max_steps": 1,
}
COMMAND = (sys.executable, "-m", "headrace.cli")


@contextmanager
def scheduler(database_url: str, *options: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    command = [*COMMAND, "scheduler", "--database-url", database_url, "--listen", "localhost:0"]
    with subprocess.Popen(
        [*command, "--heartbeat-interval", "0.5", "--lease-ttl", "3", *options],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip().removeprefix(SERVING)
        finally:
            process.kill()


@pytest.mark.timeout(200)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_schedulers_by_host_name(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    certificate, key = self_signed(tmp_path / "ca.pem", "localhost")
    options = ("--tls-cert", str(certificate), "--tls-key", str(key)) if tls else ()
    monkeypatch.setenv("HEADRACE_TLS_CA", str(certificate))
    with ExitStack() as running:
        first, one = running.enter_context(scheduler(database_url, *options))
        _, two = running.enter_context(scheduler(database_url, *options))
        address = f"{'tls://' if tls else ''}{one},{two}"
        assert address.count("localhost:") == 2
        program = "import os; assert not [n for n in os.environ if n.endswith('TLS_CA')]"
        worker = subprocess.Popen(
            [*COMMAND, "worker", "--name", "w", "--home", str(tmp_path / "w"), "--cpu-slots", "1"],
            env={**os.environ, "HEADRACE_ADDRESS": address, "HEADRACE_HOME": str(tmp_path / "home")},
        )
        running.callback(worker.wait)
        running.callback(worker.terminate)
        with Client(address, timeout_s=60) as client:
            until(lambda: [w for w in client.workers() if w.connected], "the worker is there")
            first.kill()
            first.wait()
            assert [study.name for study in client.studies()] == []
            template = {"command": {"args": [sys.executable, "-c", program]}, "working_dir": str(tmp_path)}
            study = client.create_study("s", parse_spec({**SPEC, "template": template, "max_retries": 0}))
            until(lambda: study.status().state.ended, "the trial ran")
            (trial,) = study.trials()
            assert trial.failures == 0


def until(holds, what: str, deadline_s: float = 60) -> None:
    deadline = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
