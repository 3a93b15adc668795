"""Full disks under a real worker: the checkpoint store's, and the one that holds its outbox and logs.

While a disk is full, the worker must say so in `headrace workers`, its trials must wait and not fail, and its
lease must stay live. Once there is space again, everything continues by itself. At the end every report that was
answered is stored once, no trial was interrupted, and none was charged a failure.
"""

import asyncio
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ledger
from cluster_site import Cluster, chain_spec, cluster
from daemon_site import DaemonSite, daemons
from disk_site import Disk, LimitedFiles, may_mount, small_disk
from fleet_study import finished
from trial_journals import check_journals

from headrace import AsyncClient
from headrace.client import AsyncStudy

DISKS = ("store", "home")


async def hurt(
    site: Cluster,
    disks: dict[str, Disk],
    folder: Path,
    *,
    times: int,
    rng: random.Random,
    say: Any,
    step_s: float = 0.1,
    steps_each: int = 300,
) -> dict[str, Any]:
    """Fill each disk `times` times in the middle of a study."""
    spec = chain_spec(
        folder / "journal",
        step_s=step_s,
        objective={"metric": "flat", "goal": "minimize"},
        policy={"kind": "asha", "eta": 2, "rungs": list(range(5, steps_each + 1, 5)), "variant": "stopping"},
        max_trials=2,
        max_steps=steps_each,
    )
    states: dict[str, str] = {}
    waits = []
    async with AsyncClient(site.address, timeout_s=60, connect_timeout_s=60) as client:
        study = await client.create_study("full-disk", spec)
        await further(study, 3)
        for turn in range(times):
            for name, disk in disks.items():
                await asyncio.sleep(rng.uniform(0.0, 1.0))
                disk.fill()
                try:
                    states[name] = await trouble(client, disk)
                    before = await steps(study)
                    await asyncio.sleep(rng.uniform(1.0, 3.0))
                    waited = await steps(study) - before
                finally:
                    disk.free()
                began = asyncio.get_running_loop().time()
                await further(study, 10)
                await no_trouble(client)
                waits.append(asyncio.get_running_loop().time() - began)
                say(
                    f"{name} full {turn + 1}/{times}: {states[name]!r}; {waited} steps were stored meanwhile; "
                    f"10 more steps {waits[-1]:.1f} s after there was room"
                )
        info = await finished(study, 300)
        reports = await study.reports()
    check_journals(reports, folder / "journal", fenced=False)
    tables = ledger.read(site.database_url, "full-disk")
    interrupted = sum(trial.interruptions for trial in tables.trials)
    charged = sum(trial.failures for trial in tables.trials)
    return {
        "disks": {name: disk.kind for name, disk in disks.items()},
        "times_each": times,
        "states": states,
        "going_again_s_max": round(max(waits), 1),
        "reports": len(reports),
        "reports_lost": 0,  # otherwise check_journals raises
        "interruptions": interrupted,
        "failures_charged": charged,
        "state": info.state.value,
        "holds": info.state.value == "completed" and not interrupted and not charged and all(states.values()),
    }


async def steps(study: AsyncStudy) -> int:
    """How many steps are stored."""
    return (await study.status()).steps_spent


async def further(study: AsyncStudy, count: int) -> None:
    """Wait until the study has progressed that many steps, or has ended."""
    goal = await steps(study) + count
    async with asyncio.timeout(120):
        while (info := await study.status()).steps_spent < goal and not info.state.ended:
            await asyncio.sleep(0.1)


async def trouble(client: AsyncClient, disk: Disk) -> str:
    """Wait until a worker says what blocks it, and return that. What it deletes meanwhile is no space for more."""
    async with asyncio.timeout(60):
        while not (said := [worker.trouble for worker in await client.workers() if worker.trouble]):
            disk.fill()
            await asyncio.sleep(0.1)
    return said[0]


async def no_trouble(client: AsyncClient) -> None:
    """Wait until no worker says so any more."""
    async with asyncio.timeout(60):
        while any(worker.trouble for worker in await client.workers()):
            await asyncio.sleep(0.1)


def run(folder: Path, say: Any, *, times: int = 5, mounts: bool | None = None) -> dict[str, Any]:
    """The long form."""
    with ExitStack() as stack:
        disks: dict[str, Disk] = {}
        if mounts is None:
            mounts = may_mount(folder / "try")
        if mounts:
            for name in DISKS:
                disks[name] = stack.enter_context(small_disk(folder / name))
        site = stack.enter_context(cluster(folder / "up", worker=False, lease_ttl_s=15))
        daemon = DaemonSite("w", site.addresses, folder / "home" / "worker", folder / "store", slots=2)
        stack.enter_context(daemons([daemon]))
        if not mounts:
            assert daemon.pid is not None
            disks["all files"] = LimitedFiles(daemon.pid)
        return asyncio.run(hurt(site, disks, folder, times=times, rng=random.Random(6), say=say))
