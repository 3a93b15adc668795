"""`kill -9` of the scheduler at random points, under a fleet that reports as fast as it is answered.

`headrace up` starts it again, and the fleet finds it by itself. Afterwards nothing acknowledged may be missing or
duplicated, and no trial may have been restarted. Each time, the first acknowledgement of a new session must arrive
within `SERVING_WITHIN_S`.
"""

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import ledger
from cluster_site import Cluster, cluster
from fleet_study import DEADLINE_S, finished, fleet_spec, replayed, waiting_for
from sim_fleet import Fleet, SimWorker

from headrace import AsyncClient

SERVING_WITHIN_S = 5.0


async def hurt(
    site: Cluster,
    *,
    times: int,
    workers: int,
    trials: int,
    rng: random.Random,
    say: Any,
    pause_s: tuple[float, float] = (0.5, 4.0),
    step_s: float = 0.5,
) -> dict[str, Any]:
    """Run a study over a fleet and kill the scheduler `times` times."""
    spec = fleet_spec(trials=trials)
    fleet = Fleet(
        [
            SimWorker(f"w{n}", site.addresses, step_s=lambda: rng.expovariate(1 / step_s) if step_s else 0.0)
            for n in range(workers)
        ]
    )
    outages = []
    async with AsyncClient(site.address, timeout_s=60, connect_timeout_s=60) as client, fleet:
        study = await client.create_study("kill-scheduler", spec)
        await waiting_for(
            lambda: sum(len(j.acked) for j in fleet.journals) >= workers, "the fleet's first reports"
        )
        for kill in range(times):
            await asyncio.sleep(rng.uniform(*pause_s))
            victims = site.children("scheduler")
            moment = time.monotonic()
            assert site.kill(rng.choice(victims)), "there was no scheduler to kill"
            again_s = await waiting_for(lambda m=moment: fleet.served_again_after(m), "an acknowledgement")
            outages.append(again_s)
            reports = sum(len(journal.acked) for journal in fleet.journals)
            say(
                f"kill {kill + 1}/{times}: acknowledged again after {again_s:.2f} s ({reports} messages so far)"
            )
        info = await finished(study, DEADLINE_S)
        await waiting_for(
            lambda: all(worker.at_rest for worker in fleet.workers), "the last acknowledgements"
        )
    again = await asyncio.to_thread(replayed, site.address, "kill-scheduler")
    verdict = ledger.compare(ledger.read(site.database_url, "kill-scheduler"), fleet.journals)
    return {
        "workers": workers,
        "trials": verdict.trials,
        "reports": verdict.reports,
        "kills": times,
        "serving_again_s": {"max": round(max(outages), 2), "mean": round(sum(outages) / len(outages), 2)},
        "faults": verdict.faults,
        "examples": verdict.examples(),
        "state": info.state.value,
        "decisions_replayed": again.decisions,
        "decisions_differing": len(again.differences),
        "holds": verdict.clean
        and max(outages) <= SERVING_WITHIN_S
        and info.state.value == "completed"
        and again.identical,
    }


def run(folder: Path, say: Any, *, times: int = 20, workers: int = 64, trials: int = 2000) -> dict[str, Any]:
    """The long form."""
    with cluster(folder, worker=False) as site:
        rng = random.Random(20)
        return asyncio.run(hurt(site, times=times, workers=workers, trials=trials, rng=rng, say=say))
