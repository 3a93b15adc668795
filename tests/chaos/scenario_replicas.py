"""Three schedulers on one study, one of them killed now and then.

The fleet spreads over the replicas by itself. Every decision of any replica is then replayed from the event log
through one policy on one thread (`headrace replay`), and must be the same. Trial numbers must be unique and
without gaps. When a replica is killed, its workers must continue with the others.
"""

import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import ledger
from cluster_site import Cluster, cluster
from fleet_study import fleet_spec, replayed, stopped, waiting_for
from sim_fleet import Fleet, SimWorker

from headrace import AsyncClient


async def hurt(
    site: Cluster, *, times: int, workers: int, rng: random.Random, say: Any, step_s: float = 0.2
) -> dict[str, Any]:
    """Run a study over a fleet on all replicas, and kill one of them `times` times."""
    fleet = Fleet(
        [
            SimWorker(f"w{n}", site.addresses, step_s=lambda: rng.expovariate(1 / step_s))
            for n in range(workers)
        ]
    )
    moved_s = []
    async with AsyncClient(site.address, timeout_s=60, connect_timeout_s=60) as client, fleet:
        study = await client.create_study("replicas", fleet_spec())
        await waiting_for(lambda: all(journal.welcomed for journal in fleet.journals), "the fleet")
        spread = Counter(journal.schedulers[0] for journal in fleet.journals)
        say(f"the workers are spread {sorted(spread.values())}")
        for kill in range(times):
            await asyncio.sleep(rng.uniform(1.0, 3.0))
            victim = rng.choice(site.children("scheduler"))
            orphans = [j for j in fleet.journals if j.schedulers[-1].endswith(f":{victim.pid}")]
            moment = time.monotonic()
            assert site.kill(victim)
            took_s = await waiting_for(
                lambda m=moment, o=orphans: _all_moved(o, m), "the orphans' next session"
            )
            moved_s.append(took_s)
            say(f"kill {kill + 1}/{times}: {len(orphans)} workers moved within {took_s:.2f} s")
            await waiting_for(lambda: len(site.children("scheduler")) == len(site.addresses), "the replica")
        info = await stopped(study, fleet)
    again = await asyncio.to_thread(replayed, site.address, "replicas")
    for difference in again.differences[:3]:
        say(f"event {difference.cursor}: {difference.logged!r}, replayed {difference.replayed!r}")
    verdict = ledger.compare(ledger.read(site.database_url, "replicas"), fleet.journals)
    used = Counter(scheduler for journal in fleet.journals for scheduler in journal.schedulers)
    return {
        "replicas": len(site.addresses),
        "workers": workers,
        "workers_by_replica_at_first": sorted(spread.values()),
        "sessions_by_replica": sorted(used.values()),
        "trials": verdict.trials,
        "reports": verdict.reports,
        "kills": times,
        "workers_moved_within_s": round(max(moved_s), 2) if moved_s else None,
        "state": info.state.value,
        "events": again.events,
        "decisions_replayed": again.decisions,
        "starts_checked": again.starts,
        "decisions_differing": len(again.differences),
        "faults": verdict.faults,
        "examples": verdict.examples(),
        "holds": verdict.clean
        and again.identical
        and again.decisions > 0
        and info.state.value == "stopped"
        and len(spread) == len(site.addresses),
    }


def _all_moved(orphans: list[Any], moment: float) -> float | None:
    """Seconds until the last of them was welcomed again; slightly more than zero if there were none."""
    again = [next((at for at in journal.welcomed if at > moment), None) for journal in orphans]
    if any(at is None for at in again):
        return None
    return max([at - moment for at in again if at is not None], default=1e-9)


def run(folder: Path, say: Any, *, times: int = 6, workers: int = 24) -> dict[str, Any]:
    """The long form."""
    with cluster(folder, worker=False, replicas=3) as site:
        rng = random.Random(3)
        return asyncio.run(hurt(site, times=times, workers=workers, rng=rng, say=say))
