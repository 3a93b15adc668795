"""The paper's main claim on a small model: does the fan with averaging train at a rate where plain training
diverges?

Run it:  torchrun --nproc_per_node 4 benchmarks/hdet/stability.py
It writes stability.json and stability.svg to ../results. The GPT of the example trains without gradient clipping
under SGD with momentum, at rates beyond the edge; HDET is the paper's fan-out and converge without auto-LR
(its "HDET w/o auto-LR"), α = 1/9, T = 5.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from plots import draw
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from headrace_torch.hdet import OneCycleAutoLR, SyncError

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from gpt import load  # noqa: E402  found by the line above

SEEDS, STEPS, INTERVAL = 10, 60, 5
RATES = (1.0, 3.0)
ALPHAS = (0.0, 1 / 9)
DIVERGED = 5.545  # ln 256: worse than a uniform guess


def train(example: Any, text: Any, lr: float, alpha: float, seed: int) -> float:
    """Returns the validation loss; infinity if it is not a number."""
    rank, replicas = dist.get_rank(), dist.get_world_size()
    bare = example.GPT(seed)
    model = DistributedDataParallel(bare)
    optimizer = SGD(model.parameters(), lr=lr, momentum=0.9)
    scheduler = OneCycleAutoLR(
        optimizer,
        max_lr=lr,
        total_steps=STEPS + 1,
        cycle_momentum=False,
        ensemble_lr_spread_ratio=alpha,
        model_sync_interval=INTERVAL,
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = example.loss_of(model, text.batch(seed, step, example.BATCH * replicas, rank, replicas))
        loss.backward()
        optimizer.step()
        try:
            scheduler.step(loss)
        except SyncError:
            return float("inf")
    with torch.no_grad():
        final = float(example.loss_of(bare, text.validation))
    return final if final == final else float("inf")


def main() -> None:
    """Every rate with every spread."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    example = load()
    text = example.Text()
    found = []
    for lr in RATES:
        for alpha in ALPHAS:
            losses = [train(example, text, lr, alpha, seed) for seed in range(SEEDS)]
            finite = [loss if loss < 1e9 else None for loss in losses]
            kept = sorted(loss for loss in losses if loss <= DIVERGED)
            found.append(
                {
                    "lr": lr,
                    "alpha": alpha,
                    "diverged": sum(loss > DIVERGED for loss in losses),
                    "median_of_the_others": kept[len(kept) // 2] if kept else None,
                    "losses": finite,
                }
            )
            if dist.get_rank() == 0:
                print({key: value for key, value in found[-1].items() if key != "losses"}, flush=True)
                record = {"seeds": SEEDS, "steps": STEPS, "interval": INTERVAL, "results": found}
                (HERE.parent / "results" / "stability.json").write_text(
                    json.dumps(record, indent=1) + "\n", encoding="utf-8"
                )
    if dist.get_rank() == 0:
        draw("stability")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
