"""The example over three seeds: what tuning on a copy 16 times narrower saves, and what it loses.

Run it:  python benchmarks/hydro_transfer/end_to_end.py     (10 minutes on one core)
It writes end_to_end.json and end_to_end.svg beside itself. Every configuration is trained on the surrogate, fused,
and, for the comparison, on the target too. The regret of the top k is the loss of the best of them less that of the
best of all.
"""

import json
import statistics
from typing import Any

import matplotlib.pyplot as plt
import torch
from training import HERE, tune

SEEDS, TRIALS = 3, 20


def main() -> None:
    """Both tasks, all seeds."""
    torch.set_num_threads(1)
    record: dict[str, Any] = {"scale": tune.SCALE, "trials": TRIALS, "torch": torch.__version__, "tasks": {}}
    for name, task in tune.TASKS.items():
        runs = [as_run(tune.tune(task, TRIALS, seed, 2, direct=True)) for seed in range(SEEDS)]
        record["tasks"][name] = {
            "width": task.width,
            "steps": task.steps,
            "rows": task.rows,
            "mean_regret": {
                k: round(statistics.mean(run["regret"][k] for run in runs), 4) for k in runs[0]["regret"]
            },
            "mean_compute_ratio": round(statistics.mean(run["compute_ratio"] for run in runs), 2),
            "mean_kendall": round(statistics.mean(run["kendall"] for run in runs), 3),
            "runs": runs,
        }
        shown = {key: value for key, value in record["tasks"][name].items() if key != "runs"}
        print(name, json.dumps(shown), flush=True)
    (HERE / "end_to_end.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    draw(record)


def as_run(found: Any) -> dict[str, Any]:
    """What the record keeps of an outcome."""
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
        "compute_ratio": found.direct_s / (found.surrogate_s + found.target_s),
        "kendall": round(found.kendall, 4),
        "first_at": found.first_at,
        "regret": {str(k): round(value, 5) for k, value in found.regret.items()},
        "best": round(found.best, 5),
        "worst": round(found.worst, 5),
        "gained_by_the_second": found.report.gained,
        "scores": [[None if one is None else round(one, 5) for one in pair] for pair in found.scores],
    }


def draw(record: dict[str, Any]) -> None:
    """A panel per task: each trial's loss on the target over its loss on the surrogate."""
    figure, panels = plt.subplots(1, len(record["tasks"]), figsize=(9, 4), layout="constrained")
    for panel, (name, task) in zip(panels, record["tasks"].items(), strict=True):
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
    figure.savefig(HERE / "end_to_end.svg")
    plt.close(figure)


if __name__ == "__main__":
    main()
