"""Simulated workers that come and go by three launch loops at once: are the bounds kept, and what do they leave?

One real scheduler with an authority, on a Postgres of its own. Three loops of `headrace launch`, each with a cluster
in memory (`simulated_cluster`), serve one study until `--workers` workers have started. Each joins with its own token,
plays up to two trials and leaves; one in ten is killed with a trial. Then the janitor's own functions run, as they
would within minutes, and once more as if all certificates had ended a week ago.

    python benchmarks/launch/many_workers.py --workers 200

Prints, for each launch, the most workers at once, and the rows that are left. Exits with 1 if a launch had more than
`--max` workers at once, a worker could not join, or a row is left that no limit in time removes.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from headrace import Client
from headrace.launch import loop
from headrace.launch.decision import Kind
from headrace.launch.demand import ByClient
from headrace.target import Target
from headrace_services.identity import authority
from headrace_services.scheduler.store import joins, workers
from headrace_services.scheduler.store.database import open_engine, transaction

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "scheduler")]
from benchmark_site import postgres, scheduler, write_record  # noqa: E402  its folder is on the path from here on
from simulated_cluster import SimulatedCluster  # noqa: E402  its folder too

ENGINES = {"slurm": 0.3, "kubernetes": 0.6, "ray": 0.1}
"""The launches, and how long each one's jobs are pending, in seconds."""
TURN_S = 0.5
MOST_ROWS = 5000
COUNTED = {
    "connected": "SELECT count(*) FROM worker WHERE connected",
    "slots": "SELECT count(*) FROM slot",
    "workers": "SELECT count(*) FROM worker w WHERE NOT EXISTS (SELECT FROM grant_part p WHERE p.worker_id = w.id)",
    "names in past attempts": "SELECT count(*) FROM worker w WHERE EXISTS "
    "(SELECT FROM grant_part p WHERE p.worker_id = w.id)",
    "tokens that still work": "SELECT count(*) FROM join_token WHERE used < uses AND revoke_time IS NULL",
    "join tokens": "SELECT count(*) FROM join_token",
    "certificates": "SELECT count(*) FROM joined_worker",
}
NEVER_LEFT = ("connected", "slots", "workers", "tokens that still work")
"""What must be gone when the workers are."""
LEFT_IN_TIME = ("join tokens", "certificates")
"""What is kept for a week after it has ended: one each for a worker that joined."""
STUDY = {
    "objective": {"metric": "loss", "goal": "minimize"},
    "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
    "policy": {"kind": "run_all"},
    "template": {"callable": "train:train", "working_dir": "/"},
    "max_steps": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a run found."""

    launches: dict[str, dict[str, int]]
    left: dict[str, int]
    left_later: dict[str, int]
    faults: list[str]
    took_s: float

    @property
    def started(self) -> int:
        """How many workers started."""
        return sum(one["started"] for one in self.launches.values())


async def measure(engine: AsyncEngine, address: str, root: Path, *, count: int, most: int) -> Found:
    """Lets `count` workers or a few more come and go, at most `most` of each launch at once."""
    began = time.monotonic()
    target = Target.of(f"tls://{address}", tls_ca=root / "ca" / "ca.pem")
    clusters = {name: SimulatedCluster(name, target, root, wait_s) for name, wait_s in ENGINES.items()}
    with Client(target.address, tls_ca=target.tls_ca) as client:
        study = await asyncio.to_thread(client.create_study, "many", {**STUDY, "max_trials": 20 * count})

        def over() -> bool:
            return sum(one.seen.started for one in clusters.values()) >= count

        seen = await asyncio.gather(*(_launch(one, target, most, over) for one in clusters.values()))
        await asyncio.to_thread(study.stop)
    faults = [fault for one in seen for fault in one]
    left = await _left(engine)
    async with transaction(engine) as conn:
        await conn.execute(text("UPDATE join_token SET expire_time = now() - interval '8 days'"))
        await conn.execute(text("UPDATE joined_worker SET certificate_until = now() - interval '8 days'"))
    later = await _left(engine)
    for name, cluster in clusters.items():
        faults += cluster.seen.failures
        if cluster.seen.most > most:
            faults.append(f"{name} had {cluster.seen.most} workers at once, more than {most}")
    joined = sum(one.seen.joined for one in clusters.values())
    started = sum(one.seen.started for one in clusters.values())
    if joined < started:
        faults.append(f"only {joined} of {started} workers joined")
    faults += [f"{what}: {left[what]} are left" for what in NEVER_LEFT if left[what]]
    faults += [f"{what}: {left[what]} for {joined} workers" for what in LEFT_IN_TIME if left[what] > joined]
    faults += [f"{what}: {later[what]} are left later" for what in LEFT_IN_TIME if later[what]]
    launches = {
        name: {what: getattr(one.seen, what) for what in ("started", "most", "joined", "killed", "trials")}
        for name, one in clusters.items()
    }
    took_s = round(time.monotonic() - began, 1)
    return Found(launches=launches, left=left, left_later=later, faults=faults, took_s=took_s)


async def _launch(cluster: SimulatedCluster, target: Target, most: int, over: Any) -> list[str]:
    """One loop until all is over, then turns until its last worker has left; returns what failed."""
    failures: list[str] = []
    kind = Kind(slots=1, on_gpu=False)
    with Client(target.address, tls_ca=target.tls_ca) as client:
        view = ByClient(client)
        while not over() or cluster.members():
            seats = 0 if over() else most
            turn = await asyncio.to_thread(loop.turn, cluster, view, kind=kind, most=seats)
            failures += map(str, turn.failures)
            await asyncio.sleep(TURN_S)
    return failures


async def _left(engine: AsyncEngine) -> dict[str, int]:
    """The rows that are left after the janitor; leases of killed workers expire first."""
    for _ in range(60):
        async with transaction(engine) as conn:
            await conn.execute(
                text("UPDATE worker SET last_seen = last_seen - interval '1 hour' WHERE NOT connected")
            )
            await workers.forget_ephemeral(conn, MOST_ROWS)
            await joins.forget_old(conn, MOST_ROWS)
            found = await _counts(conn)
        if not any(found[what] for what in NEVER_LEFT):
            break
        await asyncio.sleep(0.5)
    return found


async def _counts(conn: AsyncConnection) -> dict[str, int]:
    return {what: int((await conn.execute(text(query))).scalar_one()) for what, query in COUNTED.items()}


def run(database_url: str, root: Path, *, count: int, most: int) -> Found:
    """One scheduler with an authority in `root`, and the launches."""
    authority.make(root / "ca", ["localhost", "127.0.0.1"], now=datetime.now(UTC))
    options = ("--ca", str(root / "ca"), "--worker-listen", "127.0.0.1:0", "--sampler-processes", "1")
    timing = ("--heartbeat-interval", "1", "--lease-ttl", "6")

    async def measured(address: str) -> Found:
        engine = open_engine(database_url, pool_size=2)
        try:
            return await measure(engine, address, root, count=count, most=most)
        finally:
            await engine.dispose()

    with scheduler(database_url, *options, *timing, for_workers=True) as (address, _):
        return asyncio.run(measured(address))


def main() -> int:
    """Run it, print what was found, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--max", type=int, default=20, help="workers of each launch at once")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with postgres() as database_url, tempfile.TemporaryDirectory() as folder:
        found = run(database_url, Path(folder), count=given.workers, most=given.max)
    print(f"{found.started} workers in {found.took_s:g} s, at most {given.max} of each launch at once")
    for name, one in found.launches.items():
        print(f"  {name}: {json.dumps(one)}")
    print("| rows | left | for each worker | when all have ended |\n| --- | --- | --- | --- |")
    for what, count in found.left.items():
        print(f"| {what} | {count} | {count / found.started:.2f} | {found.left_later[what]} |")
    for fault in found.faults:
        print(f"fault: {fault}")
    if given.out:
        write_record(
            given.out / "many_workers.json",
            launches=found.launches,
            left=found.left,
            left_later=found.left_later,
            faults=found.faults,
            took_s=found.took_s,
        )
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
