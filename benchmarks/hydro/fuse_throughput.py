"""Training steps of N members: fused by Hydro, fused by hand, under plain vmap, and one after the other.

Run it:  python benchmarks/hydro/fuse_throughput.py                 (CPU, one thread: about three minutes)
         python benchmarks/hydro/fuse_throughput.py --device cuda   (ResNet-18 at scale 8, CIFAR's shape, N to 200)
         python benchmarks/hydro/fuse_throughput.py --device cpu --small --out /tmp   (that one's code, on a CPU)
         python benchmarks/hydro/fuse_throughput.py --first [--old CHECKOUT]   (the first step: ten minutes)

It writes fuse_throughput.json (or fuse_throughput_cuda.json, fuse_first_step.json) and a plot to ../results. All
run in turn in one process. A time is the best of some rounds of a whole step, optimizer (AdamW) included. Separate
runs are measured with torch's default optimizer and with its `fused=True`; ratios are given against both. On a CPU
the clock is the thread's own, which other work on the machine does not affect.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from fuse_first_step import run_first
from fuse_kinds import KINDS
from fuse_workloads import GROUPED, MODELS, Batch, batch_of, grouped_loss, loss_of
from torch import Tensor
from torch.func import functional_call

from headrace_torch import hydro
from headrace_torch.hydro.fuse.lanes import quiet
from headrace_torch.hydro.fuse.memory import peak_bytes

HERE = Path(__file__).resolve().parent
COUNTS = (2, 4, 8, 16, 32)
ROUNDS, LEAST_S = 5, 0.02

Step = Callable[[], object]


def separate(name: str, n: int, batch: Batch, *, fused: bool) -> Step:
    """N models and N torch optimizers."""
    models = [MODELS[name]() for _ in range(n)]
    optimizers = [
        torch.optim.AdamW(one.parameters(), lr=1e-3 * (i + 1), fused=fused) for i, one in enumerate(models)
    ]

    def step() -> None:
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()

    return step


def by_hand(name: str, n: int, batch: Batch) -> Step:
    """Modules with a member dim, as in HFTA and Hydro; one learning rate for all."""
    model = GROUPED[name](n)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        grouped_loss(model(batch[0]), batch[1]).backward()
        optimizer.step()

    return step


def plain_vmap(name: str, n: int, batch: Batch) -> Step:
    """`torch.func`'s own recipe for ensembles; one learning rate for all."""
    models = [MODELS[name]() for _ in range(n)]
    params, buffers = torch.func.stack_module_state(models)  # type: ignore[arg-type]  # a list of modules
    optimizer = torch.optim.AdamW(list(params.values()), lr=1e-3)

    def one(own: dict[str, Tensor], held: dict[str, Tensor]) -> Tensor:
        return loss_of(lambda *inputs: functional_call(models[0], (own, held), inputs), batch)

    mapped = torch.vmap(one)

    def step() -> None:
        optimizer.zero_grad()
        with quiet():
            mapped(params, buffers).sum().backward()
        optimizer.step()

    return step


def fused(name: str, n: int, batch: Batch, engine: Any = "auto") -> tuple[Step, hydro.Group]:
    """Hydro: the probe chooses the engine."""
    members = [{"lr": 1e-3 * (i + 1), "seed": i} for i in range(n)]
    group = hydro.fuse(MODELS[name], members, engine=engine, workers=0)
    group.step(batch, loss_of)
    return (lambda: group.step(batch, loss_of)), group


def best_seconds(steps: Sequence[Step]) -> list[float]:
    """The best time of one step of each, measured in turns."""
    repeats = []
    for step in steps:
        step()
        start = time.thread_time()
        step()
        repeats.append(max(1, int(LEAST_S / max(time.thread_time() - start, 1e-6))))
    best = [float("inf")] * len(steps)
    for _ in range(ROUNDS):
        for i, step in enumerate(steps):
            start = time.thread_time()
            for _ in range(repeats[i]):
                step()
            best[i] = min(best[i], (time.thread_time() - start) / repeats[i])
    return best


