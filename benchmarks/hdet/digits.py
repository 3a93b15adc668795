"""Weight decay and dropout explored on the handwritten digits, compared with a direct sweep of each; ten seeds.

Run it:  torchrun --nproc_per_node 4 benchmarks/hdet/digits.py
It writes digits.json and digits.svg to ../results.

The task is designed so that regularisation matters: 200 training images with four labels in ten replaced by random
ones, so that a network without it learns wrong labels by heart. The rest is split once more: HDET's probe sees 700
images, and all results are losses on the others. The sweep trains every fixed value on four replicas too, with
gradients shared or replicas averaged as in the exploration beside it (see `digits_task.Sweep`).

Each exploration starts far below and far above the sweep's optimum. It is repeated with shorter intervals between
the same number of syncs, to show the effect of the interval. Dropout is repeated with hidden units that can die
(ReLU instead of leaky ReLU), to show why too strong a start may never be undone.
"""

import json
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from digits_task import LR, Data, Sweep, Units, build, loss_on, units_alive
from plots import HERE, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from headrace_torch.hdet import (
    HDETController,
    LogSpaceRule,
    Probe,
    ScalarHyperparameter,
    dropout,
    weight_decay,
)

SYNCS, INTERVAL = 50, 150
SEEDS = range(20, 30)  # not those on which the task and its settings were chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One hyperparameter, explored from `starts` and swept over `values`; the other one is fixed."""

    name: str
    explored: Literal["weight_decay", "dropout"]
    other: float
    values: tuple[float, ...]
    starts: tuple[float, ...]
    rule: LogSpaceRule
    shared: bool
    seeds: range
    intervals: tuple[int, ...]
    units: Units = "leaky"

    def settings(self, value: float) -> tuple[float, float]:
        """Weight decay and dropout."""
        return (value, self.other) if self.explored == "weight_decay" else (self.other, value)

    def sweep(self, replicas: int) -> list[list[float]]:
        """Test losses by value, then seed."""
        decays, dropouts = zip(*map(self.settings, self.values), strict=True)
        return Sweep(
            weight_decays=decays,
            dropouts=dropouts,
            seeds=self.seeds,
            replicas=replicas,
            steps=SYNCS * INTERVAL,
            interval=INTERVAL,
            units=self.units,
            shared=self.shared,
        ).test_losses()


