"""How long a trial that saves at each step waits: for its own save, and for its worker until the report is
durable.

    python benchmarks/worker/checkpoint_wait.py [--megabytes 1024] [--rounds 10] [--other /dev/shm]

Real daemons and real trial processes, with a scripted scheduler that acknowledges at once. The trials train
nothing: `t.steps(checkpoint_every=1)`, and a report at each step. Four of them take turns, one step each, in a
different order in each round:

- `left out`: the worker stores nothing, and acknowledges;
- `linked`: the store is on the file system of the worker's home;
- `copied`: the same, but hard links are refused, as with another disk of the same speed;
- `memory`: the store is on another file system, in memory.

The first round is left out: it writes into fresh memory. It prints seconds per step: the median, and in brackets
its 95% bootstrap interval. If other programs keep the cores busy, wall seconds include them; processor seconds do
not.
"""

import argparse
import asyncio
import errno
import json
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "worker"))

from scripted_scheduler import ScriptedScheduler  # noqa: E402  the tests' own, found by the line above
from worker_site import Site  # noqa: E402  likewise

from headrace.checkpoints import CheckpointMeta, Manifest, directory  # noqa: E402  behind it, in order
from headrace.v1 import trial_pb2  # noqa: E402  likewise
from headrace_worker import reports  # noqa: E402  likewise

WAYS = ("left out", "linked", "copied", "memory")
TRIAL = """
import json, os, sys, time
from pathlib import Path
import torch
from headrace import trial

flushing = 0.0
fsync = os.fsync
def timed(descriptor):
    global flushing
    began = time.monotonic()
    fsync(descriptor)
    flushing += time.monotonic() - began
os.fsync = timed

def train(t):
    global flushing
    model = torch.nn.ParameterList(torch.randn(1 << 22) for _ in range({tensors}))
    t.track(model=model)
    rows = []
    for step in t.steps(checkpoint_every=1):
        go = Path(os.environ["MARKS"], "go-" + str(step))
        while not go.exists():
            time.sleep(0.02)  # the next turn is its file
        flushing = 0.0
        began, busy = time.monotonic(), time.thread_time()
        t.report(loss=1.0 / step)
        rows.append(
            dict(total=time.monotonic() - began, flush=flushing, cpu=time.thread_time() - busy)
        )
        done = Path(os.environ["MARKS"], "rows")
        done.with_suffix(".new").write_text(json.dumps(rows))
        done.with_suffix(".new").rename(done)

trial.main(train)
"""
took: dict[str, float] = defaultdict(float)
"""Seconds of the current step, by part."""


def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the time of a part to its name."""

    def call(*args: Any, **options: Any) -> Any:
        began, busy = time.monotonic(), time.thread_time()
        try:
            return work(*args, **options)
        finally:
            took[name] += time.monotonic() - began
            took[f"{name} cpu"] += time.thread_time() - busy

    return call


def measure_parts(patch: pytest.MonkeyPatch, steps: list[dict[str, float]]) -> None:
    """Times the parts of a report's way through the worker, and omits the copy if the store's name says so."""
    for module, function, name in (
        (directory, "_link_or_copy", "copy"),
        (directory, "entry_of", "hash"),
        (directory, "flush_below", "flush"),
        (reports, "clear_away", "delete"),
    ):
        patch.setattr(module, function, timed(name, getattr(module, function)))
    put = directory.DirectoryStore.put
    link = os.link

    def maybe_put(
        store: directory.DirectoryStore, folder: Path, meta: CheckpointMeta
    ) -> trial_pb2.CheckpointRef:
        if "left" in store.url:
            return Manifest.of(meta, (), 0.0).to_ref(store.uri(meta.trial, meta.name))
        return put(store, folder, meta)

    def maybe_link(source: Path, target: Path) -> None:
        if "copied" in str(target):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        link(source, target)

    patch.setattr(os, "link", maybe_link)
    patch.setattr(directory.DirectoryStore, "put", timed("put", maybe_put))
    process = reports.Reports._process

    async def timed_process(self: reports.Reports, request: Any, *rest: Any) -> Any:
        took.clear()
        began = time.monotonic()
        try:
            return await process(self, request, *rest)
        finally:
            save_s = request.save_time.ToTimedelta().total_seconds()
            steps.append({"take": time.monotonic() - began, "save": save_s, **took})

    patch.setattr(reports.Reports, "_process", timed_process)


def start(root: Path, way: str, other: Path, address: ScriptedScheduler) -> Site:
    """A worker with a store of this kind."""
    folder = root / way.replace(" ", "-")
    folder.mkdir()
    if way == "memory":
        (folder / "store").symlink_to(other)
    site = Site(root=folder, scheduler=address, cpu_slots=1)
    site.start()
    return site


async def next_step(site: Site, number: int) -> dict[str, float]:
    """Lets a trial take its next step; returns the step's measurements."""
    (site.marks / f"go-{number}").touch()
    rows: list[dict[str, float]] = []
    while len(rows) < number:
        await asyncio.sleep(0.05)
        if (site.marks / "rows").exists():
            rows = json.loads((site.marks / "rows").read_text())
        if ended := (await site.scheduler.stream()).all("exited"):
            raise SystemExit(f"the trial ended: {ended}")
    return rows[-1]


