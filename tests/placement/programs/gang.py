"""A trial of several processes: data-parallel least squares over gloo, with a journal of who took part."""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist

from headrace import trial


def train(t: trial.Trial) -> None:
    """Fits a line. Every rank sees its own part of each batch, and gradients are averaged."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    rank, world = dist.get_rank(), dist.get_world_size()
    assert (rank, world) == (t.rank, t.world_size)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    t.track(model=model, optimizer=optimizer)
    truth = torch.arange(4.0)
    loss = torch.zeros(1)
    for step in t.steps():
        batch = torch.randn(32, 4, generator=torch.Generator().manual_seed(step))[rank::world]
        loss = ((model(batch).squeeze(1) - batch @ truth) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        present = torch.ones(1)
        dist.all_reduce(present)
        share = float(os.environ.get("HEADRACE_GPU_SHARE", "1"))
        part = {"world": world, "share": share, "cpus": t.cpus}
        _note(t, {"step": step, "rank": rank, "present": int(present), "loss": loss.item(), **part})
        t.report(loss=loss)
    dist.destroy_process_group()


def _note(t: trial.Trial, line: dict[str, float]) -> None:
    folder = Path(os.environ["JOURNAL"])
    with (folder / f"{t.number}-{line['rank']}-{os.environ['HEADRACE_LEASE_ID']}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