DROPOUTS = (0.0, 0.05, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
DECAYS = (0.03, 0.1, 0.3, 0.5, 0.7, 1.0, 3.0, 10.0)
FACTORS = LogSpaceRule(gain=0.2, cap=0.2)
SHARES = LogSpaceRule(gain=0.06, cap=0.03)
STUDIES = (
    Study(
        name="weight decay, replicas with gradients of their own",
        explored="weight_decay",
        other=0.0,
        values=DECAYS,
        starts=(0.03, 10.0),
        rule=FACTORS,
        shared=False,
        seeds=SEEDS,
        intervals=(15, 50, INTERVAL),
    ),
    Study(
        name="dropout, replicas with gradients of their own",
        explored="dropout",
        other=0.1,
        values=DROPOUTS,
        starts=(0.05, 0.8),
        rule=SHARES,
        shared=False,
        seeds=SEEDS,
        intervals=(15, 50, INTERVAL),
    ),
    Study(
        name="weight decay under DDP",
        explored="weight_decay",
        other=0.0,
        values=DECAYS,
        starts=(0.03, 10.0),
        rule=FACTORS,
        shared=True,
        seeds=SEEDS[:3],
        intervals=(INTERVAL,),
    ),
    Study(
        name="dropout on units that can die",
        explored="dropout",
        other=0.1,
        values=DROPOUTS,
        starts=(0.05, 0.8),
        rule=SHARES,
        shared=False,
        seeds=SEEDS,
        intervals=(INTERVAL,),
        units="mortal",
    ),
)


def train(
    study: Study, value: float, seed: int, *, explore: bool, interval: int = INTERVAL
) -> dict[str, Any]:
    """Trains on all ranks, exploring from a value or at that value throughout.

    The result of an exploration is the mean of the last quarter of its syncs, in the space that is explored.
    """
    data, rank = Data(seed), dist.get_rank()
    decay, p = study.settings(value)
    bare = build(seed, p, study.units)
    model = DistributedDataParallel(bare) if study.shared else bare
    optimizer = AdamW(model.parameters(), lr=LR, weight_decay=decay, fused=True)
    torch.manual_seed(1000 * seed + rank)
    controller = HDETController(
        model,
        optimizer,
        [explored(study, bare, optimizer)] if explore else [],
        sync_every=interval,
        mode="shared_grad" if study.shared else "local_grad",
        optimizer_state="keep" if study.shared else "average",
        score=Probe(model, lambda _sync: data.probe, loss_on),
        rule=study.rule,
        seed=seed,
    )
    trajectory = []
    for step in range(SYNCS * interval):
        optimizer.zero_grad()
        loss = loss_on(model, data.batch(seed, step, rank))
        loss.backward()
        optimizer.step()
        controller.observe(loss)
        if controller.after_step() is not None and explore:
            trajectory.append(controller.value(study.explored))
    bare.eval()
    with torch.no_grad():
        test = float(loss_on(bare, data.test))
    tail = trajectory[-(len(trajectory) // 4) :]
    return {
        "study": study.name,
        "seed": seed,
        "start": value,
        "interval": interval,
        "test_loss": round(test, 5),
        "units_alive": units_alive(bare, data.train[0]),
        "landed": float(f"{middle(study, tail):.4g}") if tail else value,
        "trajectory": [float(f"{one:.3g}") for one in trajectory],
    }


def explored(study: Study, model: nn.Module, optimizer: AdamW) -> ScalarHyperparameter:
    if study.explored == "weight_decay":
        return weight_decay(optimizer, spread=0.7, low=1e-4, high=100.0)
    return dropout(model, spread=0.4, high=0.9, transform="identity")


def middle(study: Study, values: list[float]) -> float:
    if study.explored == "weight_decay":
        return math.exp(sum(map(math.log, values)) / len(values))
    return sum(values) / len(values)


def main() -> None:
    """The sweeps, one per process, then HDET on all of them."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, replicas = dist.get_rank(), dist.get_world_size()
    mine = {
        study.name: study.sweep(replicas) for number, study in enumerate(STUDIES) if number % replicas == rank
    }
    heard: list[Any] = [None] * replicas
    dist.all_gather_object(heard, mine)
    sweeps = {name: losses for part in heard for name, losses in part.items()}
    say("swept")
    runs = []
    for study in STUDIES:
        for start in study.starts:
            for interval in study.intervals:
                runs += [train(study, start, seed, explore=True, interval=interval) for seed in study.seeds]
        say(f"{study.name}: explored")
    checked = train(STUDIES[0], DECAYS[3], SEEDS[0], explore=False)
    if rank == 0:
        record = {
            "syncs": SYNCS,
            "replicas": replicas,
            "torch": torch.__version__,
            "batched_against_four_processes": [sweeps[STUDIES[0].name][3][0], checked["test_loss"]],
            "studies": [
                summary(study, sweeps[study.name], [run for run in runs if run["study"] == study.name])
                for study in STUDIES
            ],
        }
        (HERE.parent / "results" / "digits.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
        draw("digits")
        for one in record["studies"]:
            for row in (*one["sweep"], *one["hdet"]):
                print({key: found for key, found in row.items() if key != "trajectories"}, flush=True)
    dist.destroy_process_group()


def summary(study: Study, losses: list[list[float]], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean losses with 95 % intervals; for HDET also where it ended, and how much of the sweep's gain it achieved.

    The gain is from the loss at the start's value to the least mean loss of the sweep; shares are taken seed by
    seed. With a shorter interval the run is shorter too, so its losses are not compared with the sweep's, nor
    kept.
    """
    best = min(range(len(losses)), key=lambda number: sum(losses[number]))
    rows: list[dict[str, Any]] = []
    for start in study.starts:
        for interval in study.intervals:
            chosen = [run for run in runs if (run["start"], run["interval"]) == (start, interval)]
            row = {
                "start": start,
                "interval": interval,
                "landed": [run["landed"] for run in chosen],
                "units_alive": [run["units_alive"] for run in chosen],
                "trajectories": [run["trajectory"] for run in chosen],
            }
            rows.append(row)
            if interval != INTERVAL:
                continue
            was = losses[study.values.index(start)]
            found = [run["test_loss"] for run in chosen]
            shares = [(a - b) / (a - c) for a, b, c in zip(was, found, losses[best], strict=True)]
            row |= {"test_loss": interval_of(found), "share_of_gain": interval_of(shares)}
    return {
        "name": study.name,
        "explored": study.explored,
        "units": study.units,
        "seeds": len(study.seeds),
        "best": study.values[best],
        "sweep": [
            {"value": value, "test_loss": interval_of(some)}
            for value, some in zip(study.values, losses, strict=True)
        ],
        "hdet": rows,
    }


def interval_of(values: list[float]) -> list[float]:
    """The mean and half of its 95 % interval, by Student's t."""
    from scipy.stats import t

    sample = torch.tensor(values, dtype=torch.float64)
    half = float(t.ppf(0.975, len(values) - 1)) * float(sample.std()) / len(values) ** 0.5
    return [round(float(sample.mean()), 4), round(half, 4)]


def say(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()
