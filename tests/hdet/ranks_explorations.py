"""What ranks do in the tests of hyperparameters other than the learning rate."""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from ranks_tasks import flat, largest_difference, loss_on, network, samples
from torch import Tensor, nn
from torch.optim import SGD, Adam

from headrace_torch.hdet import (
    HDETController,
    LogSpaceRule,
    Probe,
    dropout,
    learning_rates,
    weight_decay,
)
from headrace_torch.hdet.transforms import TransformName


def hyperparameters_at_once() -> list[list[float]]:
    """Explores three hyperparameters under local gradients for some syncs; returns all ranks' values of each."""
    model = network(7, dropout=0.3)
    optimizer = Adam(model.parameters(), lr=0.01, weight_decay=0.1)
    common = samples(999)
    explored = [*learning_rates(optimizer), weight_decay(optimizer), dropout(model)]
    controller = HDETController(
        model,
        optimizer,
        explored,
        sync_every=2,
        mode="local_grad",
        score=Probe(model, lambda _sync: common, loss_on),
    )
    for step in range(8):
        loss = loss_on(model, samples(step, dist.get_rank()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        controller.observe(loss)
        report = controller.after_step()
        assert model.training
        if report is not None:
            assert largest_difference(flat(model)) == 0
            for one, record in zip(explored, report.hyperparameters, strict=True):
                assert one.get() == record.values[dist.get_rank()]
    assert report is not None
    return [list(record.values) for record in report.hyperparameters]


def loss_bias() -> str:
    """Returns the warning about dropout that is scored by its own training loss."""
    model = network(7, dropout=0.3)
    optimizer = SGD(model.parameters(), lr=0.01)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        HDETController(model, optimizer, [dropout(model)], mode="local_grad")
    return str(caught[0].message)


def dropout_exploration(
    probed: bool,
    syncs: int,
    interval: int,
    start: float,
    best: float,
    transform: TransformName = "logit",
    spread: float = 0.8,
) -> list[float]:
    """Explores dropout on the inputs of a linear regression whose optimum is `best`; returns the trajectory.

    With inputs x ~ N(0, I), dropout p on them is in expectation a ridge penalty p/(1−p) on the weights. With w = 1
    + noise per coordinate (all replicas see the same noisy targets), the held-out loss ‖w(p) − w*‖² has its
    minimum at a known p.
    """
    model = InputDropout(best)
    optimizer = SGD(model.parameters(), lr=0.05)
    model.drop.p = start
    score: Any = Probe(model, lambda _sync: None, lambda m, _batch: m.held_out()) if probed else "loss"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the bias is the point of the test
        controller = HDETController(
            model,
            optimizer,
            [dropout(model, spread=spread, low=0.0, high=0.9, transform=transform)],
            sync_every=interval,
            mode="local_grad",
            score=score,
            rule=LogSpaceRule(gain=0.3, cap=0.3)
            if transform == "logit"
            else LogSpaceRule(gain=0.06, cap=0.03),
        )
    torch.manual_seed(10 + dist.get_rank())
    trajectory = []
    for _ in range(syncs * interval):
        loss = model()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        controller.observe(loss)
        if controller.after_step() is not None:
            trajectory.append(controller.value("dropout"))
    return trajectory


class InputDropout(nn.Module):
    """A linear regression with dropout on its inputs, and targets whose overestimated weights call for shrinking.

    The training targets come from weights u = 1/(1 − best); under dropout p the minimiser is w(p) = (1 −
    p)·u coordinate-wise, since E[(u·x − w·x̃)²] = (u − w)² + p/(1−p)·w². The held-out targets come from
    weights 1, so w(best) is exact.
    """

    def __init__(self, best: float, dim: int = 16, size: int = 64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        # An orthonormal design: the sample covariance is the identity, and the optimum above holds for this
        # very sample.
        basis, _ = torch.linalg.qr(torch.randn(size, dim, generator=generator))
        self.x = basis * size**0.5
        self.y = self.x.sum(dim=1) / (1 - best)
        self.weight = nn.Parameter(torch.ones(dim) / (1 - best))
        self.drop = nn.Dropout(0.0)

    def forward(self) -> Tensor:
        return ((self.drop(self.x) @ self.weight - self.y) ** 2).mean()

    def held_out(self) -> Tensor:
        return ((self.x @ (self.weight - 1)) ** 2).mean()
