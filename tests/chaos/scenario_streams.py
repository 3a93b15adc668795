"""Hundreds of streams over a connection that resets, goes half-open, and hangs; and one worker that never reads.

The proxy resets each stream about every `RESET_EVERY_S`. Now and then it makes one half-open without notice to
either end. A worker that floods the scheduler with heartbeats and reads no answer must be cut off.

Afterwards nothing is lost, duplicated or reordered, and no trial was interrupted, because every worker noticed in
time. The scheduler's event loop was never blocked for long, and at SIGTERM the scheduler exited within its grace
period.

The loop stalls for two reasons: the scheduler is busy, or its thread is ready and the machine gives it no core.
`LoopWatch` leaves out the wait for a core, so the stall stays below `STALL_S` also on a machine that others use.
In the long form the fleet and the proxy, which play other machines, have a lower priority than the cluster.
"""

import asyncio
import itertools
import random
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import ledger
import psutil
from cluster_site import Cluster, cluster
from fleet_study import fleet_spec, replayed, stopped, waiting_for
from machine_watch import watched_machine
from sim_fleet import Fleet, SimWorker
from stand_aside import standing_aside
from tcp_proxy import Link, TcpProxy, proxied

from headrace import AsyncClient
from headrace.v1 import worker_pb2
from headrace.v1.worker_pb2_grpc import WorkerServiceStub

RESET_EVERY_S = 30.0
HALF_OPEN_EVERY_S = 10.0
STALL_S = 0.05
GRACE_S = 15.0
DEAF = "deaf"
_SMALL_WINDOW = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.lookahead_bytes", 1024),
    ("grpc.http2.bdp_probe", 0),
]
"""So that unread data accumulates at the scheduler, not in this process."""


async def hurt(
    site: Cluster,
    *,
    minutes: float,
    workers: int,
    step_s: float,
    rng: random.Random,
    say: Any,
    reset_every_s: float = RESET_EVERY_S,
    half_open_every_s: float = HALF_OPEN_EVERY_S,
) -> dict[str, Any]:
    """Keep a fleet busy over a bad connection."""
    counts = {"resets": 0, "half_open": 0, "cut_off_after_s": None}
    scheduler = await waiting_for(lambda: _at(site, site.addresses[0]), "the scheduler")
    # One long ladder: many reports per trial, and a decision now and then.
    spec = fleet_spec(
        policy={"kind": "asha", "eta": 3, "rungs": [5, 15, 45], "variant": "promotion"},
        max_steps=45,
    )
    with watched_machine(site.database_url, site.home / "machine.log") as machine:
        async with (
            proxied(site.addresses[0]) as proxy,
            AsyncClient(site.address, timeout_s=60, connect_timeout_s=60) as client,
            Fleet(
                [
                    SimWorker(f"w{n}", (proxy.address,), step_s=lambda: rng.uniform(0.5, 1.5) * step_s)
                    for n in range(workers)
                ]
            ) as fleet,
        ):
            study = await client.create_study("streams", spec)
            await waiting_for(lambda: all(journal.welcomed for journal in fleet.journals), "the fleet", 120)
            rss = [scheduler.memory_info().rss]
            async with asyncio.TaskGroup() as tasks:
                trouble = [
                    tasks.create_task(reset(proxy, reset_every_s, rng, counts)),
                    tasks.create_task(half_open(proxy, half_open_every_s, rng, counts)),
                    tasks.create_task(never_read(site.addresses[0])),
                    tasks.create_task(watch_the_deaf_one(client, counts)),
                ]
                end = time.monotonic() + minutes * 60
                while (left := end - time.monotonic()) > 0:
                    await asyncio.sleep(min(left, 15.0))
                    rss.append(scheduler.memory_info().rss)
                    acked = sum(len(journal.acked) for journal in fleet.journals)
                    say(f"{acked} messages acknowledged; {counts}; scheduler {rss[-1] / 1e6:.0f} MB")
                for task in trouble:
                    task.cancel()
            for link in list(proxy.links):
                link.cut()
            await stopped(study, fleet)
            again = await asyncio.to_thread(replayed, site.address, "streams")
            tables = await asyncio.to_thread(ledger.read, site.database_url, "streams")
            began = time.monotonic()
            assert site.kill(scheduler, signal.SIGTERM)
            await waiting_for(lambda: not scheduler.is_running(), "the scheduler's end", GRACE_S + 15)
            drained_s = time.monotonic() - began
    verdict = ledger.compare(tables, fleet.journals, interruptions_allowed=True)
    name = "scheduler-1" if len(site.addresses) > 1 else "scheduler"
    stall_ms = _longest_stall_ms(site.home / "logs" / f"{name}.log")
    return {
        "streams": workers,
        "minutes": minutes,
        **counts,
        "sessions": sum(len(journal.welcomed) for journal in fleet.journals),
        "reports": verdict.reports,
        "reports_per_s": round(verdict.reports / (minutes * 60), 1),
        "faults": verdict.faults,
        "examples": verdict.examples(),
        "trials_interrupted": sum(bool(trial.interruptions) for trial in tables.trials),
        "decisions_replayed": again.decisions,
        "decisions_differing": len(again.differences),
        "scheduler_mb": {
            "first": round(rss[0] / 1e6),
            "last": round(rss[-1] / 1e6),
            "max": round(max(rss) / 1e6),
        },
        "drained_s": round(drained_s, 2),
        "longest_stall_without_wait_for_a_core_ms": stall_ms,
        "another_process_waited_s": machine.waited_s(),
        "holds": verdict.clean
        and again.identical
        and counts["cut_off_after_s"] is not None
        and drained_s <= GRACE_S
        and stall_ms < STALL_S * 1e3,
    }


