"""The reference's defects, one mutant each: what it does in place of our code, reduced to a few lines.

Each function runs the same check on our code and on the mutant and returns both results. The mutants are written
from the behaviour observed when the reference ran on four gloo processes; none of its code is here.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from ranks_tasks import flat, largest_difference, network
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import OneCycleLR

from headrace_torch.hdet import OneCycleAutoLR, SyncReport, warm_init_

SPREAD = 0.3


def made(**changes: Any) -> tuple[nn.Sequential, SGD, dict[str, Any]]:
    """A model, an optimizer and the settings of a short run."""
    model = network(0)
    optimizer = SGD(model.parameters(), lr=0.1)
    settings: dict[str, Any] = {
        "max_lr": 0.1,
        "total_steps": 60,
        "cycle_momentum": False,
        "ensemble_lr_spread_ratio": SPREAD,
        "model_sync_interval": 5,
        "auto_lr_warmup_steps": 10,
        "enable_auto_lr": True,
    }
    return model, optimizer, settings | changes


class ScalesBaseRates(OneCycleLR):
    """1: puts the multiplier into `base_lrs`, which a one-cycle schedule never reads."""

    def __init__(self, optimizer: Any, **cycle: Any) -> None:
        super().__init__(optimizer, **cycle)
        self.base_lrs = [rate * (0.7 + 0.2 * dist.get_rank()) for rate in self.base_lrs]


def fan_out() -> dict[str, float]:
    """The relative width of the rates over ranks after three steps of the warm-up."""
    widths = {}
    for name in ("ours", "reference"):
        _, optimizer, settings = made()
        scheduler: Any
        if name == "ours":
            scheduler = OneCycleAutoLR(optimizer, **settings)
        else:
            scheduler = ScalesBaseRates(optimizer, max_lr=0.1, total_steps=60, cycle_momentum=False)
        for _ in range(3):
            optimizer.step()
            scheduler.step()
        rate = torch.tensor([optimizer.param_groups[0]["lr"]], dtype=torch.float64)
        total = rate.clone()
        dist.all_reduce(total)
        widths[name] = largest_difference(rate) / float(total / 4)
    return widths


class ReturnsEarly(OneCycleAutoLR):
    """2: with auto-LR off, returns from `step` before the average and before `_last_lr` is written."""

    def step(self, loss: Any = None) -> Any:
        if not self._ready or self._auto:
            return super().step(loss)
        told = self._last_lr
        OneCycleLR.step(self)
        self._last_lr = told
        return None


def averages_without_auto_lr() -> dict[str, tuple[float, bool]]:
    """How far ranks differ after a sync without auto-LR, and whether get_last_lr returns the rate in use."""
    seen = {}
    for name, kind in (("ours", OneCycleAutoLR), ("reference", ReturnsEarly)):
        model, optimizer, settings = made(enable_auto_lr=False)
        scheduler = kind(optimizer, **settings)
        for _ in range(5):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)  # shared gradients
            optimizer.step()
            scheduler.step(1.0)
        seen[name] = (
            largest_difference(flat(model)),
            scheduler.get_last_lr() == [optimizer.param_groups[0]["lr"]],
        )
    return seen


def decay_sign() -> dict[str, float]:
    """The centre after five syncs without a signal, over the one at the end of the warm-up.

    With γ as printed, and with ours.
    """
    syncs, start = 5, 1e-3
    printed = 1 - math.exp(-math.log(25.0 / 1e4) / syncs)
    seen = {"reference": (1 - printed) ** syncs}
    _, optimizer, _ = made()
    reports: list[SyncReport] = []
    scheduler = OneCycleAutoLR(
        optimizer,
        max_lr=start * 25,
        total_steps=50,
        cycle_momentum=False,
        ensemble_lr_spread_ratio=SPREAD,
        model_sync_interval=10,
        auto_lr_warmup_steps=0,
        enable_auto_lr=True,
        form="paper",
        on_sync=reports.append,
    )
    for _ in range(50):
        optimizer.step()
        scheduler.step(1.0)
    seen["ours"] = reports[-1].hyperparameters[0].center / start
    return seen


def permutations_survive_extra_draws() -> dict[str, list[list[int]]]:
    """Each rank's place at five syncs, while rank 1 draws one more number from the global generator between them."""
    from headrace_torch.hdet.designs import assign

    seen: dict[str, list[list[int]]] = {"ours": [], "reference": []}
    with torch.random.fork_rng():
        torch.manual_seed(
            1024
        )  # 4: the constructor seeds every rank alike, and syncs draw from the global generator
        for sync in range(1, 6):
            if dist.get_rank() == 1:
                torch.rand(1)
            drawn = int(torch.randperm(4)[dist.get_rank()])
            counted = assign("permutation", seed=0, sync=sync, names=["0"], n=4)[0][dist.get_rank()]
            for name, place in (("reference", drawn), ("ours", counted)):
                heard: list[Any] = [None] * 4
                dist.all_gather_object(heard, place)
                seen[name].append(heard)
    return seen


