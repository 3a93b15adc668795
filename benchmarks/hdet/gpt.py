"""The final loss of the GPT example over many seeds: plain OneCycle, HDET, and the best of a sweep.

Run it:  torchrun --nproc_per_node 4 benchmarks/hdet/gpt.py
It writes gpt.json and gpt.svg to ../results: every run, and means with 95 % confidence intervals.
"""

import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from plots import draw

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[1] / "examples/hdet/train.py"
SEEDS, STEPS = 10, 300


def main() -> None:
    """Plain runs are distributed over the processes; HDET runs use all of them."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, replicas = dist.get_rank(), dist.get_world_size()
    example = load()
    text = example.Text()
    plain = [(lr, seed) for seed in range(SEEDS) for lr in (*example.SWEEP, 1e-1)]
    mine = [example.train_plain(text, lr, seed, STEPS, replicas) for lr, seed in plain[rank::replicas]]
    heard: list[Any] = [None] * replicas
    dist.all_gather_object(heard, mine)
    runs = [run for part in heard for run in part]
    if rank == 0:
        print(f"{len(runs)} plain runs done", flush=True)
    runs += [example.train_hdet(text, lr, seed, STEPS) for seed in range(SEEDS) for lr in (1e-3, 1e-1)]
    if rank == 0:
        record = {
            "steps": STEPS,
            "replicas": replicas,
            "seeds": SEEDS,
            "sweep": list(example.SWEEP),
            "torch": torch.__version__,
            "summary": summary(runs, list(example.SWEEP)),
            "runs": [{k: v for k, v in asdict(run).items() if k != "reports"} for run in runs],
        }
        (HERE.parent / "results" / "gpt.json").write_text(
            json.dumps(record, indent=1) + "\n", encoding="utf-8"
        )
        draw("gpt")
        for line in record["summary"]:
            print(line)
    dist.destroy_process_group()


def summary(runs: list[Any], sweep: list[float]) -> list[dict[str, Any]]:
    """Mean losses with 95 % intervals, per method and start; the sweep's best is chosen seed by seed."""
    found = []
    for method, lr in sorted({(run.method, run.start_lr) for run in runs}):
        losses = [run.validation_loss for run in runs if (run.method, run.start_lr) == (method, lr)]
        factors = sorted(run.rate_factor for run in runs if (run.method, run.start_lr) == (method, lr))
        found.append(
            {
                "method": method,
                "start_lr": lr,
                **interval(losses),
                "median_rate_factor": factors[len(factors) // 2],
            }
        )
    best = [
        min(
            run.validation_loss
            for run in runs
            if run.seed == seed and run.method == "OneCycle" and run.start_lr in sweep
        )
        for seed in range(SEEDS)
    ]
    found.append({"method": f"best of {len(sweep)} OneCycle runs", "start_lr": None, **interval(best)})
    return found


def interval(values: list[float]) -> dict[str, float]:
    """The mean and half of its 95 % interval, by Student's t."""
    from scipy.stats import t

    sample = torch.tensor(values, dtype=torch.float64)
    half = float(t.ppf(0.975, len(values) - 1)) * float(sample.std()) / len(values) ** 0.5
    return {"mean_loss": float(sample.mean()), "plus_minus": half, "n": len(values)}


def load() -> Any:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("hdet_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hdet_example"] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