def one_row(name: str, n: int) -> dict[str, Any]:
    """Measures all variants at one N."""
    batch = batch_of(name)
    ours, group = fused(name, n, batch)
    rules, _ = fused(name, n, batch, "grouped")
    steps = {
        "separate": separate(name, n, batch, fused=False),
        "separate_fused_adamw": separate(name, n, batch, fused=True),
        "by_hand": by_hand(name, n, batch),
        "plain_vmap": plain_vmap(name, n, batch),
        "hydro": ours,
        "hydro_grouped": rules,
    }
    seconds = dict(zip(steps, best_seconds(list(steps.values())), strict=True))
    device = torch.device("cpu")
    memory = {
        key: peak_bytes(steps[key], device)
        for key in ("separate_fused_adamw", "by_hand", "plain_vmap", "hydro_grouped")
    }
    assert group.report is not None
    row = {
        "model": name,
        "members": n,
        "engine": group.engine,
        "reason": group.report.reason,
        "bit_stable": dict(group.report.bit_stable),
        "milliseconds": {key: round(1e3 * value, 4) for key, value in seconds.items()},
        "times_separate": {key: round(seconds["separate"] / value, 3) for key, value in seconds.items()},
        "times_separate_fused_adamw": {
            key: round(seconds["separate_fused_adamw"] / value, 3) for key, value in seconds.items()
        },
        "transient_bytes": memory,
        "state_bytes": group.memory_bytes(),
    }
    print(name, n, row["engine"], row["times_separate"], flush=True)
    return row


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """One panel per model: times relative to the separate runs, against N."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row["model"] for row in rows))
    figure, axes = plt.subplots(
        1, len(names), figsize=(4 * len(names), 3.4), sharey=True, layout="constrained"
    )
    labels = {
        "hydro": "Hydro (probe)",
        "by_hand": "grouped by hand, one rate",
        "plain_vmap": "plain vmap, one rate",
        "separate_fused_adamw": "separate, AdamW fused=True",
    }
    for axis, name in zip(axes, names, strict=True):
        chosen = [row for row in rows if row["model"] == name]
        for key, label in labels.items():
            axis.plot(
                [row["members"] for row in chosen],
                [row["times_separate"][key] for row in chosen],
                marker="o",
                markersize=3,
                linewidth=2 if key == "hydro" else 1,
                label=label,
            )
        axis.axhline(1, color="0.6", linewidth=0.8)
        axis.set_xscale("log", base=2)
        axis.set_xticks([row["members"] for row in chosen], [str(row["members"]) for row in chosen])
        axis.set_title({"mlp": "MLP", "cnn": "CNN", "gpt": "GPT"}[name])
        axis.set_xlabel("members N")
    axes[0].set_ylabel("speed, times N separate runs")
    axes[0].legend(fontsize=7)
    figure.savefig(path)


def run_cpu(out: Path, models: Sequence[str]) -> None:
    """Three models at five N; rows of models that are not measured now stay."""
    torch.set_num_threads(1)
    path = out / "fuse_throughput.json"
    kept = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = [row for row in kept if row["model"] not in models]
    rows += [one_row(name, n) for name in models for n in COUNTS]
    rows.sort(key=lambda row: (list(MODELS).index(row["model"]), row["members"]))
    at16 = {row["model"]: row["times_separate"]["hydro"] for row in rows if row["members"] == 16}
    least = min(row["times_separate"]["hydro"] for row in rows)
    record = {
        "machine": platform.machine(),
        "torch": torch.__version__,
        "threads": 1,
        "optimizer": "AdamW",
        "hydro_at_16": at16,
        "hydro_least": least,
        "hydro_least_against_fused_adamw": min(row["times_separate_fused_adamw"]["hydro"] for row in rows),
        "rows": rows,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
    draw(rows, out / "fuse_throughput.svg")
    print("at 16:", at16, "least:", least)


def main() -> None:
    """Parses the command line and runs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--small", action="store_true", help="the GPU's benchmark with tiny images")
    parser.add_argument("--out", type=Path, default=HERE.parent / "results")
    parser.add_argument("--models", nargs="+", choices=tuple(KINDS), help="all that the benchmark has, else")
    parser.add_argument("--first", action="store_true", help="what the first step costs, with its probe")
    parser.add_argument(
        "--old", type=Path, help="another checkout, whose first step is measured beside this one's"
    )
    parser.add_argument("--turns", type=int, default=9, help="of each checkout, for --first")
    chosen = parser.parse_args()
    if chosen.first:
        run_first(chosen.out, chosen.models or list(KINDS), chosen.old, chosen.turns)
        return
    if chosen.device == "cuda" or chosen.small:
        from fuse_throughput_cuda import FULL, SMALL, run_cuda

        run_cuda(chosen.out, torch.device(chosen.device), SMALL if chosen.small else FULL)
    else:
        run_cpu(chosen.out, [name for name in MODELS if name in (chosen.models or MODELS)])


if __name__ == "__main__":
    main()
