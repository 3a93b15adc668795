"""The coordinate check over a factor of 16 in width, three seeds: our parametrization, and two that must fail.

Run it:  python benchmarks/hydro_transfer/coordinate_check.py     (5 minutes on one core; the ResNet 20 more)
It writes coordinate_check.json and coordinate_check.svg to ../results. The controls are the standard
parametrization, and the rule for SGD of the published Hydro code. The base is the widest model.
"""

import argparse
import json
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import torch
from training import GPT, HERE, MLP, Digits, ResNet, Text, hydro_sgd, standard

from headrace_torch import hydro
from headrace_torch.hydro.coordinate_check import CoordinateReport

SEEDS = 3
# Where rates and steps are None the check finds them, as in the gate; the controls use those found for the rules.
# Steps are given where wide models would otherwise take long. The ResNet's second stage has twice its width.
# A GPT grows in two ways. More and more heads of a fixed width is how model families grow (GPT-3, Llama); a fixed
# number of ever wider heads is how mup's example grows. The narrowest model has two heads of 32 either way.
AS_THE_GATE: dict[str, Any] = {
    "data": Text,
    "rows": 16,
    "steps": None,
    "widths": (64, 128, 256, 512, 1024),
    "sgd": None,
    "adam": None,
}
MODELS: dict[str, dict[str, Any]] = {
    "MLP": {
        "factory": MLP,
        "data": Digits,
        "steps": 8,
        "rows": 64,
        "widths": (64, 128, 256, 512, 1024),
        "sgd": 0.1,
        "adam": 2e-4,
    },
    "GPT, more heads": {"factory": partial(GPT, depth=1, head_width=32), **AS_THE_GATE},
    "GPT, wider heads": {"factory": partial(GPT, depth=1, heads=2), **AS_THE_GATE},
    "ResNet": {
        "factory": ResNet,
        "data": Digits,
        "steps": 8,
        "rows": 16,
        "widths": (64, 128, 256, 512, 1024),
        "sgd": 0.02,
        "adam": 1e-4,
    },
}


CONTROLS: dict[str, Any] = {
    "standard": standard,
    "hydro's rule for SGD": lambda _optimizer, lr: hydro_sgd(lr),
}


def main() -> None:
    """Every model with every optimizer, and the controls."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, help="this one only; the others' runs in the record stay")
    parser.add_argument("--optimizer", choices=("sgd", "adam"), help="this one only; the others' runs stay")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    path = HERE.parent / "results" / "coordinate_check.json"
    todo = [
        (model, optimizer)
        for model in MODELS
        for optimizer in ("sgd", "adam")
        if model == (chosen.model or model) and optimizer == (chosen.optimizer or optimizer)
    ]
    known = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    runs = [one for one in known if (one["model"], one["optimizer"]) not in todo]
    for model, task in MODELS.items():
        inputs, _ = task["data"]().batch(0, task["rows"])
        every = task["widths"]
        surrogate = hydro.shrink(task["factory"], width=every[0], target={"width": every[-1]}, inputs=inputs)
        for optimizer in ("sgd", "adam"):
            if (model, optimizer) not in todo:
                continue
            lr, steps = task[optimizer], task["steps"]
            for way in ("rules", "standard", "hydro's rule for SGD")[: 3 if optimizer == "sgd" else 2]:
                # The controls fail by much more than a fifth point could change, and a wide model is expensive.
                widths = every if way == "rules" else every[:4]
                report = hydro.coordinate_check(
                    surrogate,
                    widths=widths,
                    seeds=SEEDS,
                    steps=steps,
                    optimizer=optimizer,
                    lr=lr,
                    inputs=(inputs,),
                    prepare=None if way == "rules" else CONTROLS[way](optimizer, lr),
                )
                lr, steps = report.lr, report.steps
                runs.append({"model": model, "way": way, **summary(report)})
                worst = report.worst
                print(
                    f"{model}, {optimizer}, {way}: {worst.name} {worst.slope:+.3f}, passed: {report.passed}",
                    flush=True,
                )
    runs.sort(key=lambda run: (list(MODELS).index(run["model"]), run["optimizer"] != "sgd"))
    record = {
        "seeds": SEEDS,
        "torch": torch.__version__,
        "runs": runs,
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    draw(runs)


def summary(report: CoordinateReport) -> dict[str, Any]:
    """What the record keeps: slopes, and means over seeds for the plot."""
    return {
        "optimizer": report.optimizer,
        "lr": report.lr,
        "steps": report.steps,
        "widths": [label.split()[0] for label in report.labels],
        "passed": report.passed,
        "worst": {"name": report.worst.name, "slope": round(report.worst.slope or 0.0, 3)},
        "slopes": {one.name: None if one.slope is None else round(one.slope, 3) for one in report.trends},
        "changes": {
            one.name: [float(f"{sum(row) / len(row):.3g}") for row in one.changes] for one in report.trends
        },
    }


def draw(runs: list[dict[str, Any]]) -> None:
    """A row per model and optimizer, a column per way: change over width, a line per activation."""
    ways = ("rules", "standard", "hydro's rule for SGD")
    rows = list(dict.fromkeys((run["model"], run["optimizer"]) for run in runs))
    figure, panels = plt.subplots(
        len(rows), len(ways), figsize=(11, 2.6 * len(rows)), layout="constrained", squeeze=False
    )
    for line, (model, optimizer) in zip(panels, rows, strict=True):
        for panel, way in zip(line, ways, strict=True):
            found = [
                run for run in runs if (run["model"], run["optimizer"], run["way"]) == (model, optimizer, way)
            ]
            if not found:
                panel.set_visible(False)
                continue
            for name, changes in found[0]["changes"].items():
                if found[0]["slopes"][name] is not None:
                    steep = abs(found[0]["slopes"][name]) > 0.1
                    panel.plot(
                        [int(one) for one in found[0]["widths"]],
                        changes,
                        color="#c44" if steep else "#2a7",
                        lw=1,
                    )
            panel.set(
                xscale="log",
                yscale="log",
                title=f"{model}, {optimizer}\n{way}, worst {found[0]['worst']['slope']:+.2f}",
            )
            panel.set_xticks([int(one) for one in found[0]["widths"]], found[0]["widths"])
            panel.minorticks_off()
    figure.supxlabel("width")
    figure.supylabel("change of an activation after training")
    figure.savefig(HERE.parent / "results" / "coordinate_check.svg")
    plt.close(figure)


if __name__ == "__main__":
    main()
