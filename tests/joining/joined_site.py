"""An authority, a scheduler with two listeners and workers that join, all real processes."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from headrace import Client
from headrace.client import joining
from headrace_services.identity import authority
from headrace_services.identity.lifetimes import WORKER_LIVES

WORKER = "import typer; from headrace_worker.command import worker; app = typer.Typer(); app.command()(worker); app()"
WAIT_S = 90.0


def until(condition: Callable[[], Any], what: str, within_s: float = WAIT_S) -> Any:
    """Polls until the condition holds; returns its value."""
    end = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.1)
    return value


@dataclass
class JoinedSite:
    """A cluster in a folder."""

    root: Path
    ca: Path
    database_url: str
    stack: ExitStack
    users: str = ""
    workers: str = ""
    scheduler: "subprocess.Popen[bytes] | None" = None
    logs: dict[str, Path] = field(default_factory=dict)

    @property
    def client(self) -> Client:
        return Client(f"tls://{self.users}", tls_ca=self.ca / "ca.pem", connect_timeout_s=20)

    def token(self, **options: Any) -> str:
        """A join token."""
        given = {"worker": "", "uses": 1, "lifetime": WORKER_LIVES, **options}
        with self.client as client:
            _, secret = client.transport.run(joining.create_token(**given))
        return secret

    def start_scheduler(self, *options: str) -> None:
        """Starts it, at its earlier address if it had one."""
        (self.root / "scheduler.log").write_text("")
        self.scheduler = self.run(
            "scheduler",
            (
                "-m",
                "headrace.cli",
                "scheduler",
                "--ca",
                str(self.ca),
                "--listen",
                self.users or "127.0.0.1:0",
            ),
            *("--worker-listen", self.workers or "127.0.0.1:0", "--sampler-processes", "1"),
            *("--heartbeat-interval", "0.3", "--lease-ttl", "3", *options),
            env={"HEADRACE_DATABASE_URL": self.database_url},
        )
        self.workers = self._said("workers connect to ")
        self.users = self._said("serving on ")

    def start_worker(self, name: str, *options: str, **env: str) -> "subprocess.Popen[bytes]":
        """Starts a worker of one slot."""
        where = ("--scheduler", f"tls://{self.users}", "--tls-ca", str(self.ca / "ca.pem"), "--name", name)
        kept = ("--home", str(self.root / name), "--store", (self.root / "store").as_uri())
        return self.run(
            name, ("-c", WORKER), *where, *kept, "--cpu-slots", "1", "--stop-grace", "1", *options, env=env
        )

    def run(
        self, name: str, program: tuple[str, ...], *options: str, env: dict[str, str]
    ) -> "subprocess.Popen[bytes]":
        log = self.logs[name] = self.root / f"{name}.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, *program, *options],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **env},
            )
        self.stack.callback(_end, process)
        return process

    def log(self, name: str) -> str:
        """A process's log."""
        return self.logs[name].read_text()

    def says(self, name: str, text: str, within_s: float = WAIT_S) -> None:
        """Waits until a process logs something."""
        until(lambda: text in self.log(name), f"{name}: {text!r}; it says: {self.logs[name]}", within_s)

    def connected(self) -> dict[str, Any]:
        """The workers that are connected, by name."""
        with self.client as client:
            return {worker.name: worker for worker in client.workers() if worker.connected}

    def _said(self, beginning: str) -> str:
        def found() -> str:
            assert self.scheduler is not None
            assert self.scheduler.poll() is None, self.log("scheduler")
            lines = [line for line in self.log("scheduler").splitlines() if beginning in line]
            return lines[0].partition(beginning)[2].strip() if lines else ""

        return until(found, f"the scheduler says {beginning!r}")


@contextmanager
def one_database(postgres_url: str, template: str) -> Iterator[str]:
    """A fresh database for several tests."""
    name = f"joining_{secrets.token_hex(6)}"
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
    head, _, query = postgres_url.partition("?")
    yield f"{head.rpartition('/')[0]}/{name}?{query}"
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def joined_site(root: Path, database_url: str, *options: str) -> Iterator[JoinedSite]:
    """A scheduler that requires certificates of workers; everything is stopped afterwards."""
    with ExitStack() as stack:
        site = JoinedSite(root, root / "ca", database_url, stack)
        authority.make(site.ca, ["localhost", "127.0.0.1"], now=datetime.now(UTC))
        site.start_scheduler(*options)
        yield site


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
