"""HDET inside a trial: a study tunes what replicas cannot explore, and each trial's replicas find its learning rate.

Run it:  headrace run --local --slots 4 examples/hdet/study.yaml

A trial is a gang of four ranks. It may be paused, moved or killed at any step: every rank saves its own state, and
the trial resumes bit for bit. Each sync point is a report, with every replica's rate as a metric.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from headrace import trial
from headrace_torch.hdet import HDETController, HDETScheduler, Probe, learning_rates

sys.path.insert(0, str(Path(__file__).resolve().parent))

from train import BATCH, GPT, Text, loss_of  # the model and the data of the example without a service

INTERVAL = 5  # optimizer steps between sync points
REPORTED = 31  # rungs are multiples of it


def train(t: trial.Trial) -> None:
    """Train the replicas of one trial."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    text = Text()
    bare = GPT(t.seed)
    # Before t.track, because it copies the weights of rank 0 to all. The buckets must not change: a resumed run would
    # otherwise add gradients up in another order.
    model = DistributedDataParallel(bare, find_unused_parameters=True)
    optimizer = AdamW(
        model.parameters(), lr=1e-3, betas=(t.params["beta1"], 0.95), weight_decay=t.params["weight_decay"]
    )
    held_out = text.batch(t.seed, 1_000_000, 64)
    controller = HDETController(
        model,
        optimizer,
        learning_rates(optimizer),
        sync_every=INTERVAL,
        score=Probe(model, lambda _sync: held_out, loss_of),
        seed=t.seed,
    )
    schedule = OneCycleLR(optimizer, 1e-3, t.max_steps + 1, cycle_momentum=False, div_factor=10)
    scheduler = HDETScheduler(schedule, controller)
    t.track(model=model, optimizer=optimizer, scheduler=scheduler)
    for step in t.steps():
        optimizer.zero_grad()
        loss = loss_of(model, text.batch(t.seed, step, BATCH * t.world_size, t.rank, t.world_size))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        sync = scheduler.step(loss)
        if sync is None and step % REPORTED and step < t.max_steps:
            continue
        rates = {} if sync is None else {f"lr_{r}": lr for r, lr in enumerate(sync.hyperparameters[0].values)}
        with torch.no_grad():
            t.report(val_loss=float(loss_of(bare, text.validation[::4])), **rates)
    dist.destroy_process_group()