async def measure(root: Path, other: Path, options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """All rounds; the parts of each step, by kind."""
    sites: dict[str, Site] = {}
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    steps: list[dict[str, float]] = []
    script = TRIAL.replace("{tensors}", str(options.megabytes // 16))
    with pytest.MonkeyPatch.context() as patch:
        measure_parts(patch, steps)
        for way in WAYS:
            scheduler = ScriptedScheduler()
            await scheduler.start()
            site = sites[way] = start(root, way, other, scheduler)
            assign = site.assign(site.program(script, prelude=False), milestone=27)
            (await scheduler.stream()).send(assign=assign)
        for number in range(1, options.rounds + 2):
            for way in random.Random(number).sample(WAYS, len(WAYS)):
                steps.clear()
                row = await next_step(sites[way], number)
                if number > 1:
                    found[way].append({**steps[0], **{f"trial {name}": one for name, one in row.items()}})
                parts = {name: round(seconds, 2) for name, seconds in (steps[0] | row).items()}
                print(f"round {number}, {way}: {parts}", flush=True)
        for site in sites.values():
            await site.stop()
            await site.scheduler.stop()
    return found


def parts_of(step: dict[str, float]) -> dict[str, float]:
    """The parts that add up to the whole of a step."""
    known = {name: step.get(name, 0.0) for name in ("copy", "hash", "flush", "delete")}
    save_s = step["save"]
    return {
        "whole": step["trial total"],
        "save: serialise": save_s - step["trial flush"],
        "save: flush": step["trial flush"],
        "worker": step["trial total"] - save_s,
        **{f"worker: {name}": seconds for name, seconds in known.items()},
        "worker: rest": step["trial total"] - save_s - sum(known.values()),
        **{
            f"processor, worker: {name}": step.get(f"{name} cpu", 0.0)
            for name in ("copy", "hash", "flush", "delete")
        },
        "processor, worker": step.get("put cpu", 0.0) + step.get("delete cpu", 0.0),
        "processor, save": step["trial cpu"],
        "worker / save": (step["trial total"] - save_s) / save_s,
    }


def told(values: list[float]) -> str:
    """The median, with its interval."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(4000))
    return f"{statistics.median(values):.2f} [{medians[100]:.2f}, {medians[-101]:.2f}]"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--other", type=Path, default=Path("/dev/shm"))
    options = parser.parse_args()
    root, other = Path(tempfile.mkdtemp(prefix="hr-wait-")), Path(tempfile.mkdtemp(dir=options.other))
    loads = [os.getloadavg()[0]]
    try:
        found = asyncio.run(measure(root, other, options))
    finally:
        shutil.rmtree(root)
        shutil.rmtree(other)
    loads.append(os.getloadavg()[0])
    print(
        f"{options.megabytes} MB, {platform.machine()}, {os.cpu_count()} cores, load {loads[0]:.1f} to {loads[1]:.1f}"
    )
    names = list(parts_of(found[WAYS[0]][0]))
    print("| seconds a step | " + " | ".join(WAYS) + " |")
    print("| --- |" + " --- |" * len(WAYS))
    for name in names:
        row = [told([parts_of(step)[name] for step in found[way]]) for way in WAYS]
        print(f"| {name} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
