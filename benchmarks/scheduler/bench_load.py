"""How long the scheduler's decisions take as a study grows: latency, throughput and memory, on a real Postgres.

Simulated workers speak the real session protocol to a real scheduler process and report as fast as they are
answered, so every figure includes gRPC, the cycle, and the durable commit. In one run the study grows from nothing
to `--trials`, with ten reports per trial. Three times on the way all workers but one are silenced, and that one
measures how long each of its reports takes from sending to the committed decision: that is the latency without
load.

    python benchmarks/scheduler/bench_load.py --trials 10000 --streams 64 --slots 1

Writes `load.json` and `load.svg` into `--out`.
"""

import argparse
import asyncio
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import psutil
from benchmark_site import Cost, percentiles_ms, postgres, scheduler, write_record
from simulated_worker import Crowd, SimulatedWorker

from headrace import AsyncClient
from headrace.client.model import StudyState
from headrace.spec import StudySpec

mpl.use("svg")
from matplotlib import pyplot as plt  # after the choice of the backend

FULL = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Figures of a stretch of the run under load."""

    at_s: float
    trials: int
    reports: int
    reports_per_s: float
    p50_ms: float
    p99_ms: float
    rss_mb: float


def study(trials: int) -> StudySpec:
    """ASHA over three rungs, ten reports a trial on average, with the seed fixed."""
    return StudySpec.model_validate(
        {
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "sampler": {"kind": "random"},
            "policy": {"kind": "asha", "eta": 3, "rungs": [4, 13, FULL], "variant": "promotion"},
            "template": {"callable": "nothing:runs", "working_dir": "/"},
            "max_trials": trials,
            "max_steps": FULL,
            "seed": 1,
        }
    )


class Run:
    """One study from nothing to its end."""

    def __init__(self, options: argparse.Namespace, process: psutil.Process) -> None:
        self._options = options
        self._process = process
        self._crowd = Crowd()
        self._over = False
        self.windows: list[Window] = []
        self.quiet: list[dict[str, Any]] = []
        self.cost: dict[str, float] = {}
        self.loaded_s = 0.0

    async def go(self, address: str) -> None:
        """Run it."""
        options, figures = self._options, self._crowd.figures
        workers = [
            SimulatedWorker(f"w{n}", options.slots, self._crowd, lambda: self._over)
            for n in range(options.streams)
        ]
        # The last one while trials are left to start: a lone worker whose trial is paused needs another.
        probes = [100, max(101, options.trials // 10), int(options.trials * 0.9)]
        async with AsyncClient(address) as client:
            handle = await client.create_study("bench", study(options.trials))
            running = [asyncio.create_task(worker.run(address)) for worker in workers]
            self._crowd.go_on()
            spent, quiet = Cost.now(self._process), Cost.none()
            while (await handle.status()).state is StudyState.ACTIVE:
                await self._window(until_trials=probes[0] if probes else options.trials)
                if probes and figures.trials >= probes[0]:
                    probes.pop(0)
                    before = Cost.now(self._process)
                    await self._probe()
                    quiet += Cost.now(self._process) - before
            counted = figures.committed - sum(probe["count"] for probe in self.quiet)
            self.cost = (Cost.now(self._process) - spent - quiet).over(counted)
            self._over = True
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _window(self, *, until_trials: int) -> None:
        """Watch the load for a while, or until the study has that many trials."""
        figures = self._crowd.figures
        figures.decision_s.clear()
        seen, began = figures.committed, time.monotonic()
        while time.monotonic() < began + self._options.window_s and figures.trials < until_trials:  # noqa: ASYNC110  a window
            await asyncio.sleep(0.02)
        took = time.monotonic() - began
        self.loaded_s += took
        waited = percentiles_ms(figures.decision_s)
        if took > self._options.window_s / 4 and waited["count"]:
            window = Window(
                at_s=round(self.loaded_s, 1),
                trials=figures.trials,
                reports=figures.committed,
                reports_per_s=round((figures.committed - seen) / took, 1),
                p50_ms=waited["p50_ms"],
                p99_ms=waited["p99_ms"],
                rss_mb=round(self._process.memory_info().rss / 1e6, 1),
            )
            self.windows.append(window)
            print(window, flush=True)

    async def _probe(self) -> None:
        """Measure one trial's reports without other load."""
        figures = self._crowd.figures
        self._crowd.hush("w0")
        await asyncio.sleep(1.0)  # everything in flight is answered by then
        figures.quiet_s.clear()
        until = time.monotonic() + 30
        while len(figures.quiet_s) < self._options.probes and time.monotonic() < until:  # noqa: ASYNC110  a window
            await asyncio.sleep(0.01)
        probe = {
            "trials": figures.trials,
            "reports": figures.committed,
            "rss_mb": round(self._process.memory_info().rss / 1e6, 1),
            **percentiles_ms(figures.quiet_s[: self._options.probes]),
        }
        self.quiet.append(probe)
        print("alone:", probe, flush=True)
        self._crowd.go_on()


