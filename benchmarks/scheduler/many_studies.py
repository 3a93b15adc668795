"""How long a placing cycle takes while many studies share 64 GPUs: 1, 100 and 1,000 active studies, all waiting.

Trials end one after the other. Each end is one cycle of its study, which finds out which study goes first; the
studies to which it leaves slots have a cycle each. All run in this process, over a Postgres of its own. Prints,
for each number of studies, the median and the 99th percentile of both kinds of cycles in milliseconds.
"""

import argparse
import asyncio
import json
import random
import time
from statistics import median, quantiles

from benchmark_site import postgres
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.spec import StudySpec
from headrace_services.scheduler.core.fold import Fold
from headrace_services.scheduler.core.inputs import Assignment, Input, PlaceNow, ReportArrived
from headrace_services.scheduler.core.plan import Effects
from headrace_services.scheduler.core.records import Event, Lease
from headrace_services.scheduler.engine.cycle import run_cycle
from headrace_services.scheduler.engine.submissions import Submission
from headrace_services.scheduler.store import studies, workers
from headrace_services.scheduler.store.database import open_engine, transaction
from headrace_services.scheduler.store.migrate import migrate

WORKERS = SLOTS_EACH = 8
WARM_UP = 20


class Cluster:
    """Studies on a database, their folds, and the live leases."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._folds: dict[int, Fold | None] = {}
        self.leases: dict[str, Lease] = {}
        self.cpu_s: list[float] = []
        """The processor time of this process, in all cycles."""

    async def add(self, number: int, *, trials: int = 1000, steps: int = 9) -> int:
        """Create a study on workers."""
        spec = StudySpec.model_validate(
            {
                "objective": {"metric": "loss", "goal": "minimize"},
                "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
                "policy": {"kind": "run_all"},
                "template": {"callable": "train:train", "working_dir": "/"},
                "resources": {"gpus": 1},
                "max_trials": trials,
                "max_steps": steps,
                "seed": number,
            }
        )
        event = Event(number=None, kind="note", message="created", detail={})
        async with transaction(self._engine) as conn:
            study = await studies.create(
                conn, name=f"s{number}", uid=f"u{number}", spec=spec, planned=trials, event=event
            )
        return study.id

    async def connect(self, number: int, slots: int = SLOTS_EACH) -> None:
        """Connect a worker."""
        devices = tuple(
            workers.Device(index=index, kind="GPU", model="m", memory_bytes=80 << 30, uuid="")
            for index in range(slots)
        )
        greeting = workers.Greeting(
            name=f"w{number}", incarnation="1", devices=devices, labels={}, version="", log_dir="/"
        )
        async with transaction(self._engine) as conn:
            await workers.greet(conn, greeting, 36000.0)

    async def cycle(self, study_id: int, one: Input) -> tuple[float, Effects]:
        """Run a cycle. Returns its duration in seconds and what follows from it."""
        fold = self._folds.pop(study_id, None)
        began, cpu = time.perf_counter(), time.process_time()
        async with transaction(self._engine) as conn:
            result = await run_cycle(conn, study_id, [Submission(input=one)], fold)
        took_s = time.perf_counter() - began
        self.cpu_s.append(time.process_time() - cpu)
        self._folds[study_id] = result.fold
        for order in result.effects.orders:
            if isinstance(order, Assignment):
                self.leases[order.lease.id] = order.lease
        return took_s, result.effects


async def measure(url: str, count: int, ends: int) -> dict[str, object]:
    """Let trials end among that many studies."""
    engine = open_engine(url)
    await migrate(engine)
    cluster = Cluster(engine)
    ids = [await cluster.add(number) for number in range(count)]
    for number in range(WORKERS):
        await cluster.connect(number)
    for study_id in ids:
        await cluster.cycle(study_id, PlaceNow())
    chance, taken_end, taken_woken = random.Random(1), [], []
    for turn in range(WARM_UP + ends):
        lease = cluster.leases.pop(chance.choice(sorted(cluster.leases)))
        last = ReportArrived(
            lease_id=lease.id,
            number=lease.number,
            attempt=lease.attempt,
            sequence=1,
            step=9,
            metrics={"loss": chance.random()},
            checkpoint=None,
            train_time_s=9.0,
        )
        took_s, effects = await cluster.cycle(lease.study_id, last)
        woken = [(await cluster.cycle(study_id, PlaceNow()))[0] for study_id in effects.wake]
        if turn >= WARM_UP:
            taken_end.append(took_s)
            taken_woken += woken
    await engine.dispose()
    return {
        "studies": count,
        "ends_ms": _ms(taken_end),
        "woken_ms": _ms(taken_woken),
        "own_cpu_ms": _ms(cluster.cpu_s[-ends:]),
    }


def _ms(taken_s: list[float]) -> dict[str, float]:
    if len(taken_s) < 2:
        return {"cycles": len(taken_s)}
    p99 = quantiles(taken_s, n=100)[98]
    return {
        "cycles": len(taken_s),
        "median": round(median(taken_s) * 1e3, 2),
        "p99": round(p99 * 1e3, 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", default="1,100,1000", help="how many active studies")
    parser.add_argument("--ends", type=int, default=200, help="how many trials end in each measurement")
    arguments = parser.parse_args()
    for count in map(int, arguments.studies.split(",")):
        with postgres() as url:
            print(json.dumps(asyncio.run(measure(url, count, arguments.ends))), flush=True)


if __name__ == "__main__":
    main()
