"""How long many studies of short trials take together, compared with the sum of their work.

100 and 1,000 active studies share 2 slots, then 64. Trials are timers: each takes `--trial` seconds and ends with
one report. Everything else is real: the hub, its runners and wake-ups, over a Postgres of its own. There is no
sweeper, which would hide a slot of which nobody was notified. For each cluster it gives the seconds to the end,
the minimum for the work (trials × seconds ÷ slots), their ratio, and the median and 99th percentile of a cycle in
milliseconds.

    python benchmarks/scheduler/studies_to_the_end.py

Writes `studies_to_the_end.json` into `--out`.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median, quantiles

from benchmark_site import postgres, write_record
from many_studies import Cluster
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace_services.scheduler.core.inputs import Assignment, Order, PlaceNow, ReportArrived
from headrace_services.scheduler.engine import runner
from headrace_services.scheduler.engine.cycle import CycleResult, run_cycle
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.engine.submissions import Submission
from headrace_services.scheduler.store.database import open_engine
from headrace_services.scheduler.store.migrate import migrate

CASES = ((100, 2, 0.2, 3), (1000, 2, 0.1, 2), (100, 64, 1.0, 20), (1000, 64, 1.0, 4))
"""Studies, slots, seconds per trial, trials per study."""


class Timers:
    """A cluster whose trials are timers."""

    def __init__(self, hub: Hub, tasks: asyncio.TaskGroup, trial_s: float) -> None:
        self._hub, self._tasks, self._trial_s = hub, tasks, trial_s
        self.ended = 0

    def deliver(self, orders: Iterable[Order]) -> None:
        """Start what was assigned."""
        for order in orders:
            if isinstance(order, Assignment):
                self._tasks.create_task(self._train(order))

    async def _train(self, order: Assignment) -> None:
        lease = order.lease
        await asyncio.sleep(self._trial_s)
        last = ReportArrived(
            lease_id=lease.id,
            number=lease.number,
            attempt=lease.attempt,
            sequence=1,
            step=1,
            metrics={"loss": 0.5},
            checkpoint=None,
            train_time_s=self._trial_s,
        )
        await self._hub.submit(lease.study_id, Submission(input=last))
        self.ended += 1


async def measure(
    engine: AsyncEngine, studies: int, slots: int, trial_s: float, trials: int
) -> dict[str, object]:
    """Run that many studies to their ends."""
    await migrate(engine)
    cluster, took_s = Cluster(engine), list[float]()
    ids = [await cluster.add(number, trials=trials, steps=1) for number in range(studies)]
    for number in range(-(-slots // 8)):
        await cluster.connect(number, min(slots, 8))

    async def timed(*arguments: object) -> CycleResult:
        began = time.perf_counter()
        result = await run_cycle(*arguments)  # type: ignore[arg-type]  # as the runner calls it
        took_s.append(time.perf_counter() - began)
        return result

    runner.run_cycle = timed  # type: ignore[assignment]  # each cycle of this process is timed
    total = studies * trials
    async with asyncio.TaskGroup() as tasks:
        hub = Hub(engine, tasks)
        timers = Timers(hub, tasks, trial_s)
        hub.deliver_with(timers.deliver)
        waking = tasks.create_task(hub.run_waking())
        began = time.perf_counter()
        for study_id in ids:
            await hub.submit(study_id, Submission(input=PlaceNow()))
        said = 0
        while timers.ended < total:
            await asyncio.sleep(0.01)
            if timers.ended >= said + total // 10:
                said = timers.ended
                print(f"  {said} of {total} trials after {time.perf_counter() - began:.1f} s", flush=True)
        took = time.perf_counter() - began
        waking.cancel()
        await hub.drain()
    least_s = total * trial_s / slots
    return {
        "studies": studies,
        "slots": slots,
        "trial_s": trial_s,
        "trials": total,
        "took_s": round(took, 2),
        "least_s": round(least_s, 2),
        "ratio": round(took / least_s, 3),
        "cycles": len(took_s),
        "cycle_ms": {
            "median": round(median(took_s) * 1e3, 2),
            "p99": round(quantiles(took_s, n=100)[98] * 1e3, 2),
        },
    }


async def run(case: tuple[int, int, float, int]) -> dict[str, object]:
    """One case on a Postgres of its own."""
    with postgres() as url:
        engine = open_engine(url)
        try:
            return await measure(engine, *case)
        finally:
            await engine.dispose()


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=len(CASES), help="only the first so many")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    arguments = parser.parse_args()
    found = []
    for case in CASES[: arguments.cases]:
        found.append(asyncio.run(run(case)))
        print(json.dumps(found[-1]), flush=True)
    write_record(arguments.out / "studies_to_the_end.json", cases=found)


if __name__ == "__main__":
    main()
