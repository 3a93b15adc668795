"""A dump of the scheduler's database is restored in mid-study, while outboxes and checkpoints are newer than it.

    dump → the study continues → the scheduler is killed, the database dropped and loaded from the dump → it restarts

The workers live on: their trials run, their outboxes fill, and their store has checkpoints of attempts that the dump
does not contain. No attempt may be issued twice (trials keep a journal per lease), nobody may be charged, and the
study must complete.
"""

import asyncio
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
from cluster_site import chain_spec, journals, until
from daemon_site import DaemonSite, daemons
from postgres_site import PostgresSite

from headrace import AsyncClient
from headrace.ports import any_port
from headrace_services.up import pgwheel

DATABASE = "restored"
REPORTS = "SELECT count(*) FROM report"


def program(name: str) -> str | None:
    """A program of Postgres: of the embedded server, or of the system."""
    ours = pgwheel.PROGRAMS / name
    return str(ours) if ours.exists() else shutil.which(name)


def run(
    folder: Path, say: Any, *, times: int = 3, workers: int = 2, trials: int = 12, step_s: float = 0.1
) -> dict[str, Any]:
    """Restore `times` times in one study; returns the record."""
    folder.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_run(folder, say, times=times, workers=workers, trials=trials, step_s=step_s))


async def _run(
    folder: Path, say: Any, *, times: int, workers: int, trials: int, step_s: float
) -> dict[str, Any]:
    postgres = PostgresSite(folder)
    await postgres.start()
    try:
        return await _restored(
            postgres, folder, say, times=times, workers=workers, trials=trials, step_s=step_s
        )
    finally:
        await postgres.stop()


async def _restored(
    postgres: PostgresSite, folder: Path, say: Any, *, times: int, workers: int, trials: int, step_s: float
) -> dict[str, Any]:
    rng = random.Random(7)
    server = postgres.url
    _psql(server, f"CREATE DATABASE {DATABASE}")
    url = _of_database(server, DATABASE)
    scheduler = SchedulerSite(url, folder)
    scheduler.start()
    store = folder / "store"
    site = [
        DaemonSite(f"w{n}", [scheduler.address], folder / f"w{n}", store, slots=2) for n in range(workers)
    ]
    restored: list[dict[str, Any]] = []
    try:
        with daemons(site):
            async with AsyncClient(scheduler.address, timeout_s=120, connect_timeout_s=60) as client:
                spec = chain_spec(folder / "journal", step_s=step_s, max_trials=trials)
                study = await client.create_study("restored", spec)
                for number in range(times):
                    await _reports(url, 8 + 10 * number)
                    dump = folder / f"{number}.sql"
                    await asyncio.to_thread(_dump, url, dump)
                    await asyncio.sleep(rng.uniform(1.0, 2.0))
                    scheduler.kill()
                    lost, reports = _issued(url), _count(url, REPORTS)
                    await asyncio.to_thread(_load, server, url, dump)
                    lost -= _issued(url)
                    reports -= _count(url, REPORTS)
                    scheduler.start()
                    restored.append({"attempts_lost": len(lost), "reports_lost": reports})
                    say(f"{number + 1}/{times} restored: {len(lost)} attempts were issued since the dump")
                    await _nothing_twice(url, lost)
                final = await study.wait(timeout_s=300)
                found = await study.trials()
    finally:
        scheduler.kill()
    issued = _issued(url)
    charged = sum(trial.failures for trial in found)
    complete = final.state.value == "completed"
    return {
        "holds": complete and not charged and len(found) == trials,
        "restores": restored,
        "state": final.state.value,
        "trials": len(found),
        "charged": charged,
        "attempts": len(issued),
        "values_wrong": _wrong(folder),
    }


def _wrong(folder: Path) -> int:
    """The number of journals in which a step occurs twice: an attempt that is issued twice writes twice into one
    journal."""
    return sum(
        len({line["step"] for line in lines}) != len(lines) for lines in journals(folder / "journal").values()
    )


async def _nothing_twice(url: str, lost: set[str]) -> None:
    async with asyncio.timeout(60):
        while not (_issued(url) - lost) or _live(url) == 0:
            await asyncio.sleep(0.1)
    assert not _issued(url) & lost, "an attempt was issued twice"


async def _reports(url: str, least: int) -> None:
    async with asyncio.timeout(120):
        while _count(url, REPORTS) < least:
            await asyncio.sleep(0.05)


def _issued(url: str) -> set[str]:
    with psycopg.connect(url) as conn:
        return {row[0].rpartition("restored-")[2] for row in conn.execute("SELECT id FROM lease").fetchall()}


def _live(url: str) -> int:
    return _count(url, "SELECT count(*) FROM lease WHERE live AND id NOT LIKE 'restored-%'")


def _count(url: str, query: str) -> int:
    with psycopg.connect(url) as conn:
        row = conn.execute(query.encode()).fetchone()
    return int(row[0]) if row else 0


def _psql(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement.encode())


def _of_database(url: str, name: str) -> str:
    head, _, query = url.partition("?")
    base = f"{head.rpartition('/')[0]}/{name}"
    return f"{base}?{query}" if query else base


def _dump(url: str, path: Path) -> None:
    _call([str(program("pg_dump")), "--no-owner", "--file", str(path), url])


def _load(server: str, url: str, path: Path) -> None:
    _psql(server, f"DROP DATABASE {DATABASE} WITH (FORCE)", f"CREATE DATABASE {DATABASE}")
    _call([str(program("psql")), "--quiet", "--set", "ON_ERROR_STOP=1", "--file", str(path), url])


def _call(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"})


class SchedulerSite:
    """A scheduler on one address, which can be killed and restarted."""

    def __init__(self, url: str, folder: Path) -> None:

        self.address = f"127.0.0.1:{any_port()}"
        self._url = url
        self._log = folder / "scheduler.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns when it serves."""
        served = self._said()
        command = [sys.executable, "-m", "headrace.cli", "scheduler", "--database-url", self._url]
        command += ["--listen", self.address, "--heartbeat-interval", "0.5", "--lease-ttl", "5"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        until(lambda: self._said() > served, "a scheduler that serves")

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _said(self) -> int:
        return self._log.read_text().count("serving on") if self._log.exists() else 0
