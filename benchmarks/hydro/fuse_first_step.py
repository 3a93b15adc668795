"""The cost of a group's first step, with its probe: in seconds, in later steps, and part by part.

Called by `fuse_throughput.py --first`. There is one process per checkout, and they take turns: each makes a new
group, takes its first step, then some more. Times are the thread's own, for groups made in a process that has made
one before. What a process loads once (torch.optim loads torch's compiler, some 1.6 s) is in the column `cold`.
Ratios of two checkouts are from the same turn; the interval is that of their median, from resampled turns.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch
from fuse_kinds import KINDS, Kind

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COUNTS = (4, 16)
LATER, RESAMPLED = 10, 10_000
PARTS = {"running": ("inspect",), "probe": ("measure", "compare", "timed", "bit_stable")}


def group_of(kind: Kind, n: int) -> Any:
    """A group of AdamW members."""
    from headrace_torch import hydro  # from the checkout that this process measures

    return hydro.fuse(kind.make, [{"lr": 1e-3 * (i + 1) / n, "seed": i} for i in range(n)], optimizer="adamw")


@contextmanager
def noted(spent: dict[str, float]) -> Iterator[None]:
    """Records the time of the probe's parts, which are the same functions in every measured checkout."""

    def timing(name: str, part: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return part(*args, **kwargs)
            finally:
                spent[name] = spent.get(name, 0.0) + time.thread_time() - start

        return timed

    kept = []
    for file, names in PARTS.items():
        module = import_module(f"headrace_torch.hydro.fuse.{file}")
        for name in names:
            kept.append((module, name, getattr(module, name)))
            setattr(module, name, timing(name, getattr(module, name)))
    try:
        yield
    finally:
        for module, name, part in kept:
            setattr(module, name, part)


def one_turn(name: str, n: int) -> dict[str, Any]:
    """A first step and the best of some later ones, in seconds."""
    kind, spent = KINDS[name], dict[str, float]()
    group, batch, loss = group_of(kind, n), kind.batch(), kind.loss()
    with noted(spent):
        start = time.thread_time()
        group.step(batch, loss)
        first = time.thread_time() - start
    later = float("inf")
    for _ in range(LATER):
        start = time.thread_time()
        group.step(batch, loss)
        later = min(later, time.thread_time() - start)
    return {"first": first, "step": later, "engine": group.engine, "parts": spent}


def serve() -> None:
    """Takes turns on request, one line each."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(one_turn(*json.loads(line))), flush=True)


class Checkout:
    """A process that measures one checkout."""

    def __init__(self, root: Path) -> None:
        paths = [str(root / part) for part in ("worker", "clients/python", "services")]
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.cold_s: float = self.turn("mlp", 4)["first"]

    def turn(self, name: str, n: int) -> dict[str, Any]:
        """One turn in that process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([name, n]), file=self._process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        """Stops it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def interval(ratios: Sequence[float]) -> list[float]:
    """The median, and its range in 95 % of the resampled turns."""
    chance = random.Random(0)
    medians = sorted(median(chance.choices(ratios, k=len(ratios))) for _ in range(RESAMPLED))
    ends = medians[RESAMPLED // 40], medians[-RESAMPLED // 40]
    return [round(value, 2) for value in (median(ratios), *ends)]


def row_of(name: str, n: int, turns: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """The result of a model's turns; the checkout to compare with comes second."""
    ours = [turn[0] for turn in turns]
    step = median(one["step"] for one in ours)
    row: dict[str, Any] = {
        "model": name,
        "members": n,
        "engines": sorted({one["engine"] for one in ours}),
        "first_ms": round(1e3 * median(one["first"] for one in ours), 1),
        "step_ms": round(1e3 * step, 2),
        "steps": round(median(one["first"] / one["step"] for one in ours), 1),
        "parts_percent": {
            part: round(100 * median(one["parts"].get(part, 0.0) / one["first"] for one in ours))
            for part in (name for names in PARTS.values() for name in names)
        },
    }
    if len(turns[0]) > 1:
        theirs = [turn[1] for turn in turns]
        row["old_engines"] = sorted({one["engine"] for one in theirs})
        row["old_first_ms"] = round(1e3 * median(one["first"] for one in theirs), 1)
        row["old_steps"] = round(median(one["first"] / one["step"] for one in theirs), 1)
        row["old_over_new"] = interval([old["first"] / new["first"] for new, old in turns])
    print(row, flush=True)
    return row


def run_first(out: Path, models: Sequence[str], old: Path | None, turns: int) -> None:
    """Every model at both numbers of members; rows of models that are not measured now stay."""
    path = out / "fuse_first_step.json"
    kept = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = [row for row in kept if row["model"] not in models]
    checkouts = [Checkout(root) for root in (ROOT, old) if root is not None]
    for name in models:
        for n in COUNTS:
            for one in checkouts:
                one.turn(name, n)  # warm-up
            found = []
            for turn in range(turns):
                order = checkouts if turn % 2 else checkouts[::-1]
                by = {id(one): one.turn(name, n) for one in order}
                found.append([by[id(one)] for one in checkouts])
            rows.append(row_of(name, n, found))
    rows.sort(key=lambda row: (list(KINDS).index(row["model"]), row["members"]))
    record: dict[str, Any] = {"torch": torch.__version__, "threads": 1, "optimizer": "AdamW", "turns": turns}
    record["cold_s"] = [round(one.cold_s, 2) for one in checkouts]
    if all("old_over_new" in row for row in rows):
        record["old_over_new_median"] = round(median(row["old_over_new"][0] for row in rows), 2)
    path.write_text(json.dumps({**record, "rows": rows}, indent=1) + "\n")
    for one in checkouts:
        one.close()


def table(record: dict[str, Any]) -> str:
    """The record as a table for the page."""
    lines = [
        "| model | N | engine | first step, ms | before | in steps | before | times as fast |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in record["rows"]:
        ratio, low, high = row["old_over_new"]
        cells = (
            row["model"],
            row["members"],
            " or ".join(row["engines"]),
            f"{row['first_ms']:.0f}",
            f"{row['old_first_ms']:.0f}",
            f"{row['steps']:.0f}",
            f"{row['old_steps']:.0f}",
            f"{ratio:.2f} ({low:.2f} to {high:.2f})",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    serve()
