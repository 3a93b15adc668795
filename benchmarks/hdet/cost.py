"""The cost of a sync: wall time, bytes and memory against the size of the model and the number of replicas.

Run it:  torchrun --nproc_per_node 4 benchmarks/hdet/cost.py
It writes cost.json and cost.svg to ../results. A step is one forward and backward pass under DDP and an SGD step, on 64
samples per replica.
"""

import json
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from plots import draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from headrace_torch.hdet import HDETController, learning_rates

HERE = Path(__file__).resolve().parent
WIDTHS, BATCH, REPEATS = (300, 1000, 2300, 3600), 64, 7


def measure(width: int, replicas: int, group: dist.ProcessGroup) -> dict[str, Any]:
    """Medians over repeats, for the slowest replica."""
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    wrapped = DistributedDataParallel(model, process_group=group)
    optimizer = SGD(model.parameters(), lr=1e-3)
    controller = HDETController(model, optimizer, learning_rates(optimizer), group, sync_every=1)
    x = torch.randn(BATCH, width)
    steps, syncs, sent, grown = [], [], 0, 0
    for _ in range(REPEATS):
        dist.barrier(group)
        began = time.monotonic()
        optimizer.zero_grad()
        loss = wrapped(x).square().mean()
        loss.backward()
        optimizer.step()
        steps.append(time.monotonic() - began)
        controller.observe(loss)
        dist.barrier(group)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        report = controller.after_step()
        grown = max(grown, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        assert report is not None
        syncs.append(report.seconds)
        sent = report.bytes_averaged
    mine = [statistics.median(steps), statistics.median(syncs), grown * 1024]
    heard: list[Any] = [None] * replicas
    dist.all_gather_object(heard, mine, group=group)
    step_s, sync_s, memory = (max(row[k] for row in heard) for k in range(3))
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "replicas": replicas,
        "step_s": step_s,
        "sync_s": sync_s,
        "bytes_per_sync": sent,
        "peak_memory_growth_bytes": memory,
        "overhead_at_1000": sync_s / (1000 * step_s),
    }


def main() -> None:
    """Each size with 2, 3 and 4 replicas."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = []
    for replicas in (2, 3, 4):
        group = dist.new_group(list(range(replicas)))
        for width in WIDTHS:
            if dist.get_rank() < replicas:
                found.append(measure(width, replicas, group))
                if dist.get_rank() == 0:
                    print(found[-1], flush=True)
        dist.barrier()
    if dist.get_rank() == 0:
        record = {"torch": torch.__version__, "batch": BATCH, "repeats": REPEATS, "results": found}
        (HERE.parent / "results" / "cost.json").write_text(
            json.dumps(record, indent=1) + "\n", encoding="utf-8"
        )
        draw("cost")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
