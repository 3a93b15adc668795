"""The cost of a scheduler's restart, today's against an older commit's, in alternating turns.

Each checkout has a database with one study and one running trial. A turn starts a scheduler of one checkout. The
trial's worker reconnects and reports; then the scheduler is killed (SIGKILL). There are two figures, in processor
time of the scheduler since its process started, which hardly depends on other use of the machine:

- `serving_s`: until it says that it serves;
- `stored_s`: until the report is acknowledged, so that work merely deferred to the first report is no gain.

The order changes from pair to pair (old, new, new, old, …). For each figure: the median of the ratios new to old
over the pairs, with a 90 % bootstrap interval.

    git worktree add ../old e5687163
    python benchmarks/scheduler/bench_start.py ../old --pairs 20

Both checkouts use the environment that runs this, and compiled modules. Writes `start.json` into `--out`.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import grpc
import psutil
import psycopg
from benchmark_site import postgres, write_record
from old_and_new import interval
from sqlalchemy import make_url

from headrace import AsyncClient
from headrace.spec import StudySpec
from headrace.v1 import event_pb2, worker_pb2
from headrace.v1.worker_pb2_grpc import WorkerServiceStub

HERE = Path(__file__).resolve().parents[2]
FIGURES = ("serving_s", "stored_s")
LONG_S = "3600"
"""No lease ends between two turns."""


@dataclass(slots=True)
class Side:
    """A checkout, with its database and its trial."""

    checkout: Path
    database_url: str
    lease: event_pb2.LeaseRef | None = None
    metric: str = ""
    reports: int = 0

    @contextmanager
    def scheduler(self) -> Iterator[tuple[str, psutil.Process]]:
        """A scheduler of this checkout, killed at the end. Yields its address as soon as it prints it."""
        packages = [
            self.checkout / "clients" / "python",
            self.checkout / "services",
            self.checkout / "worker",
        ]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, packages))}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-m", "headrace.cli", "scheduler", "--database-url", self.database_url]
        command += ["--listen", "127.0.0.1:0", "--log-level", "warning", "--lease-ttl", LONG_S]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ, cwd=self.checkout)
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip().rpartition(" ")[2], psutil.Process(process.pid)
        finally:
            process.kill()
            process.wait(30)

    async def begin(self, address: str) -> None:
        """Create the study, and have its one trial assigned."""
        async with AsyncClient(address) as client:
            await client.create_study("start", study())
        async with self._session(address) as call:
            assign = (await _until(call, "assign")).assign
            self.lease, self.metric = assign.lease, assign.metric

    async def report(self, address: str) -> None:
        """Reconnect, and report once."""
        async with self._session(address) as call:
            self.reports += 1
            report = worker_pb2.Report(
                sequence=self.reports, lease=self.lease, step=self.reports, metrics={self.metric: 1.0}
            )
            await call.write(worker_pb2.SessionRequest(report=report))
            while self.reports not in (*(read := await _read(call)).acknowledged, *read.ack.sequences):
                pass

    @asynccontextmanager
    async def _session(self, address: str) -> AsyncIterator[grpc.aio.StreamStreamCall]:
        async with grpc.aio.insecure_channel(address) as channel:
            call = WorkerServiceStub(channel).Session()
            device = worker_pb2.Device(index=0, kind=worker_pb2.DEVICE_KIND_CPU, model="simulated")
            hello = worker_pb2.Hello(
                protocol=1, worker="start", incarnation="1", devices=[device], log_dir="/simulated"
            )
            await call.write(worker_pb2.SessionRequest(hello=hello))
            held = [self.lease] if self.lease is not None else []
            await call.write(worker_pb2.SessionRequest(heartbeat=worker_pb2.Heartbeat(held=held)))
            yield call
            call.cancel()


def study() -> StudySpec:
    """One trial at a time, whose first rung is far away."""
    return StudySpec.model_validate(
        {
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "policy": {"kind": "asha", "eta": 3, "rungs": [10_000, 30_000, 90_000]},
            "template": {"callable": "nothing:runs", "working_dir": "/"},
            "max_trials": 100,
            "max_steps": 90_000,
        }
    )


async def _until(call: grpc.aio.StreamStreamCall, kind: str) -> worker_pb2.SessionResponse:
    while (message := await _read(call)).WhichOneof("message") != kind:
        pass
    return message


async def _read(call: grpc.aio.StreamStreamCall) -> worker_pb2.SessionResponse:
    message = await call.read()
    if not isinstance(message, worker_pb2.SessionResponse):
        raise ConnectionError("the scheduler ended the session")
    return message


def turn(side: Side, runner: asyncio.Runner) -> dict[str, float]:
    """Start a scheduler, report once, kill it. Returns its figures."""
    with side.scheduler() as (address, process):
        serving_s = _spent(process)
        runner.run(side.report(address))
        return {"serving_s": serving_s, "stored_s": _spent(process)}


def _spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return round(times.user + times.system, 2)


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, help="a checkout of the older commit")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    old = arguments.old.resolve()
    commit = subprocess.run(
        ["git", "-C", str(old), "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    pairs = []
    with postgres() as url, asyncio.Runner() as runner:
        sides = {}
        for name, checkout in (("old", old), ("new", HERE)):
            with psycopg.connect(url, autocommit=True) as conn:
                conn.execute(f"CREATE DATABASE {name}".encode())
            its = make_url(url).set(database=name).render_as_string(hide_password=False)
            sides[name] = Side(checkout=checkout, database_url=its)
            with sides[name].scheduler() as (address, _):
                runner.run(sides[name].begin(address))
        for number in range(arguments.pairs):
            order = ("old", "new") if number % 2 == 0 else ("new", "old")
            pairs.append({name: turn(sides[name], runner) for name in order})
            print(json.dumps({"pair": number + 1, **pairs[-1]}), flush=True)
    figures = {}
    for figure in FIGURES:
        ratios = [pair["new"][figure] / pair["old"][figure] for pair in pairs]
        figures[figure] = {
            "old_s": round(median(pair["old"][figure] for pair in pairs), 2),
            "new_s": round(median(pair["new"][figure] for pair in pairs), 2),
            "ratio": round(median(ratios), 3),
            "interval_90": interval(ratios),
        }
    print(json.dumps(figures, indent=1))
    write_record(arguments.out / "start.json", old=commit, figures=figures, pairs=pairs)


if __name__ == "__main__":
    main()
