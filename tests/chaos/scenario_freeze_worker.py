"""Workers that freeze past their lease and then continue: SIGSTOP, the trial is given to another worker, SIGCONT.

Real daemons and real trial processes. Before a worker freezes, its connection to the scheduler hangs for a moment,
so that it wakes up with reports that nobody has seen. They are sent, and must change nothing. Half of the time the
whole process family freezes, as on a machine that hangs. Otherwise only the daemon freezes, and its trial waits
for it. The tables must have no report, transition or checkpoint of a fenced attempt after its successor was
granted.
"""

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import ledger
import psutil
from cluster_site import Cluster, chain_spec, cluster, journals
from daemon_site import DaemonSite, daemons, running, send, thaw
from fleet_study import waiting_for
from tcp_proxy import TcpProxy, proxied

from headrace import AsyncClient

LEASE_TTL_S = 2.0
RUNG = 5
RUNGS = list(range(RUNG, 60 * RUNG + 1, RUNG))
"""All trials report the same value, so that they go through all rungs, save at each and skip none."""
UNSEEN = 2
"""How many unsent reports a worker should have when it freezes, unless its next rung is nearer."""


async def hurt(
    site: Cluster,
    found: list[tuple[DaemonSite, TcpProxy]],
    folder: Path,
    *,
    times: int,
    rng: random.Random,
    say: Any,
) -> dict[str, Any]:
    """Freeze the workers that run the trials, `times` times in all, in rounds."""
    parallel = len(found) // 2
    spec = chain_spec(
        folder / "journal",
        step_s=0.1,
        objective={"metric": "flat", "goal": "minimize"},
        policy={"kind": "asha", "eta": 2, "rungs": RUNGS, "variant": "stopping"},
        max_trials=1000,
        max_steps=RUNGS[-1],
        max_parallel=parallel,
    )
    frozen = 0
    fenced: set[tuple[int, int]] = set()
    by_name = {daemon.name: (daemon, proxy) for daemon, proxy in found}
    async with AsyncClient(site.address, timeout_s=60, connect_timeout_s=60) as client:
        study = await client.create_study("freeze", spec)

        async def freeze(trial: int, attempt: int, worker: str) -> None:
            daemon, proxy = by_name[worker]
            for link in list(proxy.links):
                link.stall(down=False)
            await said_more(folder, trial, attempt, UNSEEN)
            family = daemon.family()
            stopped = family if rng.random() < 0.5 else family[:1]
            processes = [process for process in family[1:] if _is_of(process, trial, attempt)]
            for process in stopped:
                send(process, signal.SIGSTOP)
            await reassigned(study, trial, attempt)
            for link in list(proxy.links):
                link.flow()
            thaw(stopped)
            await waiting_for(lambda: not any(map(running, processes)), "the fenced trial's end", 60)
            fenced.add((trial, attempt))

        while frozen < times:
            holders = await waiting_for_holders(client, parallel)
            attempts = {trial: await progressed(study, trial, RUNG) for trial in holders}
            held = await waiting_for_holders(client, 1)
            victims = [
                (trial, attempt, holders[trial])
                for trial, attempt in attempts.items()
                if attempt is not None and held.get(trial) == holders[trial]
            ][: times - frozen]
            async with asyncio.TaskGroup() as tasks:
                for trial, attempt, worker in victims:
                    tasks.create_task(freeze(trial, attempt, worker))
            frozen += len(victims)
            say(f"{frozen}/{times} workers frozen past their lease, their trials reassigned, then continued")
        await study.stop()
    return judged(ledger.read(site.database_url, "freeze"), folder, fenced, workers=len(found))


def _is_of(process: psutil.Process, trial: int, attempt: int) -> bool:
    """Whether a process runs this attempt. A standby process on its slot for the next trial does not count."""
    try:
        return process.environ().get("HEADRACE_LEASE_ID", "").endswith(f".{trial}.{attempt}")
    except psutil.Error:
        return False


