"""Warm initialisation: each replica starts from a checkpoint plus its own small noise (Eq. 10 of the paper)."""

import math
from collections.abc import Iterable
from hashlib import blake2b
from typing import Literal

import torch
from torch import Tensor

from headrace_torch.hdet.averaging import local
from headrace_torch.hdet.errors import HdetConfigError
from headrace_torch.hdet.replicas import ReplicaGroup


@torch.no_grad()
def warm_init_(
    parameters: Iterable[Tensor],
    nu: float = 0.01,
    *,
    seed: int = 0,
    replica_group: ReplicaGroup | None = None,
    scope: Literal["tensor", "model"] = "tensor",
) -> None:
    """Adds Gaussian noise of standard deviation ν·‖θ‖/√d to parameters, in place, different on every replica.

    Call it on every rank, after the checkpoint is loaded (and after DDP has wrapped the model, since DDP
    copies rank 0's weights) and before the scheduler or controller is made. It reads no global generator:
    the noise follows from (seed, replica, rank within the replica, number of the tensor).

    Args:
        parameters: what to perturb; scalars and empty tensors are left unchanged.
        nu: ν, the noise relative to the weights' root mean square.
        seed: the same on every rank.
        replica_group: the replicas; by default every rank is one.
        scope: `tensor` takes norm and size tensor by tensor, as the reference's README does, so that no
            layer drowns in noise; `model` takes those of all parameters, as the paper's equation does. Of a
            sharded tensor the local shard counts.

    Raises:
        HdetConfigError: ν is negative or not finite.
    """
    if not (math.isfinite(nu) and nu >= 0):
        raise HdetConfigError(f"nu must be finite and at least 0, not {nu}")
    group = replica_group if replica_group is not None else ReplicaGroup()
    parts = [local(parameter) for parameter in parameters]
    floating = [
        (number, part) for number, part in enumerate(parts) if part.is_floating_point() and part.numel() > 1
    ]
    if not floating:
        return
    squares = {number: float(part.double().square().sum()) for number, part in floating}
    overall = math.sqrt(sum(squares.values()) / sum(part.numel() for _, part in floating))
    for number, part in floating:
        rms = overall if scope == "model" else math.sqrt(squares[number] / part.numel())
        generator = torch.Generator().manual_seed(_stream(seed, group.rank, group.global_rank, number))
        noise = torch.randn(part.shape, generator=generator, dtype=torch.float32)
        part.add_(noise.to(part.device, part.dtype), alpha=nu * rms)


def _stream(seed: int, replica: int, rank: int, number: int) -> int:
    return int.from_bytes(blake2b(f"{seed}/{replica}/{rank}/{number}".encode(), digest_size=7).digest())
