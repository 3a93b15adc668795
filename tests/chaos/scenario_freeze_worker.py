"""Workers that freeze past their lease and then go on: SIGSTOP, the trial is given to another one, SIGCONT.

Real daemons and real trial processes. Half of the time the whole family freezes, as a machine that hangs does; else the
daemon alone, whose trial goes on training and has reports ready when the daemon wakes up. What a fenced attempt still
says must change nothing: no report, move or checkpoint of it may be in the tables after its successor was granted.
"""

import asyncio
import random
import signal
from pathlib import Path
from typing import Any

import ledger
import psutil
from cluster_site import Cluster, chain_spec, cluster, journals
from daemon_site import DaemonSite, daemons, running, send, thaw
from fleet_study import waiting_for

from headrace import AsyncClient

LEASE_TTL_S = 2.0
PARALLEL = 3
RUNG = 5


async def hurt(
    site: Cluster, found: list[DaemonSite], folder: Path, *, times: int, rng: random.Random, say: Any
) -> dict[str, Any]:
    """Freeze whoever runs the trials, `times` times in all, in rounds."""
    spec = chain_spec(
        folder / "journal",
        step_s=0.1,
        objective={"metric": "flat", "goal": "minimize"},
        policy={"kind": "asha", "eta": 2, "rungs": list(range(RUNG, 100_001, RUNG)), "variant": "stopping"},
        max_trials=PARALLEL,
        max_steps=100_000,
        max_parallel=PARALLEL,
    )
    frozen, late = 0, 0
    by_name = {daemon.name: daemon for daemon in found}
    async with AsyncClient(site.address, timeout_s=60, connect_timeout_s=60) as client:
        study = await client.create_study("freeze", spec)
        while frozen < times:
            holders = await waiting_for_holders(client, PARALLEL)
            marks = {trial: await progressed(study, trial, RUNG) for trial in holders}
            victims = list(holders.items())[: times - frozen]
            families: dict[int, list[psutil.Process]] = {}
            for trial, worker in victims:
                family = by_name[worker].family()
                families[trial] = family if rng.random() < 0.5 else family[:1]
                for process in families[trial]:
                    send(process, signal.SIGSTOP)
            for trial, _ in victims:
                await reassigned(study, trial, marks[trial])
            said = {trial: _lines(folder, trial, marks[trial]) for trial, _ in victims}
            for trial, worker in victims:
                thaw(families[trial])
                stale = [p for p in by_name[worker].family()[1:] if running(p)]
                await waiting_for(lambda s=stale: not any(map(running, s)), "the fenced trial's end", 60)
                late += _lines(folder, trial, marks[trial]) - said[trial]
            frozen += len(victims)
            say(f"{frozen}/{times} workers frozen past their lease, reassigned, continued")
        await study.stop()
    tables = ledger.read(site.database_url, "freeze")
    stale = [*ledger.stale_events(tables), *ledger.stale_rows(tables), *ledger.stale_checkpoints(tables)]
    interruptions = sum(trial.interruptions for trial in tables.trials)
    return {
        "workers": len(found),
        "lease_ttl_s": LEASE_TTL_S,
        "frozen": frozen,
        "interruptions": interruptions,
        "attempts": len(tables.leases),
        "reports": len(tables.reports),
        "steps_that_fenced_trials_trained_on": late,
        "stale_accepted": len(stale),
        "examples": "; ".join(stale[:3]) or "nothing",
        "failures_charged": sum(trial.failures for trial in tables.trials),
        "holds": not stale and frozen >= times and not any(trial.failures for trial in tables.trials),
    }


async def waiting_for_holders(client: AsyncClient, count: int) -> dict[int, str]:
    """Which worker runs which trial, once `count` are running."""
    async with asyncio.timeout(120):
        while True:
            held = {
                slot.trial.number: worker.name
                for worker in await client.workers()
                for slot in worker.slots
                if slot.trial is not None and worker.connected
            }
            if len(held) >= count:
                return held
            await asyncio.sleep(0.1)


async def progressed(study: Any, number: int, steps: int) -> int:
    """Wait until a trial's present attempt is `steps` further, and return its epoch."""
    async with asyncio.timeout(120):
        info = await study.trial(number).status()
        epoch, goal = info.epoch, info.step + steps
        while info.step < goal or info.epoch != epoch:
            await asyncio.sleep(0.1)
            info = await study.trial(number).status()
            if info.epoch != epoch:
                epoch, goal = info.epoch, info.step + steps
        return epoch


async def reassigned(study: Any, number: int, epoch: int) -> None:
    """Wait until a newer attempt of the trial has reported."""
    async with asyncio.timeout(120):
        while True:
            info = await study.trial(number).status()
            if info.epoch > epoch and any(r.epoch == info.epoch for r in await study.reports(trial=number)):
                return
            await asyncio.sleep(0.2)


def _lines(folder: Path, trial: int, epoch: int) -> int:
    """How many steps an attempt wrote down itself."""
    written = journals(folder / "journal")
    return sum(len(lines) for lease, lines in written.items() if lease.endswith(f".{trial}.{epoch}"))


def run(folder: Path, say: Any, *, times: int = 100) -> dict[str, Any]:
    """The long form."""
    with cluster(folder, worker=False, lease_ttl_s=LEASE_TTL_S) as site:
        found = [
            DaemonSite(f"w{n}", site.addresses, folder / f"w{n}", folder / "store")
            for n in range(2 * PARALLEL)
        ]
        with daemons(found):
            return asyncio.run(hurt(site, found, folder, times=times, rng=random.Random(3), say=say))
