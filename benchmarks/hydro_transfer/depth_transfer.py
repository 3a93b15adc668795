"""How far the best learning rate moves when a model becomes 8 times deeper, from 2 residual blocks to 16.

Run it:  python benchmarks/hydro_transfer/depth_transfer.py     (3 minutes on one core)
It writes depth_transfer.json and depth_transfer.svg to ../results. With our parametrization a block's contribution
scales with 1/depth, relative to the base of 16 blocks; the control's is the same at any depth. Rates are on a grid
of factors of two.

There are three tasks. A residual MLP and a GPT, both with norms, learn to the end: there the best rate hardly
depends on the depth with any parametrization. The third is the MLP without norms, with its blocks initially at
zero, for few steps, so that the best rate is near the greatest stable one: the case for the depth rules. That
setting was searched for (the last of some sixteen); half of its seeds were first used after it was found.
"""

import argparse
import json
import math
import time
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import torch
from training import GPT, HERE, Digits, Text, by_rules, standard, train

from headrace_torch import hydro

SEEDS, SHALLOW, DEEP, WIDTH = 3, 2, 16, 32


class ResidualMLP(torch.nn.Module):
    """Digits in, classes out, through blocks of two layers; without norms blocks start at zero."""

    class Block(torch.nn.Module):
        """Adds to the stream."""

        def __init__(self, width: int, norms: bool) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(width) if norms else torch.nn.Identity()
            self.inner, self.outer = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
            if not norms:
                torch.nn.init.zeros_(self.outer.weight)
                torch.nn.init.zeros_(self.outer.bias)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.outer(self.inner(self.norm(x)).relu())  # type: ignore[no-any-return]  # a layer's call is untyped

    def __init__(self, width: int = WIDTH, depth: int = DEEP, norms: bool = True) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, width)
        self.blocks = torch.nn.Sequential(*(self.Block(width, norms) for _ in range(depth)))
        self.norm = torch.nn.LayerNorm(width) if norms else torch.nn.Identity()
        self.readout = torch.nn.Linear(width, 10)
        torch.nn.init.zeros_(self.readout.weight)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.readout(self.norm(self.blocks(self.first(image.flatten(1)))))  # type: ignore[no-any-return]  # a call is untyped


TASKS: dict[str, dict[str, Any]] = {
    "residual MLP": {
        "factory": ResidualMLP,
        "width": WIDTH,
        "data": Digits,
        "steps": 100,
        "rows": 64,
        "grid": range(-13, -3),
        "seeds": SEEDS,
    },
    "GPT": {
        "factory": GPT,
        "width": WIDTH,
        "data": Text,
        "steps": 80,
        "rows": 8,
        "grid": range(-12, -4),
        "seeds": SEEDS,
    },
    "residual MLP, no norms": {
        "factory": partial(ResidualMLP, norms=False),
        "width": 2 * WIDTH,
        "data": Digits,
        "steps": 40,
        "rows": 64,
        "grid": range(-12, -2),
        "seeds": 2 * SEEDS,
    },
}
RECORD = HERE.parent / "results" / "depth_transfer.json"


def main() -> None:
    """All tasks, both parametrizations, both depths; or one task, added to those already in the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=TASKS, help="this one only; the others in the record stay")
    only = parser.parse_args().task
    torch.set_num_threads(1)
    kept = json.loads(RECORD.read_text(encoding="utf-8"))["tasks"] if only and RECORD.exists() else {}
    record: dict[str, Any] = {"optimizer": "adam", "torch": torch.__version__, "tasks": {}}
    for name, task in TASKS.items():
        if name != (only or name):
            record["tasks"] |= {name: kept[name]} if name in kept else {}
            continue
        began = time.process_time()
        data = task["data"]()
        shallow = hydro.shrink(
            task["factory"],
            depth=SHALLOW,
            target={"width": task["width"], "depth": DEEP},
            inputs=data.batch(0, 4)[0],
        )
        found: dict[str, Any] = {
            **{key: task[key] for key in ("width", "steps", "rows", "seeds")},
            "parametrizations": {},
        }
        for how, prepare in (("rules", by_rules), ("standard", standard)):
            losses = {
                str(depth): {
                    str(exponent): mean_loss(
                        shallow.at(depth=depth), prepare("adam", 2.0**exponent), data, task
                    )
                    for exponent in task["grid"]
                }
                for depth in (SHALLOW, DEEP)
            }
            best = {depth: best_of(row) for depth, row in losses.items()}
            moved = abs(best[str(SHALLOW)] - best[str(DEEP)])
            found["parametrizations"][how] = {
                "losses": losses,
                "best": {depth: f"2^{exponent}" for depth, exponent in best.items()},
                "moved": moved,
            }
            print(
                f"{name}, {how}: best rates {found['parametrizations'][how]['best']}, moved {moved} steps",
                flush=True,
            )
        found["cpu_seconds"] = round(time.process_time() - began)
        record["tasks"][name] = found
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    draw(record)


def mean_loss(member: hydro.Surrogate, prepare: Any, data: Any, task: dict[str, Any]) -> float | None:
    """The mean over seeds; None if one diverged."""
    ends = [
        train(prepare(member, seed), data, steps=task["steps"], rows=task["rows"], seed=seed)
        for seed in range(task["seeds"])
    ]
    mean = sum(ends) / len(ends)
    return round(mean, 5) if math.isfinite(mean) else None


def best_of(losses: dict[str, float | None]) -> int:
    """The exponent of the rate with the least loss."""
    finite = {int(exponent): loss for exponent, loss in losses.items() if loss is not None}
    return min(finite, key=lambda exponent: finite[exponent])


def draw(record: dict[str, Any]) -> None:
    """One panel per task and parametrization: loss over rate, one line per depth."""
    count = len(record["tasks"])
    figure, panels = plt.subplots(count, 2, figsize=(9, 3.5 * count), layout="constrained", squeeze=False)
    for row, (name, task) in zip(panels, record["tasks"].items(), strict=True):
        for panel, (how, result) in zip(row, task["parametrizations"].items(), strict=True):
            for depth, losses in result["losses"].items():
                points = [(2.0 ** int(key), value) for key, value in losses.items() if value is not None]
                (line,) = panel.plot(
                    *zip(*points, strict=True), marker="o", markersize=3, label=f"{depth} blocks"
                )
                best = best_of(losses)
                panel.plot(
                    2.0**best, losses[str(best)], "o", markersize=9, fillstyle="none", color=line.get_color()
                )
            words = {"rules": "our parametrization", "standard": "no multipliers"}[how]
            panel.set(xscale="log", xlabel="learning rate (Adam)", ylabel="training loss")
            moved = result["moved"]
            panel.set_title(f"{name}\n{words}: moved {moved} step{'s' * (moved != 1)}", fontsize=10)
            panel.legend()
    figure.savefig(HERE.parent / "results" / "depth_transfer.svg")
    plt.close(figure)


if __name__ == "__main__":
    main()
