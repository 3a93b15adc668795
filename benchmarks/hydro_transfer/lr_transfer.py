"""How far the best learning rate moves when a model gets 16 times wider, in our parametrization and in the
standard one.

Run it:  python benchmarks/hydro_transfer/lr_transfer.py     (2 minutes on one core)
It writes lr_transfer.json and lr_transfer.svg to ../results. Rates are on a grid of factors of two; the loss is the
mean of the last training steps, over seeds. The base of our parametrization is the wide model.
"""

import json
import math
import time
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import torch
from training import GPT, HERE, MLP, Digits, Text, by_rules, standard, train

from headrace_torch import hydro

SEEDS = 2
TASKS: dict[str, dict[str, Any]] = {
    "MLP": {
        "factory": MLP,
        "narrow": 64,
        "wide": 1024,
        "steps": 60,
        "rows": 64,
        "data": Digits,
        "grids": {"rules": range(-12, -5), "standard": range(-12, -2)},
    },
    "GPT": {
        "factory": partial(GPT, depth=2),
        "narrow": 8,
        "wide": 128,
        "steps": 80,
        "rows": 16,
        "data": Text,
        "grids": {"rules": range(-12, -5), "standard": range(-12, -2)},
    },
}


def main() -> None:
    """All tasks, both parametrizations, both widths."""
    torch.set_num_threads(1)
    began = time.process_time()
    record: dict[str, Any] = {"optimizer": "adam", "seeds": SEEDS, "torch": torch.__version__, "tasks": {}}
    for name, task in TASKS.items():
        record["tasks"][name] = found = run_task(name, task)
        for how, result in found["parametrizations"].items():
            print(
                f"{name}, {how}: best rates {result['best']}, moved {result['moved']} steps of a factor 2",
                flush=True,
            )
    record["cpu_seconds"] = round(time.process_time() - began)
    (HERE.parent / "results" / "lr_transfer.json").write_text(
        json.dumps(record, indent=1) + "\n", encoding="utf-8"
    )
    draw(record)


def run_task(name: str, task: dict[str, Any]) -> dict[str, Any]:
    """Losses over rates at both widths, for both parametrizations."""
    data = task["data"]()
    narrow = hydro.shrink(
        task["factory"], width=task["narrow"], target={"width": task["wide"]}, inputs=data.batch(0, 4)[0]
    )
    found: dict[str, Any] = {key: task[key] for key in ("narrow", "wide", "steps", "rows")}
    found["parametrizations"] = {}
    for how, prepare in (("rules", by_rules), ("standard", standard)):
        losses: dict[str, dict[str, float | None]] = {}
        for width in (task["narrow"], task["wide"]):
            member = narrow.at(width=width)
            losses[str(width)] = {}
            for exponent in task["grids"][how]:
                ends = [
                    train(
                        prepare("adam", 2.0**exponent)(member, seed),
                        data,
                        steps=task["steps"],
                        rows=task["rows"],
                        seed=seed,
                    )
                    for seed in range(SEEDS)
                ]
                mean = sum(ends) / len(ends)
                losses[str(width)][str(exponent)] = round(mean, 5) if math.isfinite(mean) else None
                print(f"{name} {how} width {width} 2^{exponent}: {mean:.4f}", flush=True)
        best = {width: best_of(row) for width, row in losses.items()}
        low, high = (best[str(task[key])] for key in ("narrow", "wide"))
        found["parametrizations"][how] = {
            "losses": losses,
            "best": {width: f"2^{exponent}" for width, exponent in best.items()},
            "moved": abs(low - high),
        }
    return found


def best_of(losses: dict[str, float | None]) -> int:
    """The exponent of the rate with the least loss."""
    finite = {int(exponent): loss for exponent, loss in losses.items() if loss is not None}
    return min(finite, key=lambda exponent: finite[exponent])


def draw(record: dict[str, Any]) -> None:
    """One panel per task and parametrization: loss over rate, one line per width."""
    figure, panels = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
    for row, (name, task) in zip(panels, record["tasks"].items(), strict=True):
        for panel, (how, result) in zip(row, task["parametrizations"].items(), strict=True):
            for width, losses in result["losses"].items():
                points = [(2.0 ** int(key), value) for key, value in losses.items() if value is not None]
                (line,) = panel.plot(
                    *zip(*points, strict=True), marker="o", markersize=3, label=f"width {width}"
                )
                best = best_of(losses)
                panel.plot(
                    2.0**best, losses[str(best)], "o", markersize=9, fillstyle="none", color=line.get_color()
                )
            words = {"rules": "our parametrization", "standard": "standard"}[how]
            panel.set(
                xscale="log",
                xlabel="learning rate (Adam)",
                title=f"{name}, {words}: moved {result['moved']} steps",
            )
            lowest = min(v for one in result["losses"].values() for v in one.values() if v is not None)
            highest = max(v for one in result["losses"].values() for v in one.values() if v is not None)
            if highest > 4 * max(lowest, 0.5):
                panel.set_ylim(top=max(3.0, 2 * lowest))
            panel.set_ylabel("training loss")
            panel.legend()
    figure.savefig(HERE.parent / "results" / "lr_transfer.svg")
    plt.close(figure)


if __name__ == "__main__":
    main()
