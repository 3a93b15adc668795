"""How far the forecasts of learning-curve stopping can be trusted, on recorded runs.

    python benchmarks/policies/calibrate_forecast.py algoperf_*.csv.gz --out benchmarks/policies/results

From a file of recorded curves (docs/reference/curve-file.md), the runs of at least the budget's length are cut to it.
Each is forecast at 10, 20, 30, 50 and 70% of the budget, with a few other runs drawn as the completed trials that it
has to beat. The forecast says with which probability it ends better than the best of them; the record says whether it
did.

A forecast is calibrated where, of all cases that it gives a probability, as many come true. The rule stops what has
less than 5%, so what counts most is how many of those come true all the same. Three forecasts stand side by side:
from the curve itself, from its peers, and the mixture that the policy uses.
"""

import argparse
import csv
import gzip
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

from headrace_services.scheduler.core.policies.forecast import mixed, of_curve, of_peers

mpl.use("Agg")
import itertools

import matplotlib.pyplot as plt

PEERS = (3, 8, 20, 50)
SHARES = (0.1, 0.2, 0.3, 0.5, 0.7)
EDGES = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 1.0)
REPEATS = 3
SEED = 1
KINDS = ("curve", "peers", "mixed")
BUDGETS = {"algoperf_ogbg": 70, "algoperf_imagenet_vit": 130}
"""Reports to the full budget; of other files, the median length."""

Curves = list[NDArray[np.float64]]


def load(path: Path) -> Curves:
    """The values of each run, smaller is better."""
    runs: dict[str, list[float]] = {}
    sign = 1.0
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            sign = -1.0 if row["goal"] == "maximize" else 1.0
            runs.setdefault(row["curve"], []).append(float(row["value"]))
    return [sign * np.array(values) for values in runs.values()]


def cases(curves: Curves, budget: int, count: int) -> dict[str, NDArray[np.float64]]:
    """Each kind's probabilities, and under `won` whether the run ended better than the best of its `count` peers."""
    generator = np.random.default_rng(SEED)
    found: dict[str, list[float]] = {kind: [] for kind in (*KINDS, "won")}
    for _ in range(REPEATS):
        for place, curve in enumerate(curves):
            others = [other for other in generator.permutation(len(curves)) if other != place][:count]
            final = [float(curves[other][-1]) for other in others]
            for share in SHARES:
                points = max(4, int(share * budget))
                steps, values = list(range(1, points + 1)), curve[:points].tolist()
                own = of_curve(steps, values, budget)
                peers = of_peers([float(curves[other][points - 1]) for other in others], final, values[-1])
                assert peers is not None
                best = min(final)
                found["curve"].append(own.probability_below(best))
                found["peers"].append(peers.probability_below(best))
                found["mixed"].append(mixed(own, peers, count).probability_below(best))
                found["won"].append(float(curve[-1] < best))
    return {name: np.array(values) for name, values in found.items()}


def summary(probability: NDArray[np.float64], won: NDArray[np.float64]) -> dict[str, Any]:
    """How often the rule would stop, how many winners it would lose, and the reliability by bins."""
    stops = probability < EDGES[1]
    bins = []
    for low, high in itertools.pairwise(EDGES):
        inside = (probability >= low) & ((probability < high) | (high == EDGES[-1]))
        if inside.any():
            bins.append(
                {
                    "said": round(float(probability[inside].mean()), 4),
                    "true": round(float(won[inside].mean()), 4),
                    "cases": int(inside.sum()),
                }
            )
    return {
        "stopped": round(float(stops.mean()), 4),
        "true_of_stopped": round(float(won[stops].mean()) if stops.any() else 0.0, 4),
        "winners_lost": f"{int(won[stops].sum())} of {int(won.sum())}",
        "brier": round(float(np.mean((probability - won) ** 2)), 4),
        "bins": bins,
    }


def draw(record: dict[str, Any], path: Path) -> None:
    """Reliability of the mixture, a panel a workload."""
    figure, panels = plt.subplots(1, len(record["workloads"]), figsize=(5 * len(record["workloads"]), 4.6))
    for panel, (name, by_peers) in zip(np.atleast_1d(panels), record["workloads"].items(), strict=True):
        panel.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        panel.axvspan(0, EDGES[1], color="0.93")
        for count, kinds in by_peers["peers"].items():
            bins = kinds["mixed"]["bins"]
            panel.plot(
                [b["said"] for b in bins], [b["true"] for b in bins], marker="o", label=f"{count} peers"
            )
        panel.set(
            title=name, xlabel="probability said", ylabel="share that came true", xlim=(0, 1), ylim=(0, 1)
        )
        panel.legend(frameon=False, loc="upper left")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """Calibrate, print, and write the record and the plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/policies/results"))
    options = parser.parse_args()
    record: dict[str, Any] = {"shares": SHARES, "repeats": REPEATS, "seed": SEED, "workloads": {}}
    for path in options.files:
        name = path.name.partition(".")[0]
        curves = load(path)
        budget = BUDGETS.get(name) or int(np.median([len(curve) for curve in curves]))
        long = [curve[:budget] for curve in curves if len(curve) >= budget]
        by_peers = {}
        for count in PEERS:
            found = cases(long, budget, count)
            by_peers[count] = {kind: summary(found[kind], found["won"]) for kind in KINDS}
            for kind in KINDS:
                made = by_peers[count][kind]
                print(
                    f"{name}: {count} peers, {kind}: stops {made['stopped']:.0%} of looks,"
                    f" of which {made['true_of_stopped']:.1%} would have won ({made['winners_lost']});"
                    f" Brier {made['brier']:.3f}"
                )
        record["workloads"][name] = {"runs": len(long), "budget": budget, "peers": by_peers}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "forecast.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    draw(record, options.out / "forecast.svg")


if __name__ == "__main__":
    main()
