"""A whole cluster at the pace of real trials: 500 GPUs, 100 studies and two replicas over one Postgres.

Simulated workers speak the real session protocol to real scheduler processes. A step of a trial takes `--step-s`
seconds, plus or minus half, and each step is reported. So the load is that of a cluster, not the scheduler's
maximum (`bench_load.py`). After `--warm-up-s` seconds it measures the time from sending a report at a milestone to
receiving the decision; processor time and memory of the replicas and of Postgres; and from /metrics how many
studies were woken for each slot that became free.

    python benchmarks/scheduler/cluster_scale.py
    python benchmarks/scheduler/cluster_scale.py --identity

With `--identity` the scheduler authenticates callers, as it does on a network: it has an authority of its own,
users have a token over TLS, and each worker shows the certificate that it got by joining, at the listener for
workers. Writes `cluster_scale.json` into `--out`.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import psutil
from benchmark_site import Cost, percentiles_ms, postgres, scheduler, write_record
from prometheus_client.parser import text_string_to_metric_families
from simulated_worker import Crowd, SimulatedWorker

from headrace import AsyncClient
from headrace.client import joining
from headrace.spec import StudySpec
from headrace.target import Target
from headrace.v1 import event_pb2, worker_pb2
from headrace_services.identity import authority
from headrace_services.identity.lifetimes import WORKER_LIVES
from headrace_services.scheduler import first_token
from headrace_worker.joining import joined

SLOTS_EACH = 8


def study(number: int) -> StudySpec:
    """ASHA with one-GPU trials, more than the run can train."""
    return StudySpec.model_validate(
        {
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "sampler": {"kind": "random"},
            "policy": {"kind": "asha", "eta": 3, "rungs": [2, 6, 18], "variant": "promotion"},
            "template": {"callable": "nothing:runs", "working_dir": "/"},
            "resources": {"gpus": 1},
            "max_trials": 2000,
            "max_steps": 18,
            "seed": number,
        }
    )


class TimedWorker(SimulatedWorker):
    """A worker with GPUs whose steps take some time."""

    kind = worker_pb2.DEVICE_KIND_GPU
    step_s = 5.0

    async def _trial(self, assign: worker_pb2.Assign) -> None:
        step, milestone = assign.resume_step, assign.next_milestone
        while True:
            await asyncio.sleep(self.step_s * random.uniform(0.5, 1.5))
            step += 1
            answer = self._report(assign, step)
            if step < milestone:
                continue
            began = time.monotonic()
            decision = await answer
            self._figures.decision_s.append(time.monotonic() - began)
            if decision.action != event_pb2.DECISION_ACTION_CONTINUE:
                self._held.pop(assign.lease.lease_id, None)
                return
            milestone = decision.next_milestone


def counted(metrics: list[str]) -> dict[str, float]:
    """The counters of all replicas, each summed over its labels."""
    found: dict[str, float] = {}
    for address in metrics:
        with urlopen(address, timeout=10) as answer:
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.endswith(("_total", "_count", "_sum")):
                    labels = sample.labels
                    parts = [labels[label] for label in ("what", "why", "outcome") if label in labels]
                    for key in {sample.name, "/".join([sample.name, *parts])}:
                        found[key] = found.get(key, 0.0) + sample.value
    return found


async def run(options: argparse.Namespace, replicas: list["Replica"]) -> dict[str, Any]:
    """Let the cluster work, and measure the second part."""
    TimedWorker.step_s = options.step_s
    crowd, identity = Crowd(), options.identity
    crowd.go_on()
    workers = [
        TimedWorker(f"w{number}", SLOTS_EACH, crowd, lambda: False)
        for number in range(-(-options.gpus // SLOTS_EACH))
    ]
    shown = {"tls_ca": identity.ca, "token": identity.token} if identity else {}
    async with AsyncClient(replicas[0].address, **shown, timeout_s=120) as client:
        for number in range(options.studies):
            await client.create_study(f"s{number}", study(number))
        joins = await identity.join_token(client, len(workers)) if identity else ""
        running = []
        for place, worker in enumerate(workers):
            address = replicas[place % len(replicas)].address
            if identity:
                address, worker.credentials = await identity.join(address, worker.name, joins)
            running.append(asyncio.create_task(worker.run(address)))
        await asyncio.sleep(options.warm_up_s)
        crowd.figures.decision_s.clear()
        metrics = [replica.metrics for replica in replicas]
        before, spent = await asyncio.to_thread(counted, metrics), [cost(replica) for replica in replicas]
        reports = crowd.figures.committed
        await asyncio.sleep(options.measure_s)
        after, now = await asyncio.to_thread(counted, metrics), [cost(replica) for replica in replicas]
        reports = crowd.figures.committed - reports
        waited = percentiles_ms(list(crowd.figures.decision_s))
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    delta = {name: after[name] - before.get(name, 0.0) for name in after}
    freed = delta["headrace_grants_total/ended"]
    return {
        "reports_per_s": round(reports / options.measure_s, 1),
        "decisions": waited,
        "in_the_scheduler_ms": round(
            delta["headrace_worker_message_duration_seconds_sum"]
            / delta["headrace_worker_message_duration_seconds_count"]
            * 1e3,
            2,
        ),
        "slots_freed": round(freed),
        "wake_ups_per_freed_slot": round(delta["headrace_placement_wakeups_total"] / freed, 2),
        "why_woken": {
            name.rpartition("/")[2]: round(count / freed, 3)
            for name, count in delta.items()
            if name.startswith("headrace_placement_wakeups_total/")
        },
        "cycle_ms": round(
            delta["headrace_cycle_duration_seconds_sum"]
            / delta["headrace_cycle_duration_seconds_count"]
            * 1e3,
            2,
        ),
        "cycles_per_freed_slot": round(delta["headrace_cycle_duration_seconds_count"] / freed, 2),
        "conflicts": round(delta["headrace_database_errors_total"]),
        "cores_of_replicas": [
            round((b.scheduler_s - a.scheduler_s) / options.measure_s, 3)
            for a, b in zip(spent, now, strict=True)
        ],
        "cores_of_postgres": round((now[0].postgres_s - spent[0].postgres_s) / options.measure_s, 3),
        "cores_of_the_load": round((now[0].load_s - spent[0].load_s) / options.measure_s, 3),
        "rss_mb": [round(replica.process.memory_info().rss / 1e6, 1) for replica in replicas],
    }


class Replica:
    """A scheduler process."""

    def __init__(self, address: str, metrics: str, process: psutil.Process) -> None:
        self.address, self.metrics, self.process = address, metrics, process


def cost(replica: Replica) -> Cost:
    """What a replica, Postgres and this process have spent."""
    return Cost.now(replica.process)


class Identity:
    """An authority, a token of an admin, and the certificates of workers."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder = folder
        self.ca = folder / "ca" / "ca.pem"
        authority.make(folder / "ca", ["localhost", "127.0.0.1"], now=datetime.now(UTC))
        _, self.token = first_token.create(
            database_url, name="benchmark", project="default", role="admin", lifetime_s=None
        )

    @property
    def options(self) -> list[str]:
        """The scheduler's options."""
        return ["--ca", str(self.ca.parent), "--worker-listen", "127.0.0.1:0", "--auth", "tokens"]

    async def join_token(self, client: AsyncClient, workers: int) -> str:
        """A token with which that many workers may join."""
        made = joining.create_token(worker="", uses=workers, lifetime=WORKER_LIVES)
        _, token = await client.transport.run(made)
        return token

    async def join(self, users: str, worker: str, token: str) -> tuple[str, grpc.ChannelCredentials]:
        """The address to which a worker connects, and the credentials that it shows there."""
        target = Target.of(f"tls://{users}", tls_ca=self.ca)
        home = self.folder / worker
        home.mkdir()
        found = await joined(target, home, worker, token)
        assert found is not None
        return found.replicas[0], found.credentials()


