"""Small training tasks for ranks: a noisy quadratic, and a network that learns a fixed random teacher."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import Optimizer


class Quadratic(nn.Module):
    """½ Σ h_i (θ_i − x_i)², curvatures from 0.003 to 1, in double precision; the best fixed rate is near 1."""

    def __init__(self, seed: int, dim: int = 24) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.theta = nn.Parameter(torch.randn(dim, generator=generator, dtype=torch.float64) * 3)
        self.curvature = torch.logspace(-2.5, 0, dim, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * (self.curvature * (self.theta - x) ** 2).sum(-1).mean()


def quadratic_batches(seed: int, rank: int, size: int = 8, dim: int = 24) -> Iterator[Tensor]:
    """This rank's batches: targets around 0 with standard deviation 1."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + rank)
    while True:
        yield torch.randn(size, dim, generator=generator, dtype=torch.float64)


def network(seed: int = 0, *, norm: bool = False, dropout: float = 0.0) -> nn.Sequential:
    """A network of 8 inputs and 2 outputs, the same on every rank.

    Building it leaves the global generator unchanged.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(8, 16),
            nn.BatchNorm1d(16) if norm else nn.Identity(),
            nn.Tanh(),
            nn.Dropout(dropout) if dropout else nn.Identity(),
            nn.Linear(16, 2),
        )


def samples(step: int, rank: int | None = None, size: int = 8) -> tuple[Tensor, Tensor]:
    """The batch of a step; the same on all ranks if no rank is given."""
    generator = torch.Generator().manual_seed(7919 * step + 31 * (0 if rank is None else rank + 1))
    x = torch.randn(size, 8, generator=generator)
    return x, torch.stack([x[:, 0] * x[:, 1], x.sum(dim=1).sin()], dim=1)


def loss_on(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return mse_loss(model(batch[0]), batch[1])


def flat(model: nn.Module) -> Tensor:
    """All parameters in one vector."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def largest_difference(vector: Tensor, group: dist.ProcessGroup | None = None) -> float:
    """The largest difference in any element between any two ranks."""
    vector = vector.detach().clone()
    low, high = vector.clone(), vector
    dist.all_reduce(low, dist.ReduceOp.MIN, group=group)
    dist.all_reduce(high, dist.ReduceOp.MAX, group=group)
    return float((high - low).abs().max())


def gathered(value: float) -> list[float]:
    """Every rank's value, in the order of ranks."""
    heard: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(heard, value)
    return heard


def share_gradients(*models: nn.Module) -> None:
    """What DDP does, for several models in one call: the mean of the gradients over all ranks."""
    grads = [p.grad for model in models for p in model.parameters() if p.grad is not None]
    joined = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(joined)
    joined /= dist.get_world_size()
    offset = 0
    for g in grads:
        g.copy_(joined[offset : offset + g.numel()].view_as(g))
        offset += g.numel()


def shared_step(model: nn.Module, optimizer: Optimizer, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A step on the mean gradient; returns this rank's loss."""
    loss = loss_on(model, batch)
    optimizer.zero_grad()
    loss.backward()
    share_gradients(model)
    optimizer.step()
    return loss.detach()
