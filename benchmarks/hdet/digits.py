"""Weight decay and dropout explored on the handwritten digits, beside a direct sweep of each; ten seeds.

Run it:  torchrun --nproc_per_node 4 benchmarks/hdet/digits.py
It writes digits.json beside itself. The sweep trains one model per value to the end; HDET trains once. Both
are judged by the loss on the same held-out half, which is also HDET's probe; so the sweep's optimum is what
HDET looks for.
"""

import json
import math
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from headrace_torch.hdet import HDETController, LogSpaceRule, Probe, dropout, weight_decay

HERE = Path(__file__).resolve().parent
Kind = Literal["weight_decay", "dropout"]
SEEDS, STEPS, INTERVAL, BATCH, TRAINED_ON = 10, 1200, 15, 32, 200
SWEEPS: dict[Kind, tuple[float, ...]] = {
    "weight_decay": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "dropout": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
}
STARTS: dict[Kind, tuple[float, ...]] = {"weight_decay": (0.02, 5.0), "dropout": (0.05, 0.75)}
FIXED: dict[Kind, float] = {"weight_decay": 0.1, "dropout": 0.3}


class Data:
    """Few images to learn from, so that regularisation matters; many to judge by."""

    def __init__(self, seed: int) -> None:
        digits = load_digits()
        images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        self.train = images[order[:TRAINED_ON]], labels[order[:TRAINED_ON]]
        self.held_out = images[order[TRAINED_ON:]], labels[order[TRAINED_ON:]]

    def batch(self, seed: int, step: int, rank: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1_000_003 * seed + 31 * step + 7919 * rank)
        picked = torch.randint(TRAINED_ON, (BATCH,), generator=generator)
        return self.train[0][picked], self.train[1][picked]


def build(seed: int, p: float) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Dropout(p), nn.Linear(96, 10))


def loss_on(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def train(kind: Kind, value: float, seed: int, *, explore: bool) -> dict[str, Any]:
    """Trains with a fixed value in this process, or explores from it over all."""
    data, rank = Data(seed), dist.get_rank() if explore else 0
    settings = {**FIXED, kind: value}
    model = build(seed, settings["dropout"])
    optimizer = AdamW(model.parameters(), lr=3e-3, weight_decay=settings["weight_decay"])
    torch.manual_seed(1000 * seed + rank)
    controller = None
    if explore:
        found = (
            weight_decay(optimizer, spread=0.8, low=1e-3, high=100.0)
            if kind == "weight_decay"
            else dropout(model, spread=0.8, high=0.95)
        )
        controller = HDETController(
            model,
            optimizer,
            [found],
            sync_every=INTERVAL,
            mode="local_grad",
            optimizer_state="average",
            score=Probe(model, lambda _sync: data.held_out, loss_on),
            rule=LogSpaceRule(gain=0.2, cap=0.2),
            seed=seed,
        )
    trajectory = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_on(model, data.batch(seed, step, rank))
        loss.backward()
        optimizer.step()
        if controller is not None:
            controller.observe(loss)
            if controller.after_step() is not None:
                trajectory.append(controller.value(kind))
    model.eval()
    with torch.no_grad():
        held_out = float(loss_on(model, data.held_out))
    tail = trajectory[-len(trajectory) // 4 :]
    return {
        "kind": kind,
        "seed": seed,
        "start": value,
        "held_out_loss": held_out,
        "landed": middle(kind, tail) if tail else value,
        "trajectory": trajectory,
    }


def middle(kind: Kind, values: list[float]) -> float:
    """The mean over the last quarter of the syncs, in the hyperparameter's own scale."""
    if kind == "weight_decay":
        return math.exp(sum(map(math.log, values)) / len(values))
    return sum(values) / len(values)


def main() -> None:
    """The sweeps, shared out over the processes, then HDET."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, replicas = dist.get_rank(), dist.get_world_size()
    cases = [(kind, value, seed) for seed in range(SEEDS) for kind in SWEEPS for value in SWEEPS[kind]]
    mine = [train(kind, value, seed, explore=False) for kind, value, seed in cases[rank::replicas]]
    heard: list[Any] = [None] * replicas
    dist.all_gather_object(heard, mine)
    sweep = [run for part in heard for run in part]
    say("sweeps done")
    hdet = []
    for seed in range(SEEDS):
        hdet += [train(kind, start, seed, explore=True) for kind in STARTS for start in STARTS[kind]]
        say(f"seed {seed} explored")
    if rank == 0:
        record = {
            "seeds": SEEDS,
            "steps": STEPS,
            "interval": INTERVAL,
            "summary": [],
            "sweep": sweep,
            "hdet": hdet,
        }
        for kind in SWEEPS:
            record["summary"] += summary(kind, sweep, hdet)
        (HERE / "digits.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
        for line in record["summary"]:
            print(line, flush=True)
    dist.destroy_process_group()


def summary(kind: Kind, sweep: list[dict[str, Any]], hdet: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean losses per value with 95 % intervals, and where HDET landed from each start."""
    lines = []
    for value in SWEEPS[kind]:
        losses = [run["held_out_loss"] for run in sweep if (run["kind"], run["start"]) == (kind, value)]
        lines.append({"kind": kind, "method": "fixed", "value": value, **interval(losses)})
    for start in STARTS[kind]:
        runs = [run for run in hdet if (run["kind"], run["start"]) == (kind, start)]
        landed = sorted(run["landed"] for run in runs)
        losses = [run["held_out_loss"] for run in runs]
        lines.append({"kind": kind, "method": "HDET", "start": start, "landed": landed, **interval(losses)})
    return lines


def interval(values: list[float]) -> dict[str, float]:
    """The mean and half of its 95 % interval, by Student's t."""
    from scipy.stats import t

    sample = torch.tensor(values, dtype=torch.float64)
    half = float(t.ppf(0.975, len(values) - 1)) * float(sample.std()) / len(values) ** 0.5
    return {"mean_loss": float(sample.mean()), "plus_minus": half}


def say(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()