def main() -> None:
    """Measure, print and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=500)
    parser.add_argument("--studies", type=int, default=100)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--step-s", type=float, default=5.0, help="seconds of a step, on average")
    parser.add_argument("--warm-up-s", type=float, default=45.0)
    parser.add_argument("--measure-s", type=float, default=90.0)
    parser.add_argument("--identity", action="store_true", help="TLS, tokens, and workers with certificates")
    parser.add_argument(
        "--scheduler-option", action="append", default=[], help="a further option of schedulers"
    )
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    with ExitStack() as stack:
        url = stack.enter_context(postgres())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        options.identity = identity = Identity(folder, url) if options.identity else None
        flags = [*(identity.options if identity else ()), *options.scheduler_option]
        replicas = []
        for _ in range(options.replicas):
            started = scheduler(
                url,
                "--metrics-listen",
                "127.0.0.1:0",
                *flags,
                metrics=True,
                for_workers=identity is not None,
            )
            address, process = stack.enter_context(started)
            where, _, metrics = address.partition(" ")
            replicas.append(Replica(where, metrics, process))
        found = asyncio.run(run(options, replicas))
    cluster = {name: getattr(options, name) for name in ("gpus", "studies", "replicas", "step_s")}
    cluster["identity"] = identity is not None
    write_record(options.out / "cluster_scale.json", cluster=cluster, figures=found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