async def reset(proxy: TcpProxy, every_s: float, rng: random.Random, counts: dict[str, Any]) -> None:
    """Reset every stream about every `every_s` seconds, at independent times."""
    due: dict[Link, float] = {}
    while True:
        await asyncio.sleep(0.1)
        now = time.monotonic()
        due = {link: due.get(link, now + rng.uniform(0.5, 1.5) * every_s) for link in proxy.links}
        for link, at in due.items():
            if at <= now:
                link.cut()
                counts["resets"] += 1


async def half_open(proxy: TcpProxy, every_s: float, rng: random.Random, counts: dict[str, Any]) -> None:
    """Now and then, let a connection stay open at both ends but carry nothing."""
    while True:
        await asyncio.sleep(every_s)
        healthy = [link for link in proxy.links if not link.up.swallow]
        if healthy:
            rng.choice(healthy).swallow()
            counts["half_open"] += 1


async def watch_the_deaf_one(client: AsyncClient, counts: dict[str, Any]) -> None:
    """Wait until the scheduler has cut it off. (The worker cannot be told: the message waits behind what it does
    not read.)"""
    began = time.monotonic()
    was_there = False
    while True:
        there = any(worker.connected for worker in await client.workers() if worker.name == DEAF)
        if was_there and not there:
            counts["cut_off_after_s"] = round(time.monotonic() - began, 1)
            return
        was_there |= there
        await asyncio.sleep(0.2)


async def never_read(address: str) -> None:
    """Be a worker without slots that sends heartbeats and reads no answers."""
    async with grpc.aio.insecure_channel(address, options=_SMALL_WINDOW) as channel:
        call: Any = WorkerServiceStub(channel).Session()
        hello = worker_pb2.Hello(protocol=1, worker=DEAF, incarnation="1", log_dir="/simulated")
        await call.write(worker_pb2.SessionRequest(hello=hello))
        with suppress(grpc.RpcError, asyncio.InvalidStateError):
            for sequence in itertools.count(1):
                heartbeat = worker_pb2.Heartbeat(sequence=sequence)
                await call.write(worker_pb2.SessionRequest(heartbeat=heartbeat))
                if sequence % 20 == 0:
                    await asyncio.sleep(0.02)


def _at(site: Cluster, address: str) -> psutil.Process | None:
    return next((p for p in site.children("scheduler") if address in p.cmdline()), None)


def _longest_stall_ms(log: Path) -> int:
    """The longest stall of the event loop, which the scheduler logs when it ends."""
    found = re.findall(r"event loop: longest stall (\d+) ms", log.read_text())
    assert found, "the scheduler said nothing of its event loop"
    return int(found[-1])


def run(
    folder: Path, say: Any, *, times: int = 10, workers: int = 256, step_s: float = 4.0
) -> dict[str, Any]:
    """The long form; `times` are minutes."""
    with cluster(folder, worker=False, lease_ttl_s=15) as site, standing_aside() as aside:
        record = asyncio.run(
            hurt(site, minutes=times, workers=workers, step_s=step_s, rng=random.Random(9), say=say)
        )
    return record | {"the_fleet_stood_aside": aside}