def summary(run: Run) -> dict[str, Any]:
    """The figures that must hold."""
    first, tenth, last = run.quiet
    reports = run.windows[-1].reports
    return {
        "reports": reports,
        "reports_per_s": round(sum(w.reports_per_s for w in run.windows[:-1]) / len(run.windows[:-1]), 1),
        "p99_alone_ms": last["p99_ms"],
        "p99_alone_over_p99_at_100_trials": round(last["p99_ms"] / first["p99_ms"], 2),
        "rss_over_rss_at_a_tenth": round(last["rss_mb"] / tenth["rss_mb"], 4),
        "cost_of_a_report": run.cost,
    }


def draw(run: Run, path: Path) -> None:
    """Draw latency, throughput and memory against the number of trials."""
    trials = [window.trials for window in run.windows]
    figure, (latency, rate, memory) = plt.subplots(3, 1, figsize=(8, 8), sharex=True, layout="constrained")
    latency.plot(trials, [w.p99_ms for w in run.windows], color="#b0413e", label="p99, all streams at once")
    latency.plot(trials, [w.p50_ms for w in run.windows], color="#e0a39f", label="p50, all streams at once")
    alone = [probe["trials"] for probe in run.quiet]
    latency.plot(alone, [p["p99_ms"] for p in run.quiet], "o-", color="#1f5673", label="p99, one trial alone")
    latency.plot(alone, [p["p50_ms"] for p in run.quiet], "o-", color="#7fa7bd", label="p50, one trial alone")
    latency.axhline(25, color="grey", linestyle=":", linewidth=1)
    latency.set(ylabel="report to durable\ndecision, ms", yscale="log")
    latency.legend(fontsize=8)
    rate.plot(trials, [w.reports_per_s for w in run.windows], color="#1f5673")
    rate.axhline(1000, color="grey", linestyle=":", linewidth=1)
    rate.set(ylabel="reports a second", ylim=(0, None))
    memory.plot(trials, [w.rss_mb for w in run.windows], color="#1f5673")
    memory.set(ylabel="scheduler's memory, MB", xlabel="trials in the study", ylim=(0, None))
    figure.suptitle("One study as it grows", fontsize=11)
    figure.savefig(path)


def main() -> None:
    """Run and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=64, help="workers")
    parser.add_argument("--slots", type=int, default=1, help="slots of each worker")
    parser.add_argument("--probes", type=int, default=500, help="reports to measure alone, each time")
    parser.add_argument("--window-s", type=float, default=2.0, help="length of a stretch")
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    with postgres() as url, scheduler(url) as (address, process):
        run = Run(options, process)
        asyncio.run(run.go(address))
    found = summary(run)
    windows = [asdict(window) for window in run.windows]
    write_record(
        options.out / "load.json",
        summary=found,
        alone=run.quiet,
        windows=windows[:: max(1, len(windows) // 60)],
    )
    draw(run, options.out / "load.svg")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
