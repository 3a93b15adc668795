"""Schedulers that start while Postgres is down: they wait for it, and the work continues where it stopped.

Each round crashes Postgres, kills both schedulers, starts them again and keeps the database away for some seconds.
No scheduler may exit meanwhile, and once the database is back the fleet must be served again. Nothing acknowledged
may be missing or duplicated, and no trial may be charged.
"""

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ledger
from fleet_study import fleet_spec, replayed, stopped, waiting_for
from postgres_site import PostgresSite
from sim_fleet import Fleet, SimWorker

from headrace import AsyncClient
from headrace.ports import any_port

SERVING_WITHIN_S = 20.0
"""After the database is back: a scheduler checks again after 5 s at most, and the fleet after some seconds."""
Schedulers = dict[str, "subprocess.Popen[bytes]"]


def start(address: str, url: str, folder: Path) -> "subprocess.Popen[bytes]":
    """A scheduler that waits for its database as long as it takes."""
    command = [sys.executable, "-m", "headrace.cli", "scheduler", "--database-url", url, "--listen", address]
    with (folder / f"{address.replace(':', '-')}.log").open("ab") as log:
        return subprocess.Popen([*command, "--database-wait", "600"], stdout=log, stderr=log)


@contextmanager
def running(addresses: list[str], url: str, folder: Path) -> Iterator[Schedulers]:
    """Schedulers at these addresses. Those that still run at the end of the block are killed."""
    schedulers = {address: start(address, url, folder) for address in addresses}
    try:
        yield schedulers
    finally:
        for process in schedulers.values():
            process.kill()
            process.wait()


async def hurt(
    database: PostgresSite,
    schedulers: Schedulers,
    folder: Path,
    *,
    times: int,
    workers: int,
    rng: random.Random,
    say: Any,
) -> dict[str, Any]:
    """Run a study over a fleet, and start the schedulers before the database `times` times."""
    addresses = tuple(schedulers)
    fleet = Fleet(
        [
            SimWorker(f"w{n}", addresses, step_s=lambda: rng.expovariate(2.0), labels={"kind": "sim"})
            for n in range(workers)
        ]
    )
    outages, exited = [], 0
    async with AsyncClient(",".join(addresses), timeout_s=120, connect_timeout_s=120) as client, fleet:
        study = await client.create_study("schedulers-first", fleet_spec())
        await waiting_for(lambda: sum(len(j.acked) for j in fleet.journals) >= workers, "first reports")
        for count in range(times):
            await asyncio.sleep(rng.uniform(0.5, 2.0))
            await database.crash()
            for address, process in schedulers.items():
                process.kill()
                process.wait()
                schedulers[address] = start(address, database.url, folder)
            away_s = rng.uniform(2.0, 8.0)
            await asyncio.sleep(away_s)
            gone = [process for process in schedulers.values() if process.poll() is not None]
            exited += len(gone)
            moment = time.monotonic()
            await database.start()
            back_s = await waiting_for(lambda m=moment: fleet.served_again_after(m), "an acknowledgement")
            outages.append(back_s)
            say(f"{count + 1}/{times}: away for {away_s:.1f} s, acknowledged again {back_s:.2f} s after that")
        info = await stopped(study, fleet)
    again = await asyncio.to_thread(replayed, addresses[0], "schedulers-first")
    verdict = ledger.compare(ledger.read(database.url, "schedulers-first"), fleet.journals)
    return {
        "workers": workers,
        "trials": verdict.trials,
        "reports": verdict.reports,
        "starts": 2 * times,
        "schedulers_that_exited": exited,
        "serving_again_s": {"max": round(max(outages), 2), "mean": round(sum(outages) / len(outages), 2)},
        "faults": verdict.faults,
        "examples": verdict.examples(),
        "decisions_replayed": again.decisions,
        "decisions_differing": len(again.differences),
        "state": info.state.value,
        "holds": verdict.clean
        and again.identical
        and exited == 0
        and max(outages) <= SERVING_WITHIN_S
        and info.state.value == "stopped",
    }


def run(folder: Path, say: Any, *, times: int = 20, workers: int = 8) -> dict[str, Any]:
    """The long form."""
    database = PostgresSite(folder / "database")
    addresses = [f"127.0.0.1:{any_port()}" for _ in range(2)]

    async def work() -> dict[str, Any]:
        await database.start()
        try:
            with running(addresses, database.url, folder) as schedulers:
                rng = random.Random(43)
                return await hurt(
                    database, schedulers, folder, times=times, workers=workers, rng=rng, say=say
                )
        finally:
            await database.stop()

    return asyncio.run(work())
