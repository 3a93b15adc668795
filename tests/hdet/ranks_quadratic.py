"""The quadratic, as used by the quality studies and the tests of recovery.

All seeds run in lockstep, to share the collectives.
"""

from collections.abc import Callable
from typing import Literal

import torch.distributed as dist
from ranks_tasks import Quadratic, quadratic_batches, share_gradients
from torch import Tensor
from torch.optim import SGD
from torch.optim.lr_scheduler import ConstantLR

from headrace_torch.hdet import HDETController, HDETScheduler, OneCycleAutoLR, Probe, learning_rates

Step = Callable[[Tensor], None]


def study(
    variant: Literal["paper", "loss", "probe"],
    seeds: int,
    lr: float,
    syncs: int = 60,
    interval: int = 5,
    sigma: float = 0.1,
    alpha: float = 1 / 9,
) -> list[float]:
    """Returns, for each seed, the factor by which the rate has moved after all syncs."""
    models = [Quadratic(seed) for seed in range(seeds)]
    optimizers = [SGD(model.parameters(), lr=lr) for model in models]
    batches = [quadratic_batches(seed, dist.get_rank()) for seed in range(seeds)]
    steps: list[Step] = []
    factors: list[Callable[[], float]] = []
    for seed, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        if variant == "paper":
            step, factor = _paper(optimizer, seed, lr, syncs, interval, sigma, alpha)
        else:
            step, factor = _ours(model, optimizer, seed, interval, alpha, probe=variant == "probe")
        steps.append(step)
        factors.append(factor)
    for _ in range(syncs * interval):
        losses = []
        for model, optimizer, stream in zip(models, optimizers, batches, strict=True):
            optimizer.zero_grad()
            loss = model(next(stream))
            loss.backward()
            losses.append(loss.detach())
        share_gradients(*models)
        for optimizer, step, loss in zip(optimizers, steps, losses, strict=True):
            optimizer.step()
            step(loss)
    return [factor() for factor in factors]


def _ours(
    model: Quadratic, optimizer: SGD, seed: int, interval: int, alpha: float, *, probe: bool
) -> tuple[Step, Callable[[], float]]:
    fixed = next(quadratic_batches(seed, rank=999, size=64))
    controller = HDETController(
        model,
        optimizer,
        learning_rates(optimizer, spread=alpha, low=1e-6, high=1e6),
        sync_every=interval,
        seed=seed,
        score=Probe(model, lambda _sync: fixed, lambda m, x: m(x)) if probe else "loss",
    )
    scheduler = HDETScheduler(ConstantLR(optimizer, factor=1.0), controller)
    return lambda loss: _ignore(scheduler.step(loss)), lambda: controller.value("lr/0")


def _paper(
    optimizer: SGD, seed: int, lr: float, syncs: int, interval: int, sigma: float, alpha: float
) -> tuple[Step, Callable[[], float]]:
    """The paper's update on a flat cycle, so that its decay is zero and only the signal moves the rate."""
    centers = [lr]
    scheduler = OneCycleAutoLR(
        optimizer,
        max_lr=lr,
        div_factor=1.0,
        final_div_factor=1e6,
        pct_start=0.5,
        total_steps=1_000_000_000,
        cycle_momentum=False,
        auto_lr_warmup_steps=0,
        enable_auto_lr=True,
        ensemble_lr_spread_ratio=alpha,
        model_sync_interval=interval,
        loss_scale=sigma,
        seed=seed,
        form="paper",
        on_sync=lambda report: centers.append(report.hyperparameter("lr/0").center),
    )
    return lambda loss: _ignore(scheduler.step(loss)), lambda: centers[-1] / lr


def _ignore(_: object) -> None:
    return None
