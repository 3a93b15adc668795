"""How long a freed slot stays empty: from the commit that frees it to the next trial's first line of user code.

A real Postgres, scheduler and worker daemon with one slot run trials that report once and end, each in a process
of its own, with and without a standby process. The clock starts with the event that the freeing transaction wrote
(a little before its commit) and stops in the first line of the next trial's function. In between are the decision,
the end of the old process, the assignment, and the new process. The old process's own part, from the answer to its
last report to its end, is shown too: no other process may have the slot before that. With each case goes the
processor time of a trial: the worker's and its processes', from the daemon's start to its end.

    python benchmarks/scheduler/bench_relaunch.py --trials 40

Writes `relaunch.json` and `relaunch.svg` into `--out`.
"""

import argparse
import asyncio
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import psycopg
from benchmark_site import percentiles_ms, postgres, scheduler, write_record

from headrace import AsyncClient
from headrace.spec import StudySpec

mpl.use("svg")
from matplotlib import pyplot as plt  # after the choice of the backend

MODULE = """
import {imports}
import json, os, time

def train(t):
    began = time.time()
    with open(os.path.join(os.environ["MARKS"], f"{{t.number}}.json"), "w") as file:
        json.dump({{"began": began}}, file)
    time.sleep({seconds})  # it trains; meanwhile a standby process gets ready
    for step in t.steps():
        t.report(loss=1.0)
"""
CASES = {"standard library": ("json", 1.5), "PyTorch": ("torch", 5.0)}


def study(folder: Path, trials: int, *, prestart: bool) -> StudySpec:
    """Trials of one step on CPU slots."""
    return StudySpec.model_validate(
        {
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "policy": {"kind": "run_all"},
            "template": {
                "callable": "relaunch_program:train",
                "working_dir": str(folder),
                "env": {"MARKS": str(folder), "OMP_NUM_THREADS": "1"},
                "prestart": prestart,
            },
            "max_trials": trials,
            "max_steps": 1,
        }
    )


@contextmanager
def worker(address: str, home: Path) -> Iterator[None]:
    """A worker daemon with one CPU slot."""
    command = [sys.executable, "-m", "headrace.cli", "worker", "--scheduler", address, "--cpu-slots", "1"]
    command += ["--home", str(home), "--store", (home / "store").as_uri(), "--name", "relaunch"]
    with (home / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "HEADRACE_HOME": str(home)}
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def ended_children_s() -> float:
    """Processor seconds of the children that ended and were waited for, with theirs."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


async def run_study(address: str, name: str, spec: StudySpec) -> None:
    """Run a study to its end."""
    async with AsyncClient(address) as client:
        handle = await client.create_study(name, spec)
        await handle.wait()


def waits(url: str, name: str, folder: Path) -> list[float]:
    """The seconds from each freeing event to the start of the trial that got the slot in the same cycle."""
    query = """
        SELECT extract(epoch FROM e.time), e.number, e.detail ->> 'to_state' FROM event e
        JOIN study s ON s.id = e.study_id WHERE s.name = %s AND e.kind = 'trial_moved' ORDER BY e.cursor
    """
    with psycopg.connect(url) as conn:
        rows = conn.execute(query, [name]).fetchall()
    freed: float | None = None
    found = []
    for time_s, number, state in rows:
        if state.endswith("TERMINATED"):
            freed = float(time_s)
        elif state.endswith("RUNNING") and freed is not None:
            mark = json.loads((folder / f"{number}.json").read_text())
            found.append(mark["began"] - freed)
            freed = None
    return found


def measure(options: argparse.Namespace, address: str, url: str) -> dict[str, Any]:
    """All cases, cold and warm."""
    results: dict[str, Any] = {}
    for case, (imports, seconds) in CASES.items():
        for prestart in (False,) if options.cold else (False, True):
            folder = Path(tempfile.mkdtemp(prefix="hr-relaunch-"))
            try:
                (folder / "relaunch_program.py").write_text(
                    MODULE.format(imports=imports, seconds=seconds if prestart else 0)
                )
                name = f"{case.split()[-1].lower()}-{'warm' if prestart else 'cold'}"
                before_s = ended_children_s()
                with worker(address, folder):
                    asyncio.run(run_study(address, name, study(folder, options.trials, prestart=prestart)))
                taken = waits(url, name, folder)[1:]  # the first one had no standby process
                key = f"{case}, {'a process stands by' if prestart else 'a new process'}"
                spent = {"processor_ms": round((ended_children_s() - before_s) / options.trials * 1e3, 1)}
                shown = percentiles_ms(taken) | spent
                results[key] = {**shown, "all_ms": [round(s * 1e3, 1) for s in sorted(taken)]}
                print(key, shown, flush=True)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    return results


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw the distributions."""
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for (name, result), color in zip(
        results.items(), ("#e0a39f", "#b0413e", "#7fa7bd", "#1f5673"), strict=True
    ):
        values = result["all_ms"]
        axes.step(
            values, [(n + 1) / len(values) for n in range(len(values))], where="post", label=name, color=color
        )
    axes.axvline(100, color="grey", linestyle=":", linewidth=1)
    axes.set(
        xscale="log", xlabel="milliseconds from the freeing commit to user code", ylabel="share of relaunches"
    )
    axes.legend(fontsize=8)
    axes.set_title("A freed slot's next trial", fontsize=11)
    figure.savefig(path)


def main() -> None:
    """Run and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--cold", action="store_true", help="new processes only, without a standby process")
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    with postgres() as url, scheduler(url) as (address, _):
        results = measure(options, address, url)
    write_record(options.out / "relaunch.json", results=results)
    if not options.cold:
        draw(results, options.out / "relaunch.svg")


if __name__ == "__main__":
    main()
