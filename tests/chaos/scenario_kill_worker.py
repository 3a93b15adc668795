"""`kill -9` of workers, over and over: real daemons with real trial processes.

There are three ways back, chosen at random. The daemon is restarted at once and reports its losses itself; it is
restarted under its name on an empty home, and knows nothing; or it stays away until the lease has ended. Each time
the trial must be requeued within the lease time plus one sweep, continue from its last rung, and be charged
nothing. Everything that the daemon had started must be gone.

Each worker is killed independently, so that several are dead at any moment. `machine_watch` runs beside it and
records what a busy machine adds to these times.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ledger
import psutil
from cluster_site import Cluster, chain_spec, cluster
from daemon_site import DaemonSite, daemons, orphans_come_here, reap, running, zombies
from fleet_study import waiting_for
from machine_watch import MachineWatch, watched_machine
from scenario_freeze_worker import RUNG, RUNGS, progressed

from headrace import AsyncClient

LEASE_TTL_S = 3.0
SWEEP_S = LEASE_TTL_S / 4 * 1.2
"""The longest pause between two sweeps."""
STEP_S = 0.5
"""For the cycle that requeues, on a busy machine."""
WAYS = ("at once", "without memory", "after the lease")


class Executioner:
    """Kills the worker of one trial after the other and records what follows."""

    def __init__(self, client: AsyncClient, found: list[DaemonSite], rng: random.Random) -> None:
        self._client = client
        self._study = client.study("kill-worker")
        self._found = {daemon.name: daemon for daemon in found}
        self._rng = rng
        self._homes = 0
        self.kills = 0
        self.ways: Counter[str] = Counter()
        self.killed_at: dict[tuple[int, int], tuple[float, str]] = {}
        """By trial and attempt: when it was killed (seconds since the epoch), and how the worker came back."""
        self.survivors = 0
        self.zombies = 0

    async def kill(self, name: str) -> None:
        """Kill a worker when its trial has made some progress, and bring it back."""
        daemon = self._found[name]
        trial = await self._trial_of(name)
        if trial is None:
            return
        attempt = await progressed(self._study, trial, self._rng.randint(1, 2 * RUNG))
        if attempt is None or await self._trial_of(name) != trial:
            return
        way = self._rng.choice(WAYS)
        moment = time.time()
        started = daemon.kill()
        self.kills += 1
        self.ways[way] += 1
        self.killed_at[trial, attempt] = (moment, way)
        if way == "at once":
            daemon.start()
        elif way == "without memory":
            self._homes += 1
            daemon.start(daemon.home.parent / f"{name}-{self._homes}")
        else:
            await self._requeued(trial, attempt)
            daemon.start()
        await self._gone(started)
        await self._requeued(trial, attempt)

    async def _trial_of(self, name: str) -> int | None:
        for worker in await self._client.workers():
            if worker.name == name and worker.connected:
                return next((slot.trial.number for slot in worker.slots if slot.trial), None)
        return None

    async def _requeued(self, trial: int, attempt: int) -> None:
        async with asyncio.timeout(60):
            while True:
                info = await self._study.trial(trial).info()
                if info.attempt > attempt or info.state.value in ("pending", "paused", "terminated"):
                    return
                await asyncio.sleep(0.1)

    async def _gone(self, started: list[psutil.Process]) -> None:
        try:
            await waiting_for(lambda: not any(map(running, started)), "the orphans' end", 5)
        except AssertionError:
            self.survivors += sum(map(running, started))
        reap(started)


async def hurt(
    site: Cluster, found: list[DaemonSite], folder: Path, *, times: int, rng: random.Random, say: Any
) -> dict[str, Any]:
    """Kill workers, each in a loop of its own, `times` times in all."""
    spec = chain_spec(
        folder / "journal",
        step_s=0.1,
        objective={"metric": "flat", "goal": "minimize"},
        policy={"kind": "asha", "eta": 2, "rungs": RUNGS, "variant": "stopping"},
        max_trials=2000,
        max_steps=RUNGS[-1],
    )
    async with AsyncClient(site.address, timeout_s=60, connect_timeout_s=60) as client:
        study = await client.create_study("kill-worker", spec)
        killing = Executioner(client, found, rng)
        said = [0]

        async def pursue(name: str) -> None:
            while killing.kills < times:
                await killing.kill(name)
                if killing.kills >= said[-1] + 10:
                    said.append(killing.kills)
                    say(f"{killing.kills}/{times} workers killed: {dict(killing.ways)}")
                await asyncio.sleep(rng.uniform(0, 0.5))

        with watched_machine(site.database_url, folder / "machine.log") as watch:
            async with asyncio.TaskGroup() as tasks:
                for daemon in found:
                    tasks.create_task(pursue(daemon.name))
        left = await lasting_zombies()
        await study.stop()
    tables = ledger.read(site.database_url, "kill-worker")
    held_up = (site.home / "logs" / "scheduler.log").read_text().count("no sweep for")
    return judged(tables, killing, len(found), len(left), watch, held_up)


async def lasting_zombies() -> set[int]:
    """Those for which nobody waits, however long one watches."""
    left = zombies()
    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            while left:
                await asyncio.sleep(0.1)
                left &= zombies()
    return left


def complete_by_then(
    tables: ledger.Tables, killed_at: Mapping[tuple[int, int], tuple[float, str]]
) -> set[tuple[int, int]]:
    """The attempts that had reported the full budget when their worker was killed: there was nothing to requeue.

    A report that was on its way at that moment is allowed the time of one step. A later one excuses nothing.
    """
    budgets = {
        (report.number, report.attempt): report.time.timestamp()
        for report in tables.reports
        if report.step == RUNGS[-1]
    }
    return {
        key for key, (moment, _) in killed_at.items() if key in budgets and budgets[key] <= moment + STEP_S
    }


def judged(
    tables: ledger.Tables, killing: Executioner, workers: int, left: int, watch: MachineWatch, held_up: int
) -> dict[str, Any]:
    """Compare the kills with what the log says about them."""
    interrupted = {
        (event.number, event.detail["attempt"]): event.time.timestamp()
        for event in tables.events
        if event.kind == "trial_moved" and event.detail["action"] == "interrupt"
    }
    complete = complete_by_then(tables, killing.killed_at)
    waits: dict[str, list[float]] = {way: [] for way in WAYS}
    unseen = []
    latest: list[dict[str, Any]] = []
    for key, (moment, way) in killing.killed_at.items():
        if key in interrupted:
            waits[way].append(interrupted[key] - moment)
            machine = watch.waited_s(moment, interrupted[key])
            latest.append({"way": way, "after_s": round(waits[way][-1], 2), "machine_waited": machine})
        elif key not in complete:
            unseen.append(f"trial {key[0]} attempt {key[1]}, {way}")
    lost = ledger.lost_steps(tables)
    latest = sorted(latest, key=lambda kill: kill["after_s"], reverse=True)[:5]
    allowed_s = LEASE_TTL_S + SWEEP_S + STEP_S
    late = sum(wait > allowed_s for found in waits.values() for wait in found)
    stale = [*ledger.stale_events(tables), *ledger.stale_rows(tables), *ledger.stale_checkpoints(tables)]
    charged = sum(trial.failures for trial in tables.trials)
    terminated = [t.number for t in tables.trials if t.state == "TERMINATED" and t.reason == "FAILED"]
    return {
        "workers": workers,
        "lease_ttl_s": LEASE_TTL_S,
        "longest_sweep_pause_s": round(SWEEP_S, 2),
        "kills": killing.kills,
        "ways": dict(killing.ways),
        "requeued_after_s": {
            way: {"max": round(max(found), 2), "mean": round(sum(found) / len(found), 2), "kills": len(found)}
            for way, found in waits.items()
            if found
        },
        "allowed_s": round(allowed_s, 2),
        "late": late,
        "latest": latest,
        "sweeper_held_up": held_up,
        "not_requeued": unseen[:5],
        "complete_by_then": len(complete - interrupted.keys()),
        "interruptions": sum(trial.interruptions for trial in tables.trials),
        "lost_steps_max": max(lost.values(), default=0),
        "rung_steps": RUNG,
        "failures_charged": charged,
        "trials_failed": terminated,
        "survivors": killing.survivors,
        "zombies": left,
        "stale_accepted": len(stale),
        "holds": not unseen
        and not late
        and max(lost.values(), default=0) <= RUNG
        and not charged
        and not terminated
        and not killing.survivors
        and not left
        and not stale,
    }


def run(folder: Path, say: Any, *, times: int = 500, workers: int = 6) -> dict[str, Any]:
    """The long form."""
    with orphans_come_here(), cluster(folder, worker=False, lease_ttl_s=LEASE_TTL_S) as site:
        found = [
            DaemonSite(f"w{n}", site.addresses, folder / f"w{n}" / "home", folder / "store")
            for n in range(workers)
        ]
        with daemons(found):
            return asyncio.run(hurt(site, found, folder, times=times, rng=random.Random(4), say=say))