def judged(
    tables: ledger.Tables, folder: Path, fenced: set[tuple[int, int]], *, workers: int
) -> dict[str, Any]:
    """Look for anything of a fenced attempt that counted after it was fenced."""
    stale = [*ledger.stale_events(tables), *ledger.stale_rows(tables), *ledger.stale_checkpoints(tables)]
    stored = {(report.number, report.attempt, report.step) for report in tables.reports}
    refused = 0
    for lease, lines in journals(folder / "journal").items():
        _, number, attempt = lease.rsplit(".", 2)
        if (int(number), int(attempt)) in fenced:
            refused += sum((int(number), int(attempt), line["step"]) not in stored for line in lines)
    charged = sum(trial.failures for trial in tables.trials)
    return {
        "workers": workers,
        "lease_ttl_s": LEASE_TTL_S,
        "frozen": len(fenced),
        "interruptions": sum(trial.interruptions for trial in tables.trials),
        "attempts": len(tables.leases),
        "reports": len(tables.reports),
        "stale_reports_sent_and_refused": refused,
        "stale_accepted": len(stale),
        "examples": "; ".join(stale[:3]) or "nothing",
        "failures_charged": charged,
        "holds": not stale and refused > 0 and not charged,
    }


async def waiting_for_holders(client: AsyncClient, count: int) -> dict[int, str]:
    """Return which worker runs which trial, once `count` trials run."""
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


async def progressed(study: Any, number: int, steps: int) -> int | None:
    """Wait until a trial's current attempt is `steps` further, and return its number, or None if the attempt has
    ended."""
    async with asyncio.timeout(300):
        info = await study.trial(number).info()
        attempt, goal = info.attempt, info.step + steps
        while info.step < goal:
            await asyncio.sleep(0.1)
            info = await study.trial(number).info()
            if info.attempt != attempt or info.worker is None:
                return None
        return attempt


async def said_more(folder: Path, trial: int, attempt: int, steps: int) -> None:
    """Wait until an attempt has received answers for `steps` more steps, or waits at its rung."""
    before = written(folder, trial, attempt)
    try:
        async with asyncio.timeout(LEASE_TTL_S / 2):
            while written(folder, trial, attempt) < before + steps:
                await asyncio.sleep(0.02)
    except TimeoutError:
        return  # it waits at a rung


async def reassigned(study: Any, number: int, attempt: int) -> None:
    """Wait until a newer attempt of the trial has reported, or the trial has ended."""
    async with asyncio.timeout(120):
        while True:
            info = await study.trial(number).info()
            if info.ended is not None:
                return
            if info.attempt > attempt:
                reports = await study.trial(number).reports()
                if any(report.attempt == info.attempt for report in reports):
                    return
            await asyncio.sleep(0.2)


def written(folder: Path, trial: int, attempt: int) -> int:
    """How many steps an attempt recorded itself."""
    found = journals(folder / "journal")
    return sum(len(lines) for lease, lines in found.items() if lease.endswith(f".{trial}.{attempt}"))


@asynccontextmanager
async def behind_proxies(
    site: Cluster, folder: Path, count: int
) -> AsyncIterator[list[tuple[DaemonSite, TcpProxy]]]:
    """Daemons, each with a connection of its own to the scheduler."""
    async with AsyncExitStack() as proxies:
        found = []
        for n in range(count):
            proxy = await proxies.enter_async_context(proxied(site.address))
            daemon = DaemonSite(f"w{n}", (proxy.address,), folder / f"w{n}", folder / "store")
            found.append((daemon, proxy))
        with daemons([daemon for daemon, _ in found]):
            yield found


def run(folder: Path, say: Any, *, times: int = 100, workers: int = 6) -> dict[str, Any]:
    """The long form."""

    async def work(site: Cluster) -> dict[str, Any]:
        async with behind_proxies(site, folder, workers) as found:
            return await hurt(site, found, folder, times=times, rng=random.Random(3), say=say)

    with cluster(folder, worker=False, lease_ttl_s=LEASE_TTL_S) as site:
        return asyncio.run(work(site))
