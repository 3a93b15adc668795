"""What ranks do in the tests of DDP, of sharded models, and of the cost of a sync."""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from ranks_tasks import flat, gathered, largest_difference, loss_on, network, samples
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ConstantLR

from headrace_torch.hdet import (
    HDETController,
    HDETScheduler,
    NotReplicasError,
    ReplicaGroup,
    learning_rates,
)


def under_ddp(no_sync: bool, autocast: bool) -> tuple[float, int, float]:
    """Trains under DDP with two micro-batches per step, the first of which runs under no_sync, or in bfloat16."""
    model = DistributedDataParallel(network(5, norm=True))
    optimizer = Adam(model.parameters(), lr=0.01)
    controller = HDETController(model, optimizer, learning_rates(optimizer, spread=0.2), sync_every=3)
    scheduler = HDETScheduler(ConstantLR(optimizer, factor=1.0), controller)
    reports = 0
    difference = apart = 0.0
    for step in range(6):
        optimizer.zero_grad()
        for micro in range(2 if no_sync else 1):
            batch = samples(2 * step + micro, dist.get_rank())
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                if no_sync and micro == 0:
                    with model.no_sync():
                        loss = loss_on(model, batch)
                        loss.backward()
                else:
                    loss = loss_on(model, batch)
                    loss.backward()
            controller.observe(loss)
        optimizer.step()
        report = scheduler.step()
        if report is not None:
            reports += 1
            difference = max(difference, largest_difference(flat(model)))
        else:
            apart = largest_difference(flat(model))
    return difference, reports, apart


def hybrid_sharding() -> dict[str, Any]:
    """Two replicas of two shards each under FSDP2: averages over the replicate dimension only."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    fully_shard(model, mesh=mesh)
    optimizer = SGD(model.parameters(), lr=0.05)
    group = ReplicaGroup.from_mesh(mesh)
    controller = HDETController(model, optimizer, learning_rates(optimizer, spread=0.5), group, sync_every=2)
    scheduler = HDETScheduler(ConstantLR(optimizer, factor=1.0), controller)
    apart, losses, shards = [], None, []
    for step in range(2):
        loss = loss_on(model, samples(step, dist.get_rank()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1:
            before = torch.cat([p.to_local().detach().reshape(-1).clone() for p in model.parameters()])
            apart.append(largest_difference(before, group.across))
        report = scheduler.step(loss)
        losses = report.losses if report else None
    after = torch.cat([p.to_local().detach().reshape(-1) for p in model.parameters()])
    mean = before.clone()
    dist.all_reduce(mean, group=group.across)
    shards = [float((after - mean / 2).abs().max()), largest_difference(after, group.across)]
    return {"apart": apart[0], "shards": shards, "losses": losses, "replica": group.rank, "size": group.size}


def refused(kind: str) -> str:
    """Returns the text with which something that is not a replica is refused."""
    model: nn.Module = nn.Linear(8, 8)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    optimizer: Any = None
    group: Any = None
    if kind in ("fsdp2", "hybrid over all ranks"):
        from torch.distributed.fsdp import fully_shard

        if kind == "fsdp2":
            mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("shard",))
        else:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        fully_shard(model, mesh=mesh)
    elif kind == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    elif kind == "zero":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own import is deprecated in torch
            from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), SGD, lr=0.1)
    elif kind == "other weights":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=_generator()))
    elif kind == "other shapes":
        model = nn.Linear(8, 8 + dist.get_rank() // 2)
    optimizer = optimizer if optimizer is not None else SGD(model.parameters(), lr=0.1)
    try:
        HDETController(model, optimizer, learning_rates(optimizer), group, sync_every=1)
    except NotReplicasError as error:
        return str(error)
    return "accepted"


def stages() -> tuple[list[float | None], list[float]]:
    """Two replicas of two hand-made stages, of which only the last sees a loss.

    Returns the losses and all ranks' weights.
    """
    rank = dist.get_rank()
    replicas = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    stages_of = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    stage, replica = rank % 2, rank // 2
    model = nn.Linear(1, 1 + stage, bias=False)
    with torch.no_grad():
        model.weight.fill_(10.0 * (stage + 1))
    optimizer = SGD(model.parameters(), lr=0.1)
    group = ReplicaGroup(replicas[stage], within=stages_of[replica])
    controller = HDETController(model, optimizer, learning_rates(optimizer), group, sync_every=1)
    with torch.no_grad():
        model.weight.add_(float(replica))
    if stage == 1:
        controller.observe(3.0 + replica)
    report = controller.after_step()
    assert report is not None
    return list(report.losses), gathered(float(model.weight.detach()[0, 0]))


def traffic(width: int = 2300, batch: int = 4) -> dict[str, int]:
    """What one sync of a model of more than 10M parameters sends."""
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    wrapped = DistributedDataParallel(model)
    optimizer = SGD(model.parameters(), lr=1e-3)
    controller = HDETController(wrapped, optimizer, learning_rates(optimizer), sync_every=1)
    loss = wrapped(torch.randn(batch, width)).square().mean()
    loss.backward()
    optimizer.step()
    controller.observe(loss)
    report = controller.after_step()
    assert report is not None
    return {"parameters": sum(p.numel() for p in model.parameters()), "bytes": report.bytes_averaged}


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(dist.get_rank())
