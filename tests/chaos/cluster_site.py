"""A whole cluster on this machine, `headrace up`, and ways to damage it."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))  # also when a scenario runs as a program

from ready_home import furnish

from headrace import Client
from headrace.spec import StudySpec
from headrace_services.up.postgres import EmbeddedPostgres

PROGRAMS = Path(__file__).parent / "programs"
TICK_S = 0.1

T = TypeVar("T")


def until(holds: Callable[[], T | None], what: str, deadline_s: float = 120) -> T:
    """Poll until something holds, and return it."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        found = holds()
        if found:
            return found
        signal.sigtimedwait((), TICK_S)
    raise AssertionError(f"{what}: not within {deadline_s:g} s")


@dataclass(slots=True)
class Cluster:
    """`headrace up` and what it started."""

    process: psutil.Process
    home: Path
    address: str

    def children(self, name: str) -> list[psutil.Process]:
        """Return the `postgres`, `scheduler` or `worker` processes that run now."""
        found = []
        for process in self.process.children():
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            if any(Path(word).name.startswith(name) for word in words[:4]):
                found.append(process)
        return found

    def child(self, name: str) -> psutil.Process | None:
        """Return the first of them."""
        return next(iter(self.children(name)), None)

    @property
    def addresses(self) -> tuple[str, ...]:
        """One address per scheduler."""
        return tuple(self.address.split(","))

    @property
    def database_url(self) -> str:
        """The embedded Postgres, for queries that bypass the product."""
        url = EmbeddedPostgres(data_dir=self.home / "postgres", log_path=self.home / "logs/postgres.log").url
        return url.replace("+psycopg", "")

    def trials(self) -> list[psutil.Process]:
        """Return the trial processes that run now."""
        found = []
        for process in psutil.process_iter():
            try:
                ours = str(self.home) in str(process.environ())
                if ours and " ".join(process.cmdline()).startswith("headrace: trial "):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def kill(self, process: psutil.Process | None, number: int = signal.SIGKILL) -> bool:
        """Send a signal; returns False if there was no process to send it to."""
        try:
            if process is None:
                return False
            process.send_signal(number)
        except psutil.NoSuchProcess:
            return False
        return True


def journals(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return what the trials of a study recorded, by lease. A line cut off by a kill is left out."""
    return {
        path.stem: [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        for path in folder.glob("*.jsonl")
    }


@contextmanager
def cluster(
    folder: Path,
    *,
    slots: int = 2,
    replicas: int = 1,
    lease_ttl_s: float = 20,
    worker: bool = True,
    database_url: str | None = None,
) -> Iterator[Cluster]:
    """Run `headrace up` in `folder` until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    home = folder / "home"
    if database_url is None:
        furnish(home)
    command = [sys.executable, "-m", "headrace.cli", "up", "--home", str(home), "--port", "0", "--no-console"]
    command += ["--slots", str(slots), "--replicas", str(replicas)]
    command += [] if worker else ["--no-worker"]
    command += ["--database-url", database_url] if database_url else []
    command += ["--heartbeat-interval", str(min(1.0, lease_ttl_s / 6)), "--lease-ttl", str(lease_ttl_s)]
    with (folder / "up.log").open("wb") as log:
        started = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        address = until(lambda: _read(home / "address"), "headrace up", 120)
        yield Cluster(psutil.Process(started.pid), home, address)
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(60)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def _read(path: Path) -> str | None:
    return path.read_text().strip() if path.exists() else None


def chain_spec(journal: Path, *, step_s: float = 0.03, **changes: Any) -> StudySpec:
    """A study of the chain program: ASHA over three rungs, with a journal of its own."""
    journal.mkdir(parents=True)
    env = {"CHAIN_JOURNAL": str(journal), "CHAIN_STEP_S": str(step_s)}
    fields: dict[str, Any] = {
        "objective": {"metric": "score", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "sampler": {"kind": "random"},
        "policy": {"kind": "asha", "eta": 3, "rungs": [2, 6, 18], "variant": "promotion"},
        "template": {"callable": "chain:train", "working_dir": str(PROGRAMS), "env": env},
        "max_trials": 15,
        "max_steps": 18,
        "seed": 5,
        "max_retries": 0,
    }
    return StudySpec.model_validate({**fields, **changes})


def connect(site: Cluster) -> Client:
    """Return a client that waits out restarts of the scheduler."""
    return Client(site.address, timeout_s=60, connect_timeout_s=60)
