"""Postgres goes away: `immediate` restarts, which are a crash with a recovery, and one long outage.

There are two kinds of workers at once. The fleet's journals say what was acknowledged. Beside it a real worker
runs real trial processes, whose pids must be the same before and after. No process may exit, and every report that
was held meanwhile must be stored once. The first acknowledgement must arrive within `RECOVERED_WITHIN_S` after the
database is back.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import ledger
from cluster_site import Cluster, chain_spec, cluster, journals
from daemon_site import DaemonSite, daemons
from fleet_study import fleet_spec, replayed, stopped, waiting_for
from postgres_site import PostgresSite
from sim_fleet import Fleet, SimWorker

from headrace import AsyncClient

RECOVERED_WITHIN_S = 10.0


async def hurt(
    site: Cluster,
    database: PostgresSite,
    daemon: DaemonSite,
    folder: Path,
    *,
    times: int,
    outage_s: float,
    workers: int,
    rng: random.Random,
    say: Any,
    step_s: float = 0.5,
    chain_steps: int = 2000,
) -> dict[str, Any]:
    """Run two studies, one on the fleet and one on real processes, and take the database away."""
    fleet = Fleet(
        [
            SimWorker(
                f"w{n}",
                site.addresses,
                step_s=lambda: rng.expovariate(1 / step_s),
                labels={"kind": "sim"},
            )
            for n in range(workers)
        ]
    )
    recoveries, buffered = [], 0
    async with AsyncClient(site.address, timeout_s=120, connect_timeout_s=60) as client, fleet:
        # Rungs so far apart that the trial processes never wait for a decision: they must train throughout.
        chain = chain_spec(
            folder / "journal",
            step_s=0.1,
            policy={"kind": "run_all"},
            max_trials=2,
            max_steps=chain_steps,
            resources={"labels": {"kind": "real"}},
        )
        real = await client.create_study("real", chain)
        study = await client.create_study("postgres", fleet_spec(resources={"labels": {"kind": "sim"}}))
        await waiting_for(lambda: sum(len(j.acked) for j in fleet.journals) >= workers, "the first reports")
        await waiting_for(lambda: _answered(folder) > 3, "the trial processes' first reports")
        before = _pids(site, daemon)

        async def away(kind: str, stay_away_s: float) -> None:
            nonlocal buffered
            trained = _answered(folder)
            await database.crash()
            await asyncio.sleep(stay_away_s)
            buffered = max(buffered, sum(worker.core.unacknowledged for worker in fleet.workers))
            await database.start()
            moment = time.monotonic()
            kept = [
                (j.acked, [sequence for sequence in j.reports if sequence not in j.acked])
                for j in fleet.journals
            ]
            back_s = await waiting_for(lambda: _acked_after(fleet, moment), "an acknowledgement")
            await waiting_for(
                lambda: all(sequence in acked for acked, waiting in kept for sequence in waiting),
                "all that was kept",
            )
            recoveries.append(back_s)
            say(
                f"{kind}: acknowledged again {back_s:.2f} s after it was back; "
                f"the real trials reported {_answered(folder) - trained} steps meanwhile"
            )

        for restart in range(times):
            await asyncio.sleep(rng.uniform(0.5, 2.0))
            await away(f"immediate restart {restart + 1}/{times}", 0.0)
        trained = _answered(folder)
        await away(f"outage of {outage_s:g} s", outage_s)
        trained_through = _answered(folder) - trained
        after = _pids(site, daemon)
        info = await stopped(study, fleet)
        answered = journals(folder / "journal")
        await _until(lambda: _landed(real, answered), "the real trials' reports")
        missing = await _missing(real, answered)
        await real.stop()
    again = await asyncio.to_thread(replayed, site.address, "postgres")
    verdict = ledger.compare(ledger.read(database.url, "postgres"), fleet.journals)
    return {
        "workers": workers,
        "trials": verdict.trials,
        "reports": verdict.reports,
        "immediate_restarts": times,
        "outage_s": outage_s,
        "recovered_s": {
            "max": round(max(recoveries), 2),
            "mean": round(sum(recoveries) / len(recoveries), 2),
        },
        "processes_that_exited": sorted(before - after),
        "kept_at_most": buffered,
        "steps_trained_in_the_outage": trained_through,
        "reports_of_real_trials_missing": missing,
        "faults": verdict.faults,
        "examples": verdict.examples(),
        "decisions_replayed": again.decisions,
        "decisions_differing": len(again.differences),
        "state": info.state.value,
        "holds": verdict.clean
        and again.identical
        and before <= after
        and max(recoveries) <= RECOVERED_WITHIN_S
        and trained_through > 0
        and missing == 0
        and info.state.value == "stopped",
    }


def real_worker(site: Cluster, folder: Path) -> DaemonSite:
    """A worker whose trials are processes; they report to the study `real` alone."""
    return DaemonSite(
        "real", site.addresses, folder / "worker", folder / "store", slots=2, labels=("kind=real",)
    )


def _pids(site: Cluster, daemon: DaemonSite) -> set[str]:
    """The processes that must survive: schedulers, the worker and its trials."""
    return {f"scheduler {p.pid}" for p in site.children("scheduler")} | {
        f"{p.name()} {p.pid}" for p in daemon.family()
    }


def _answered(folder: Path) -> int:
    """How many reports of the real trials were answered, as the trials themselves recorded."""
    return sum(len(lines) for lines in journals(folder / "journal").values())


def _acked_after(fleet: Fleet, moment: float) -> float | None:
    found = [at for journal in fleet.journals for at in list(journal.acked.values())[-5:] if at > moment]
    return min(found) - moment if found else None


async def _until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(60):
            while not await holds():
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"{what}: not within 60 s") from None


async def _landed(real: Any, answered: dict[str, Any]) -> bool:
    return await _missing(real, answered) == 0


async def _missing(real: Any, answered: dict[str, Any]) -> int:
    """How many of the reports for which real trials got answers are not stored exactly once."""
    stored: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for report in await real.reports():
        stored.setdefault((report.trial, report.attempt), []).append((report.step, report.metrics["score"]))
    missing = 0
    for lease, lines in answered.items():
        _, number, attempt = lease.rsplit(".", 2)
        have = stored.get((int(number), int(attempt)), [])
        missing += sum(have.count((line["step"], line["score"])) != 1 for line in lines)
    return missing


def run(folder: Path, say: Any, *, times: int = 10, workers: int = 16) -> dict[str, Any]:
    """The long form."""
    database = PostgresSite(folder / "database")

    async def work() -> dict[str, Any]:
        await database.start()
        try:
            with (
                cluster(folder, worker=False, database_url=database.url) as site,
                daemons([real_worker(site, folder)]) as (daemon,),
            ):
                return await hurt(
                    site,
                    database,
                    daemon,
                    folder,
                    times=times,
                    outage_s=30.0,
                    workers=workers,
                    rng=random.Random(5),
                    say=say,
                )
        finally:
            await database.stop()

    return asyncio.run(work())
