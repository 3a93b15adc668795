"""The drop-in and the controller compared with the schedule that they replace: the example's GPT, three starts,
five seeds.

Run it:  torchrun --nproc_per_node 4 benchmarks/hdet/drop_in.py
It writes drop_in.json to ../results, and prints the table of the documents: mean validation losses, and the mean
difference to OneCycle on the same seed with its 95 % interval.

All runs take 300 steps under AdamW or SGD with momentum, α = 1/9, T = 5. The best peak rates, 0.01 and 0.3, were found
by a sweep on seed 0. The paper's form starts to move at the peak of the schedule, step 90, since η̄ starts from the
rate that the schedule has then; the others at step 15.
"""

import json
from typing import Any

import torch
import torch.distributed as dist
from gpt import HERE, interval, load
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer

from headrace_torch.hdet import HDETController, HDETScheduler, OneCycleAutoLR, Probe, learning_rates

SEEDS, STEPS, INTERVAL, ALPHA = 5, 300, 5, 1 / 9
BEST = {"AdamW": 0.01, "SGD": 0.3}
STARTS = {"ten times too low": 0.1, "right": 1.0, "ten times too high": 10.0}
FORMS: dict[str, dict[str, Any]] = {
    "paper's form": {"form": "paper", "warmup": 90},
    "factor": {"form": "factor", "warmup": 15},
    "factor, probe": {"form": "factor", "warmup": 15, "probe": True},
    "controller, probe": {},
}


def main() -> None:
    """OneCycle's runs are distributed over the processes; the others use all of them."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, replicas = dist.get_rank(), dist.get_world_size()
    example = load()
    text = example.Text()
    found: list[dict[str, Any]] = []
    for optimizer, best in BEST.items():
        if optimizer == "SGD":
            example.optimizer_of = lambda model, lr: SGD(model.parameters(), lr=lr, momentum=0.9)
        for start, factor in STARTS.items():
            lr = best * factor
            mine = {
                seed: example.train_plain(text, lr, seed, STEPS, replicas).validation_loss
                for seed in range(rank, SEEDS, replicas)
            }
            heard: list[Any] = [None] * replicas
            dist.all_gather_object(heard, mine)
            plain = {seed: loss for part in heard for seed, loss in part.items()}
            losses = {"OneCycle": [plain[seed] for seed in range(SEEDS)]}
            for name, settings in FORMS.items():
                losses[name] = [train(example, text, lr, seed, **settings) for seed in range(SEEDS)]
            for name, some in losses.items():
                apart = [a - b for a, b in zip(some, losses["OneCycle"], strict=True)]
                found.append(
                    {
                        "optimizer": optimizer,
                        "start": start,
                        "lr": lr,
                        "method": name,
                        **interval(some),
                        "difference": interval(apart),
                        "losses": some,
                    }
                )
                if rank == 0:
                    row, difference = found[-1], found[-1]["difference"]
                    print(
                        f"| {optimizer} | {start} | {name} | {row['mean_loss']:.3f} | "
                        f"{difference['mean_loss']:+.3f} ± {difference['plus_minus']:.3f} |",
                        flush=True,
                    )
                    record = {"steps": STEPS, "replicas": replicas, "seeds": SEEDS, "results": found}
                    (HERE.parent / "results" / "drop_in.json").write_text(
                        json.dumps(record, indent=1) + "\n", encoding="utf-8"
                    )
    dist.destroy_process_group()


def train(
    example: Any, text: Any, lr: float, seed: int, *, form: Any = None, warmup: int = 0, probe: bool = False
) -> float:
    """Trains with the drop-in in some form, or with the controller if none is named; returns the validation loss."""
    bare = example.GPT(seed)
    model = DistributedDataParallel(bare)
    optimizer: Optimizer = example.optimizer_of(model, lr)
    rows = text.batch(seed, 1_000_000, 64)  # a common batch that no step sees
    scored = Probe(model, lambda _sync: rows, example.loss_of)
    scheduler: OneCycleAutoLR | HDETScheduler
    if form is None:
        controller = HDETController(
            model,
            optimizer,
            learning_rates(optimizer, spread=ALPHA),
            sync_every=INTERVAL,
            score=scored,
            start_after=15,
            seed=seed,
        )
        scheduler = HDETScheduler(example.one_cycle(optimizer, lr, STEPS), controller)
    else:
        scheduler = OneCycleAutoLR(
            optimizer,
            lr,
            STEPS + 1,
            div_factor=10,
            final_div_factor=10,
            ensemble_lr_spread_ratio=ALPHA,
            model_sync_interval=INTERVAL,
            auto_lr_warmup_steps=warmup,
            enable_auto_lr=True,
            form=form,
            probe=scored if probe else None,
            seed=seed,
        )
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = example.loss_of(
            model,
            text.batch(
                seed, step, example.BATCH * dist.get_world_size(), dist.get_rank(), dist.get_world_size()
            ),
        )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step(loss)
    with torch.no_grad():
        return float(example.loss_of(bare, text.validation))


if __name__ == "__main__":
    main()
