"""A study of 100,000 trials is deleted while another one runs: how long it takes, and how it affects the other
one.

The large study is inserted with SQL: per trial an attempt with its grant, five reports, a rung and ten events.
Simulated workers run the other study at a typical speed: each trial reports `--step` seconds after the answer to
its last report. Its rate is counted in bins of one second, for some time before each deletion, during it, and for
the same time after it. The ratio of the rate during a deletion to the other rates has a bootstrap interval.

    python benchmarks/scheduler/bench_deletion.py --trials 100000 --times 3

Writes `deletion.json` into `--out`.
"""

import argparse
import asyncio
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
from benchmark_site import percentiles_ms, postgres, write_record
from simulated_worker import Crowd, SimulatedWorker
from sqlalchemy.ext.asyncio import AsyncEngine

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "scheduler"))
from past_studies import past_study

from headrace import AsyncClient
from headrace.spec import StudySpec
from headrace.v1 import event_pb2, worker_pb2
from headrace_services.scheduler.store.database import open_engine

REPORTS, EVENTS = 5, 10
TABLES = ("event", "report", "rung_result", "lease", "slot_grant", "grant_part", "trial")
DELETED = re.compile(r"deleted (.*) in (\d+) transactions, the longest of (\d+) ms, (\d+) ms in all")


class PacedWorker(SimulatedWorker):
    """A worker whose trials need some time for a step, and wait for each answer."""

    step_s = 0.2

    async def _trial(self, assign: worker_pb2.Assign) -> None:
        step = assign.resume_step
        while True:
            await asyncio.sleep(self.step_s * random.uniform(0.8, 1.2))  # jitter
            step += 1
            began = time.monotonic()
            decision = await self._report(assign, step)
            self._figures.decision_s.append(time.monotonic() - began)
            if decision.action != event_pb2.DECISION_ACTION_CONTINUE:
                self._held.pop(assign.lease.lease_id, None)
                return


def spec(trials: int, steps: int) -> StudySpec:
    """A study whose trials run to their end."""
    return StudySpec.model_validate(
        {
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "sampler": {"kind": "random"},
            "policy": {"kind": "run_all"},
            "template": {"callable": "nothing:runs", "working_dir": "/"},
            "max_trials": trials,
            "max_steps": steps,
            "seed": 1,
        }
    )


async def binned(crowd: Crowd, over: asyncio.Event) -> list[int]:
    """How many reports were acknowledged in each whole second until the end."""
    bins: list[int] = []
    while not over.is_set():
        seen = crowd.figures.committed
        try:
            async with asyncio.timeout(1.0):
                await over.wait()
        except TimeoutError:
            bins.append(crowd.figures.committed - seen)
    return bins


async def measured(engine: AsyncEngine, address: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Delete as often as requested, and count the other study's reports."""
    crowd, found = Crowd(), list[dict[str, Any]]()
    PacedWorker.step_s = options.step
    workers = [PacedWorker(f"w{n}", options.slots, crowd, lambda: False) for n in range(options.streams)]
    async with AsyncClient(address, timeout_s=120) as client:
        await client.create_study("running", spec(options.streams * options.slots * 1000, 50))
        running = [asyncio.create_task(worker.run(address)) for worker in workers]
        await asyncio.sleep(5)
        for number in range(options.times):
            name = f"large-{number}"
            async with engine.begin() as conn:
                await past_study(
                    conn, name, spec(9, 9), ago_s=1, trials=options.trials, reports=REPORTS, events=EVENTS
                )
            async with engine.connect() as conn:
                await (await conn.execution_options(isolation_level="AUTOCOMMIT")).exec_driver_sql(
                    "VACUUM ANALYZE"
                )
            await asyncio.sleep(5)
            crowd.figures.decision_s.clear()
            before = await window(crowd, options.window)
            latency_before = percentiles_ms(crowd.figures.decision_s)
            crowd.figures.decision_s.clear()
            over = asyncio.Event()
            counting = asyncio.create_task(binned(crowd, over))
            began = time.monotonic()
            await client.study(name).delete()
            answered_s = time.monotonic() - began
            while await rows_left(engine):  # noqa: ASYNC110  # a database is asked
                await asyncio.sleep(0.2)
            took_s = time.monotonic() - began
            over.set()
            found.append(
                {
                    "delete_call_ms": round(answered_s * 1e3, 1),
                    "total_s": round(took_s, 2),
                    "rate_before": before,
                    "rate_during": await counting,
                    "rate_after": await window(crowd, options.window),
                    "decision_before": latency_before,
                    "decision_during": percentiles_ms(crowd.figures.decision_s),
                }
            )
            print(found[-1], flush=True)
        await asyncio.sleep(5)  # the scheduler logs what it did
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return found


async def window(crowd: Crowd, seconds: float) -> list[int]:
    """The rate over that many seconds."""
    over = asyncio.Event()
    counting = asyncio.create_task(binned(crowd, over))
    await asyncio.sleep(seconds + 0.5)
    over.set()
    return await counting


async def rows_left(engine: AsyncEngine) -> bool:
    """Whether a deleted study has rows left."""
    async with engine.connect() as conn:
        found = await conn.exec_driver_sql("SELECT count(*) FROM study WHERE delete_time IS NOT NULL")
        return bool(found.scalar_one())


def ratio(found: list[dict[str, Any]]) -> dict[str, float]:
    """The rate during over the rate before and after, with a bootstrap interval of 95 % over seconds."""
    before = [count for one in found for count in (*one["rate_before"], *one["rate_after"])]
    during = [count for one in found for count in one["rate_during"]]
    rng = random.Random(1)  # a bootstrap
    drawn = sorted(
        (sum(rng.choices(during, k=len(during))) / len(during))
        / (sum(rng.choices(before, k=len(before))) / len(before))
        for _ in range(4000)
    )
    value = (sum(during) / len(during)) / (sum(before) / len(before))
    return {"ratio": round(value, 4), "low": round(drawn[100], 4), "high": round(drawn[-101], 4)}


def main() -> None:
    """Run it and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--step", type=float, default=0.2, help="seconds of a step")
    parser.add_argument("--window", type=float, default=20.0, help="seconds before and after each deletion")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    with postgres() as url:
        command = [sys.executable, "-m", "headrace.cli", "scheduler", "--database-url", url]
        process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip().rpartition(" ")[2]
            found = asyncio.run(_run(url, address, options))
        finally:
            process.terminate()
            said = process.communicate(timeout=60)[1]
        with psycopg.connect(url) as conn:
            left = {
                table: conn.execute(f"SELECT count(*) FROM {table}".encode()).fetchall()[0][0]
                for table in TABLES
            }
    rounds = [match.groups() for match in DELETED.finditer(said) if "trials" in match[1]]
    transactions = [
        {"transactions": int(count), "longest_ms": int(longest), "in_transactions_ms": int(total)}
        for _, count, longest, total in rounds
    ]
    result = ratio(found)
    print(result, transactions)
    write_record(
        options.out / "deletion.json",
        trials=options.trials,
        rows=options.trials * (REPORTS + EVENTS + 5),
        rate=result,
        janitor=transactions,
        runs=found,
        rows_left=left,
    )


async def _run(url: str, address: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    engine = open_engine(url, pool_size=2)
    try:
        async with engine.connect() as conn:
            await conn.exec_driver_sql("ALTER ROLE CURRENT_USER SET statement_timeout = 0")
        return await measured(engine, address, options)
    finally:
        await engine.dispose()


if __name__ == "__main__":
    main()
