"""DeepSpeed engines on the CPU: data-parallel at ZeRO stages 0 and 1, and two replicas of a two-stage pipeline."""

import os
import warnings
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from ranks_tasks import flat, largest_difference, loss_on, network, samples
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import ConstantLR

from headrace_torch.hdet import (
    HDETController,
    HDETScheduler,
    NotReplicasError,
    deepspeed_replicas,
    learning_rates,
)


def engine(stage: int, model: Callable[[], nn.Module] = network, **settings: Any) -> Any:
    """Returns an engine on this rank, in the existing group."""
    os.environ |= {
        "DS_ACCELERATOR": "cpu",
        "RANK": str(dist.get_rank()),
        "LOCAL_RANK": str(dist.get_rank()),
        "WORLD_SIZE": str(dist.get_world_size()),
    }
    import deepspeed

    # DeepSpeed would now compile a faster shared-memory all-reduce for a minute; gloo's own is enough here.
    deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)
    deepspeed.utils.groups.mpu = (
        None  # the pipeline of an earlier test, which DeepSpeed keeps for the process
    )
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    return deepspeed.initialize(
        model=model(),
        config={
            "train_micro_batch_size_per_gpu": 8,
            "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
            "zero_optimization": {"stage": stage},
            **settings,
        },
    )[0]


def data_parallel() -> dict[str, Any]:
    """Trains four steps at ZeRO 0 with a sync after two.

    Returns how far replicas differed before and after each step's sync.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DeepSpeed's own warnings
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


def pipeline() -> dict[str, Any]:
    """Trains four batches of two micro-batches on two replicas of two stages, with a sync after two.

    Returns how far the two copies of this rank's stage differed, the score of each replica, and this rank's own
    mean loss of the last interval.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = engine(0, staged, gradient_accumulation_steps=2, steps_per_print=1000)
        group = deepspeed_replicas(made)
        controller = HDETController(
            made.module, made.optimizer, learning_rates(made.optimizer, spread=0.5), group, sync_every=2
        )
        scheduler = HDETScheduler(ConstantLR(made.optimizer, factor=1.0), controller)
        apart, own = [], []
        report = None
        for step in range(4):
            made.train_batch(data_iter=iter([samples(2 * step + micro, group.rank) for micro in range(2)]))
            own.append(float(made.dp_group_loss))
            report = scheduler.step(made.dp_group_loss)
            apart.append(largest_difference(flat(made.module), group.across))
    assert report is not None
    return {
        "stage": made.stage_id,
        "replica": group.rank,
        "replicas": group.size,
        "apart": apart,
        "losses": report.losses,
        "own": sum(own[2:]) / 2,
        "parameters": flat(made.module).numel(),
    }


def staged() -> nn.Module:
    """The network of the other tests, as two stages of different sizes."""
    from deepspeed.pipe import PipelineModule

    return PipelineModule(layers=list(network(0)), num_stages=2, loss_fn=mse_loss, partition_method="uniform")


def sharded() -> tuple[str, str]:
    """The messages about ZeRO 1, by the engine's replicas and by a controller that does not know the engine."""
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
