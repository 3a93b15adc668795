"""A DeepSpeed engine on the CPU, at ZeRO stages 0 and 1."""

import os
import warnings
from typing import Any

import torch.distributed as dist
from ranks_tasks import flat, largest_difference, loss_on, network, samples
from torch.optim.lr_scheduler import ConstantLR

from headrace_torch.hdet import (
    HDETController,
    HDETScheduler,
    NotReplicasError,
    deepspeed_replicas,
    learning_rates,
)


def engine(stage: int) -> Any:
    """Returns an engine on this rank, in the group that there is."""
    os.environ |= {
        "DS_ACCELERATOR": "cpu",
        "RANK": str(dist.get_rank()),
        "LOCAL_RANK": str(dist.get_rank()),
        "WORLD_SIZE": str(dist.get_world_size()),
    }
    import deepspeed

    # A faster all-reduce in shared memory, which DeepSpeed would compile now for a minute; gloo's own does here.
    deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    return deepspeed.initialize(
        model=network(0),
        config={
            "train_micro_batch_size_per_gpu": 8,
            "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
            "zero_optimization": {"stage": stage},
        },
    )[0]


def data_parallel() -> dict[str, Any]:
    """Trains four steps at ZeRO 0 with a sync after two.

    Returns how far replicas were apart, and after each step's sync.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DeepSpeed's own
        made = engine(0)
        group = deepspeed_replicas(made)
        rates = learning_rates(made.optimizer, spread=0.5)
        controller = HDETController(made.module, made.optimizer, rates, group, sync_every=2)
        scheduler = HDETScheduler(ConstantLR(made.optimizer, factor=1.0), controller)
        apart = []
        for step in range(4):
            loss = loss_on(made, samples(step, dist.get_rank()))
            made.backward(loss)
            made.step()
            scheduler.step(loss)
            apart.append(largest_difference(flat(made.module)))
    return {"apart": apart, "replicas": group.size}


def sharded() -> tuple[str, str]:
    """What is said of ZeRO 1, by the engine's replicas and by a controller that is not told of the engine."""
    said = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = engine(1)
        for attempt in (
            lambda: deepspeed_replicas(made),
            lambda: HDETController(made.module, made.optimizer, learning_rates(made.optimizer)),
        ):
            try:
                attempt()
            except NotReplicasError as error:
                said.append(str(error))
    return said[0], said[1]