def dropout_stays_independent() -> dict[str, bool]:
    """Whether ranks with different seeds still draw different numbers after the constructor."""
    seen = {}
    for name in ("ours", "reference"):
        with torch.random.fork_rng():
            torch.manual_seed(dist.get_rank())
            _, optimizer, settings = made()
            OneCycleAutoLR(optimizer, **settings)
            if name == "reference":
                torch.manual_seed(1024)
            seen[name] = largest_difference(torch.rand(4)) > 0
    return seen


class WritesTensors(OneCycleAutoLR):
    """5: writes zero-dimensional tensors as rates, and leaves OneCycle's momentum where the warm-up ended."""

    def step(self, loss: Any = None) -> Any:
        frozen = [group.get("betas") for group in self.optimizer.param_groups]
        report = super().step(loss)
        if self._ready and self.last_epoch >= self._warmup:
            for group, betas in zip(self.optimizer.param_groups, frozen, strict=True):
                group["lr"], group["betas"] = torch.tensor(float(group["lr"])), betas
        return report


def rates_and_momentum() -> dict[str, tuple[bool, bool]]:
    """Whether the rate is a float after the warm-up, and whether the momentum is OneCycle's."""
    seen = {}
    for name, kind in (("ours", OneCycleAutoLR), ("reference", WritesTensors)):
        parameter, twin = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
        optimizer, plain = Adam([parameter], lr=0.1), Adam([twin], lr=0.1)
        _, _, settings = made(cycle_momentum=True)
        scheduler = kind(optimizer, **settings)
        bare = OneCycleLR(plain, 0.1, 60)
        for _ in range(17):
            optimizer.step()
            scheduler.step(1.0)
            plain.step()
            bare.step()
        group = optimizer.param_groups[0]
        seen[name] = (type(group["lr"]) is float, group["betas"] == plain.param_groups[0]["betas"])
    return seen


class AveragesWhileMade(OneCycleAutoLR):
    """6: takes the base class's first step for a training step, at epoch 0, which every interval divides."""

    def step(self, loss: Any = None) -> Any:
        report = super().step(loss)
        if not self._ready:
            for parameter in self._parameters:
                dist.all_reduce(parameter.data)
                parameter.data.div_(4)
        return report


def warm_init_survives() -> dict[str, float]:
    """How far ranks differ after the constructor, given different noise before it."""
    seen = {}
    for name, kind in (("ours", OneCycleAutoLR), ("reference", AveragesWhileMade)):
        model, optimizer, settings = made()
        warm_init_(model.parameters(), 0.01)
        kind(optimizer, **settings)
        seen[name] = largest_difference(flat(model))
    return seen


def collectives_per_average(tensors: int = 20) -> dict[str, int]:
    """8: how many all-reduces the average of many tensors takes."""
    calls = 0
    real = dist.all_reduce

    def counting(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return real(*arguments, **options)

    parameters = [nn.Parameter(torch.zeros(3)) for _ in range(tensors)]
    _, _, settings = made()
    optimizer = SGD(parameters, lr=0.1)
    scheduler = OneCycleAutoLR(optimizer, **settings)
    seen = {}
    dist.all_reduce = counting
    try:
        for _ in range(5):
            optimizer.step()
            scheduler.step(1.0)
        seen["ours"], calls = calls, 0
        for parameter in parameters:
            dist.all_reduce(parameter.data)
        seen["reference"] = calls
    finally:
        dist.all_reduce = real
    return seen


class LastMicroBatch(OneCycleAutoLR):
    """8: under gradient accumulation sees only what `step` gets, the last micro-batch."""

    def observe(self, loss: Tensor | float, weight: float = 1.0) -> None:
        self._meter.reset()
        super().observe(loss, weight)


def micro_batches() -> dict[str, float]:
    """The loss with which rank 0 is scored, for micro-batches 1, 2, 3 in one step."""
    seen = {}
    for name, kind in (("ours", OneCycleAutoLR), ("reference", LastMicroBatch)):
        _, optimizer, settings = made(model_sync_interval=1)
        scheduler = kind(optimizer, **settings)
        for loss in (1.0, 2.0, 3.0):
            scheduler.observe(loss)
        optimizer.step()
        report = scheduler.step()
        assert report is not None
        assert report.losses[0] is not None
        seen[name] = report.losses[0]
    return seen
