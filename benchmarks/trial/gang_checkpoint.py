"""The cost of a gang's checkpoint: bytes and seconds, with a data-parallel model and Adam on each of four ranks.

    python benchmarks/trial/gang_checkpoint.py [--out benchmarks/results/gang_checkpoint.json]

Four ways, in turns, several times each:

- `rank 0 alone`: what a gang did before each rank saved its state, and what a single-process trial does;
- `found equal`: every rank computes digests, rank 0 writes the model, the others their generators;
- `said shared`: the same without digests of what `trial.shared(...)` names;
- `all different`: no two ranks have equal models, so each writes its own.

The seconds are from a barrier of all ranks to the end of the last one; the ranks share the machine's cores and its
disk, as they do in training. `digest` and `write` are measured separately on one rank: the two halves of the new
work.
"""

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from headrace.trial import rng, shared
from headrace.trial.codec import encode
from headrace.trial.digests import digest
from headrace.trial.runtime import Assignment
from headrace.trial.saving import Content, Saver
from headrace.trial.tracking import tracked

RANKS, MODEL_MB, ROUNDS = 4, 16, 9
WAYS = ("rank 0 alone", "found equal", "said shared", "all different")


def objects(rank: int, way: str) -> dict[str, Any]:
    """A model of `MODEL_MB` and an Adam with its moments, after a step."""
    width = int((MODEL_MB * (1 << 20) / 4) ** 0.5)
    torch.manual_seed(rank if way == "all different" else 0)
    model = torch.nn.Linear(width, width, bias=False)
    optimizer = torch.optim.Adam(model.parameters())
    model.weight.grad = torch.randn_like(model.weight)
    optimizer.step()
    torch.manual_seed(rank)
    both = {"model": model, "optimizer": optimizer}
    return {name: shared(one) if way == "said shared" else one for name, one in both.items()}


def rank_main(rank: int, folder: Path, barrier: Any, results: Any) -> None:
    """Saves in each way, again and again; reports how long each save took on this rank."""
    torch.set_num_threads(1)
    made = {way: {name: tracked(name, one) for name, one in objects(rank, way).items()} for way in WAYS}
    for number in range(ROUNDS):
        for way in WAYS:
            alone = way == "rank 0 alone"
            assignment = Assignment(
                trial="studies/s/trials/0",
                params={},
                max_steps=1,
                next_milestone=1,
                seed=0,
                checkpoint_dir=folder / f"{way}-{number}",
                rank=0 if alone else rank,
                ranks=1 if alone else RANKS,
            )
            content = Content(step=1, loop_step=1, tracked=made[way], state={}, params={})
            barrier.wait()
            began = time.monotonic()
            if rank == 0 or not alone:
                Saver(assignment).save(content, 1, longest_s=0.0)
            results.put((way, number, time.monotonic() - began))
            barrier.wait()


def halves(folder: Path) -> dict[str, list[float]]:
    """One rank alone: the digests of its state, and the write."""
    made = {name: tracked(name, one) for name, one in objects(0, "found equal").items()}
    found: dict[str, list[float]] = {"digest": [], "write": []}
    for number in range(ROUNDS):
        began = time.monotonic()
        for name, entry in made.items():
            digest(encode(entry.get_state(), name, for_json=False))
        digest(encode(rng.capture(), "rng", for_json=False))
        found["digest"].append(time.monotonic() - began)
        assignment = Assignment(
            trial="t",
            params={},
            max_steps=1,
            next_milestone=1,
            seed=0,
            checkpoint_dir=folder / f"half-{number}",
        )
        content = Content(step=1, loop_step=1, tracked=made, state={}, params={})
        began = time.monotonic()
        Saver(assignment).save(content, 1, longest_s=0.0)
        found["write"].append(time.monotonic() - began)
    return found


def told(seconds: list[float]) -> dict[str, float]:
    """The median, and the range of the middle half."""
    low, middle, high = statistics.quantiles(seconds, n=4)
    return {"median_s": round(middle, 3), "quarter_s": round(low, 3), "three_quarters_s": round(high, 3)}


def main() -> None:
    """Measure, print and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[1] / "results/gang_checkpoint.json"
    )
    out = parser.parse_args().out
    folder = Path(tempfile.mkdtemp(prefix="hr-gang-"))
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(RANKS), context.Queue()
    processes = [context.Process(target=rank_main, args=(n, folder, barrier, results)) for n in range(RANKS)]
    for process in processes:
        process.start()
    slowest: dict[tuple[str, int], float] = {}
    for _ in range(RANKS * ROUNDS * len(WAYS)):
        way, number, took = results.get()
        slowest[way, number] = max(slowest.get((way, number), 0.0), took)
    for process in processes:
        process.join()
    record: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f}",
        "ranks": RANKS,
        "model_mb": MODEL_MB,
        "rounds": ROUNDS,
        "ways": {},
        "halves_on_one_rank": {name: told(seconds) for name, seconds in halves(folder).items()},
    }
    for way in WAYS:
        files = list((folder / f"{way}-0").rglob("rank-*.pt"))
        record["ways"][way] = {
            "bytes": sum(path.stat().st_size for path in files),
            **told([took for (name, number), took in slowest.items() if name == way]),
        }
    shutil.rmtree(folder)
    out.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
