"""How far a wrong initial learning rate moves in 60 syncs: the noisy quadratic of the tests, 10 seeds, 4 ranks.

Run it:  python benchmarks/hdet/quadratic.py
It writes quadratic.json and quadratic.svg to ../results: every factor, medians, and their 95 % bootstrap
intervals.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from plots import draw

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "tests/hdet"), str(HERE.parents[1] / "tests")]

from rank_pool import RankPool  # noqa: E402  found by the line above

SEEDS, INTERVAL = 10, 3
VARIANTS = {
    "the paper's update, σ=0.002": {"variant": "paper", "sigma": 0.002},
    "the paper's update, σ=0.1": {"variant": "paper", "sigma": 0.1},
    "ours, training loss": {"variant": "loss"},
    "ours, probe": {"variant": "probe"},
}
STARTS = {"1000 times too low": 1e-3, "33 times too low": 0.03, "at the edge of stability": 1.9}


def main() -> None:
    """All variants from all starts."""
    pool = RankPool()
    found: list[dict[str, Any]] = []
    try:
        for start, lr in STARTS.items():
            for name, arguments in VARIANTS.items():
                factors = pool.run(
                    "ranks_quadratic:study", timeout_s=600, seeds=SEEDS, lr=lr, interval=INTERVAL, **arguments
                )[0]
                found.append(
                    {"start": start, "lr": lr, "variant": name, **median(factors), "factors": factors}
                )
                print({key: value for key, value in found[-1].items() if key != "factors"}, flush=True)
                write(found)
    finally:
        pool.close()
    draw("quadratic")


def write(found: list[dict[str, Any]]) -> None:
    """Writes what has been found so far."""
    record = {
        "seeds": SEEDS,
        "syncs": 60,
        "interval": INTERVAL,
        "replicas": 4,
        "alpha": 1 / 9,
        "results": found,
    }
    (HERE.parent / "results" / "quadratic.json").write_text(
        json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def median(values: list[float]) -> dict[str, float]:
    """The median, and the 2.5 % and 97.5 % points of 4000 resampled medians."""
    sample = torch.tensor(values, dtype=torch.float64)
    picks = torch.randint(len(values), (4000, len(values)), generator=torch.Generator().manual_seed(0))
    medians = sample[picks].quantile(0.5, dim=1)
    return {
        "median": float(sample.quantile(0.5)),
        "low": float(medians.quantile(0.025)),
        "high": float(medians.quantile(0.975)),
        "least": float(sample.min()),
        "greatest": float(sample.max()),
    }


if __name__ == "__main__":
    main()
