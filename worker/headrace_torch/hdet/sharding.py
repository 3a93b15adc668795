"""Rejects what is not a replica: shards of one model, and optimizers that spread their state over the replica group.

Averaging shards mixes unrelated parameters without any error. Everything recognisable is rejected with the reason:
sharded tensors over the replica group, FSDP1, ZeRO. Shards that look like plain tensors (hand-made tensor
parallelism) are found by comparing a sample of the parameters: copies of one model, even after a warm
initialisation, are close to their mean.
"""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from headrace_torch.hdet.averaging import local
from headrace_torch.hdet.errors import NotReplicasError
from headrace_torch.hdet.replicas import ReplicaGroup

SAMPLE = 4096  # elements compared
CLOSE = 0.5  # copies are within this fraction of their norm from their mean


def refusal(
    model: nn.Module | None, parameters: Sequence[Tensor], optimizer: Optimizer, group: ReplicaGroup
) -> str | None:
    """Says why these parameters are not one replica's, as far as this rank can see.

    `None` if nothing speaks against it.
    """
    if model is not None and any(_is(part, "FullyShardedDataParallel") for part in model.modules()):
        return (
            "the model is wrapped in FullyShardedDataParallel (FSDP1), whose ranks hold shards, not replicas; "
            "use fully_shard (FSDP2) over a two-dimensional mesh and pass ReplicaGroup.from_mesh(mesh)"
        )
    kind = type(optimizer)
    if _is(optimizer, "ZeroRedundancyOptimizer"):
        return (
            "ZeroRedundancyOptimizer steps each parameter on one rank and broadcasts it, so the ranks "
            "cannot take different steps; use an ordinary optimizer"
        )
    if kind.__module__.startswith("deepspeed.runtime.zero"):
        return (
            f"DeepSpeed's {kind.__name__} shards the optimizer over the data-parallel group (ZeRO stage 1 "
            "or higher): shards are not replicas; set zero_optimization.stage to 0"
        )
    if kind.__module__.startswith(("deepspeed.runtime.fp16", "deepspeed.runtime.bf16")):
        return (
            f"DeepSpeed's {kind.__name__} keeps flattened masters that cannot be reached from outside; "
            "train in float32, or under torch.autocast"
        )
    mine = set(group.ranks())
    for number, parameter in enumerate(parameters):
        if isinstance(parameter, DTensor):
            for dim, placement in enumerate(parameter.placements):
                ranks = dist.get_process_group_ranks(parameter.device_mesh.get_group(dim))
                if placement.is_shard() and len(mine & set(ranks)) > 1:
                    return (
                        f"parameter {number} is sharded over ranks {sorted(ranks)}, which the replica "
                        "group would average: "
                        "shards are not replicas; use a mesh with a replicate dimension (hybrid sharding) and pass "
                        "ReplicaGroup.from_mesh(mesh)"
                    )
    return None


def shapes(parameters: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """Returns the shapes of what this rank holds; equal for the same part of each replica."""
    return [tuple(local(parameter).shape) for parameter in parameters]


@torch.no_grad()
def stranger(parameters: Sequence[Tensor], group: ReplicaGroup) -> str | None:
    """Says which replica's parameters are not a copy of the others', judging by a sample.

    The same text on every rank. A collective.
    """
    count = max(1, SAMPLE // max(1, len(parameters)))
    picked = [local(parameter).reshape(-1)[:count].to("cpu", torch.float64) for parameter in parameters]
    rows = [
        torch.tensor(row, dtype=torch.float64)
        for row in group.gather(torch.cat(picked).tolist() if picked else [])
    ]
    mean = torch.stack(rows).mean(dim=0)
    size = max(float(row.norm()) for row in rows)
    for replica, row in enumerate(rows):
        apart = float((row - mean).norm())
        if size > 0 and (not math.isfinite(apart) or apart > CLOSE * size):
            return (
                f"replica {replica}'s parameters differ from the mean of all by {apart / size:.0%} of their norm: "
                "these are shards or differently initialised models, not replicas; start all ranks from "
                "the same weights"
            )
    return None


def require_replicas(
    model: nn.Module | None, parameters: Sequence[Tensor], optimizer: Optimizer, group: ReplicaGroup
) -> None:
    """Raises on every rank unless the parameters are copies of one model. A collective.

    Raises:
        NotReplicasError: with what was recognised.
    """
    group.agree(problem=refusal(model, parameters, optimizer, group), config={}, error=NotReplicasError)
    across = {f"shapes of part {group.part}": shapes(parameters)}
    group.agree(problem=None, config=across, error=NotReplicasError)
    group.agree(problem=stranger(parameters, group), config={}, error=NotReplicasError)


def _is(thing: object, name: str) -> bool:
    """Whether one of a thing's classes has this name; importing them for isinstance takes seconds."""
    return any(kind.__name__ == name for kind in type(thing).__mro__)
