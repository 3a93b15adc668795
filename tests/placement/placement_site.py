"""A scheduler with workers of fake GPUs, as real processes, in a temporary folder."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
import psycopg

sys.path.insert(0, str(Path(__file__).parent.parent))  # also when a benchmark starts this cluster

from ready_home import furnish

from headrace import Client
from headrace.spec import StudySpec
from headrace_services.up.postgres import EmbeddedPostgres

PROGRAMS = Path(__file__).parent / "programs"
T = TypeVar("T")


def until(holds: Callable[[], T | None], what: str, deadline_s: float = 90) -> T:
    """Poll until something holds, and return it."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        found = holds()
        if found:
            return found
        signal.sigtimedwait((), 0.1)
    raise AssertionError(f"{what}: not within {deadline_s:g} s")


@dataclass
class Site:
    """A running cluster."""

    folder: Path
    address: str
    workers: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def create(self, name: str, study: StudySpec) -> None:
        """Create a study, which starts at once."""
        with Client(self.address) as client:
            client.create_study(name, study)

    def start_worker(self, name: str, *, fake_gpus: int, fake_links: str = "") -> None:
        """Start a worker daemon."""
        command = [sys.executable, "-m", "headrace.cli", "worker", "--scheduler", self.address]
        command += ["--name", name, "--home", str(self.folder / name), "--fake-gpus", str(fake_gpus)]
        command += ["--store", (self.folder / "store").as_uri()]
        command += ["--fake-links", fake_links] if fake_links else []
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.workers[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)

    def kill_worker(self, name: str) -> None:
        """Kill a daemon together with its trials."""
        process = self.workers.pop(name)
        process.kill()
        process.wait()

    def rows(self, sql: str) -> list[Any]:
        """Return the rows of a query."""
        data = EmbeddedPostgres(data_dir=self.home / "postgres", log_path=self.home / "logs/postgres.log")
        with psycopg.connect(data.url.replace("+psycopg", "")) as conn:
            return conn.execute(sql).fetchall()

    def finished(self, name: str, deadline_s: float = 120) -> None:
        """Wait for the end of a study."""

        def ended() -> Any:
            return self.rows(
                f"SELECT state, detail FROM study WHERE name = '{name}' AND end_time IS NOT NULL"
            )

        ((state, detail),) = until(ended, f"the end of {name}", deadline_s)
        assert state == "COMPLETED", detail

    def journal(self, name: str) -> Path:
        """A folder for what the trials of a study record."""
        folder = self.folder / f"journal-{name}"
        folder.mkdir(exist_ok=True)
        return folder


def lines(folder: Path) -> list[dict[str, Any]]:
    """Everything that was recorded; a line cut off by a kill is left out."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text().splitlines()
        if line.endswith("}")
    ]


@contextmanager
def site(folder: Path, own_slots: int = 0, **workers: int) -> Iterator[Site]:
    """Run `headrace up` with `own_slots` CPU slots of its own, or none, and workers with that many fake GPUs."""
    home = folder / "home"
    furnish(home)
    command = [sys.executable, "-m", "headrace.cli", "up", "--home", str(home), "--port", "0", "--no-console"]
    command += ["--slots", str(own_slots)] if own_slots else ["--no-worker"]
    command += ["--heartbeat-interval", "0.5", "--lease-ttl", "8"]
    with (folder / "up.log").open("wb") as log:
        up = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    here: Site | None = None
    try:
        address = until(lambda: _read(home / "address"), "headrace up", 120)
        here = Site(folder, address)
        for name, fake_gpus in workers.items():
            here.start_worker(name, fake_gpus=fake_gpus)
        yield here
    finally:
        for process in here.workers.values() if here else ():
            process.terminate()
        for process in here.workers.values() if here else ():
            _gone(process)
        up.terminate()
        _gone(up)


def _gone(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(40)
    except subprocess.TimeoutExpired:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait()


def _read(path: Path) -> str | None:
    return path.read_text().strip() if path.exists() else None


def spec(program: str, *, env: dict[str, str] | None = None, **changes: Any) -> StudySpec:
    """A small study of one of the programs here."""
    fields: dict[str, Any] = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "policy": {"kind": "run_all"},
        "template": {"callable": program, "working_dir": str(PROGRAMS), "env": env or {}},
        "resources": {"gpus": 1},
        "max_trials": 1,
        "max_steps": 8,
        "seed": 3,
    }
    return StudySpec.model_validate({**fields, **changes})
