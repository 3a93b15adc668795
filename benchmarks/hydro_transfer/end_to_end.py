"""The example over three seeds: what tuning on a copy 16 times narrower saves, and what it loses.

Run it:  python benchmarks/hydro_transfer/end_to_end.py     (5 minutes on one core)
It writes end_to_end.json and end_to_end.svg to ../results. Every configuration is trained on the surrogate, fused,
and, for the comparison, on the target too. The regret of the top k is the loss of the best of them minus that of
the best of all.
"""

import argparse
import json
import statistics
from typing import Any

import matplotlib.pyplot as plt
import torch
from training import HERE, tune

SEEDS, TRIALS = 3, 16
RECORD = HERE.parent / "results" / "end_to_end.json"


def main() -> None:
    """Both tasks, all seeds; or some of them, added to those already in the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=tune.TASKS, help="this one only; other runs in the record stay")
    parser.add_argument("--seed", type=int, help="this one only; other runs in the record stay")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.task is None and options.seed is None:
        RECORD.unlink(missing_ok=True)
    for name in [options.task] if options.task else tune.TASKS:
        for seed in range(SEEDS) if options.seed is None else [options.seed]:
            add(name, as_run(tune.tune(tune.TASKS[name], TRIALS, seed, 2, direct=True)))


def add(name: str, run: dict[str, Any]) -> None:
    """Adds a run to the record, replacing an earlier one with the same seed."""
    old = json.loads(RECORD.read_text(encoding="utf-8"))["tasks"] if RECORD.exists() else {}
    runs = {key: {one["seed"]: one for one in old.get(key, {}).get("runs", ())} for key in tune.TASKS}
    runs[name][run["seed"]] = run
    write(runs)


def write(runs: dict[str, dict[int, dict[str, Any]]]) -> None:
    """Writes the record with its means, and the plot, for what has run."""
    record: dict[str, Any] = {"scale": tune.SCALE, "trials": TRIALS, "torch": torch.__version__, "tasks": {}}
    for name, by_seed in runs.items():
        if not by_seed:
            continue
        task, found = tune.TASKS[name], [by_seed[seed] for seed in sorted(by_seed)]
        record["tasks"][name] = {
            "width": task.width,
            "steps": task.steps,
            "rows": task.rows,
            "mean_regret": {k: mean([run["regret"][k] for run in found], 4) for k in found[0]["regret"]},
            "mean_compute_ratio": mean([run["compute_ratio"] for run in found], 2),
            "mean_kendall": mean([run["kendall"] for run in found], 3),
            "runs": found,
        }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    draw(record)


def mean(values: list[float], digits: int) -> float:
    """The mean, rounded."""
    return round(statistics.mean(values), digits)


def as_run(found: Any) -> dict[str, Any]:
    """The part of an outcome that the record keeps."""
    print(
        f"{found.task}, seed {found.seed}: τ {found.kendall:.3f}, first at {found.first_at}, regret {found.regret}, "
        f"{found.surrogate_s:.1f} + {found.target_s:.1f} s against {found.direct_s:.1f} s",
        flush=True,
    )
    return {
        "seed": found.seed,
        "engine": found.engine,
        "surrogate_s": round(found.surrogate_s, 2),
        "target_s": round(found.target_s, 2),
        "direct_s": round(found.direct_s, 2),
        "compute_ratio": round(found.direct_s / (found.surrogate_s + found.target_s), 3),
        "kendall": round(found.kendall, 4),
        "first_at": found.first_at,
        "regret": {str(k): round(value, 5) for k, value in found.regret.items()},
        "best": round(found.best, 5),
        "worst": round(found.worst, 5),
        "gained_by_the_second": found.report.gained,
        "scores": [[None if one is None else round(one, 5) for one in pair] for pair in found.scores],
    }


def draw(record: dict[str, Any]) -> None:
    """One panel per task: each trial's loss on the target over its loss on the surrogate."""
    figure, panels = plt.subplots(
        1, len(record["tasks"]), figsize=(9, 4), layout="constrained", squeeze=False
    )
    for panel, (name, task) in zip(panels[0], record["tasks"].items(), strict=True):
        for run in task["runs"]:
            points = [pair for pair in run["scores"] if None not in pair]
            panel.plot(
                *zip(*points, strict=True),
                "o",
                markersize=4,
                alpha=0.7,
                label=f"seed {run['seed']}: τ {run['kendall']:.2f}",
            )
        panel.set(xlabel="validation loss of the surrogate", ylabel="validation loss of the target")
        panel.set_title(f"{name}: {task['mean_compute_ratio']:.1f} times less compute")
        panel.legend()
    figure.savefig(HERE.parent / "results" / "end_to_end.svg")
    plt.close(figure)


if __name__ == "__main__":
    main()
