"""Ranks that end up waiting for each other: one process each, which records what ended it."""

import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

RANKS = 4
TIMEOUT_S = 1.0


def live(rank: int, port: int, kind: str, folder: str) -> None:
    """The life of a rank: trains until something ends it, and records what."""
    os.environ["OMP_NUM_THREADS"] = "1"
    said = os.open(Path(folder) / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 2)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(minutes=30),
    )
    try:
        _train(kind, rank)
        status = 0
    except BaseException:  # noqa: BLE001  told to the test, whatever it is
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    os._exit(status)


def _train(kind: str, rank: int) -> None:
    import torch.distributed as dist
    from ranks_tasks import loss_on, network, samples
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import SGD
    from torch.optim.lr_scheduler import ConstantLR

    from headrace_torch.hdet import (
        HDETController,
        HDETScheduler,
        OneCycleAutoLR,
        learning_rates,
        weight_decay,
    )

    local = kind.startswith("local")
    model: Any = network(0) if local else DistributedDataParallel(network(0))
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    step: Any
    if local:
        controller = HDETController(
            model, optimizer, [weight_decay(optimizer)], sync_every=5, mode="local_grad", timeout_s=TIMEOUT_S
        )
        step = lambda _loss: controller.after_step()  # noqa: E731 - one of the ways to step, chosen by the case
    elif kind.endswith("controller"):
        controller = HDETController(
            model, optimizer, learning_rates(optimizer), sync_every=5, timeout_s=TIMEOUT_S
        )
        step = HDETScheduler(ConstantLR(optimizer, 1.0), controller).step
    else:
        step = OneCycleAutoLR(
            optimizer,
            0.1,
            1000,
            cycle_momentum=False,
            ensemble_lr_spread_ratio=0.1,
            model_sync_interval=5,
            timeout_s=TIMEOUT_S,
        ).step
    for number in range(1, 41):
        if number == 8:  # from here on something goes wrong
            if kind == "frozen" and rank == 2:
                os.kill(os.getpid(), signal.SIGSTOP)
            if kind.endswith("fewer") and rank == 3:
                dist.barrier()
            if kind.startswith("ahead") and rank == 1:
                step(1.0)
            if kind.startswith("slow") and rank == 1:
                until = time.monotonic() + 3 * TIMEOUT_S
                while time.monotonic() < until:  # it computes, or waits as if for a disk
                    time.sleep(0.05) if kind == "slow-disk" else sum(range(1000))
        loss = loss_on(model, samples(number, rank))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step(loss)
