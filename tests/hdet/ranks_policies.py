"""What ranks do in the tests of policies: what is merged at a sync, and whose loss counts."""

from typing import Any

import torch
import torch.distributed as dist
from ranks_tasks import flat, gathered, largest_difference, network
from torch import nn
from torch.optim import SGD, Adam

from headrace_torch.hdet import (
    HDETController,
    OneCycleAutoLR,
    SyncReport,
    learning_rates,
    warm_init_,
)


def buffers(policy: str) -> dict[str, list[float]]:
    """Gives each rank its own BatchNorm statistics, and returns all ranks' before and after a sync."""
    model = network(0, norm=True)
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    assert norm.num_batches_tracked is not None
    norm.running_mean.fill_(float(dist.get_rank()))
    norm.num_batches_tracked.fill_(10 + dist.get_rank())
    optimizer = SGD(model.parameters(), lr=0.1)
    controller = HDETController(
        model,
        optimizer,
        learning_rates(optimizer),
        sync_every=1,
        buffers=policy,  # type: ignore[arg-type]
    )
    controller.observe(1.0)
    controller.after_step()
    return {"mean": gathered(float(norm.running_mean[0])), "count": gathered(float(norm.num_batches_tracked))}


def optimizer_state(policy: str) -> list[float]:
    """Returns all ranks' first moment after a sync; before it the values were 1, 2, 3, 4. −1 means that there is
    none."""
    model = nn.Linear(2, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    optimizer = Adam(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    for parameter in model.parameters():
        optimizer.state[parameter]["exp_avg"].fill_(float(dist.get_rank() + 1))
    controller = HDETController(
        model,
        optimizer,
        learning_rates(optimizer),
        sync_every=1,
        optimizer_state=policy,  # type: ignore[arg-type]
    )
    controller.after_step()
    state = optimizer.state.get(model.weight, {})
    return gathered(float(state["exp_avg"][0, 0]) if "exp_avg" in state else -1.0)


def accumulated() -> list[float | None]:
    """Two micro-batches of weights 1 and 3 per step, two steps; returns the losses of the sync."""
    model, optimizer = _linear()
    controller = HDETController(model, optimizer, learning_rates(optimizer), sync_every=2)
    report = None
    for step in range(2):
        controller.observe(10.0 + dist.get_rank() + step, weight=1)
        controller.observe(torch.tensor(20.0 + dist.get_rank() + step), weight=3)
        optimizer.step()
        report = controller.after_step()
    assert report is not None
    return list(report.losses)


def accumulated_drop_in() -> list[float | None]:
    """The same through the drop-in: all micro-batches count, not only the last."""
    _, optimizer = _linear()
    scheduler = OneCycleAutoLR(
        optimizer, 0.1, 10, cycle_momentum=False, ensemble_lr_spread_ratio=0.1, model_sync_interval=2
    )
    report = None
    for step in range(2):
        scheduler.observe(10.0 + dist.get_rank() + step)
        scheduler.observe(20.0 + dist.get_rank() + step)
        optimizer.step()
        report = scheduler.step()
    assert report is not None
    return list(report.losses)


def with_losses(losses: list[float | None], api: str) -> tuple[str, float]:
    """One sync with given losses; returns the report and the largest difference of rates' centres over ranks."""
    model, optimizer = _linear()
    mine = losses[dist.get_rank()]
    report: SyncReport | None
    if api == "controller":
        controller = HDETController(model, optimizer, learning_rates(optimizer), sync_every=1)
        if mine is not None:
            controller.observe(mine)
        optimizer.step()
        report = controller.after_step()
    else:
        scheduler = OneCycleAutoLR(
            optimizer,
            0.1,
            10,
            cycle_momentum=False,
            ensemble_lr_spread_ratio=0.1,
            model_sync_interval=1,
            auto_lr_warmup_steps=0,
            enable_auto_lr=True,
        )
        optimizer.step()
        report = scheduler.step(mine)
    assert report is not None
    center = torch.tensor([report.hyperparameters[0].center], dtype=torch.float64)
    return report.to_json(), largest_difference(center)


def diverged_parameters() -> tuple[list[int], list[float]]:
    """Rank 2's parameters become NaN under local gradients; returns who was left out, and all ranks' values
    afterwards."""
    model, optimizer = _linear()
    controller = HDETController(
        model, optimizer, learning_rates(optimizer), sync_every=1, mode="local_grad", optimizer_state="keep"
    )
    with torch.no_grad():
        model.weight.fill_(float("nan") if dist.get_rank() == 2 else float(dist.get_rank()))
    controller.observe(float("nan") if dist.get_rank() == 2 else 1.0)
    report = controller.after_step()
    assert report is not None
    return list(report.left_out), gathered(float(model.weight.detach()[0, 0]))


def masters() -> dict[str, Any]:
    """A bfloat16 model with float32 master weights that differ by less than bfloat16 resolves."""
    low = nn.Linear(4, 1, bias=False, dtype=torch.bfloat16)
    master = nn.Parameter(torch.ones(1, 4) + 1e-4 * dist.get_rank())
    with torch.no_grad():
        low.weight.copy_(master)
    optimizer = SGD([master], lr=0.1)
    controller = HDETController(
        low, optimizer, learning_rates(optimizer), sync_every=1, masters=[(low.weight, master)]
    )
    controller.after_step()
    return {
        "master": float(master.detach()[0, 0]),
        "low": float(low.weight.detach()[0, 0]),
        "apart": largest_difference(low.weight.float()),
    }


def half_precision() -> float:
    """Parameters in float16 whose sum overflows float16: the mean is computed in float32."""
    model = nn.Linear(1, 1, bias=False).half()
    with torch.no_grad():
        model.weight.fill_(40000.0 + 64 * dist.get_rank())
    optimizer = SGD(model.parameters(), lr=0.1)
    HDETController(model, optimizer, learning_rates(optimizer), sync_every=1).after_step()
    return float(model.weight.detach())


def warm_init(scope: str) -> dict[str, Any]:
    """Returns how far each rank moved, relative to ν times the norm, and whether the noise survived the
    constructor."""
    model = network(6)
    before = flat(model)
    state = torch.get_rng_state()
    warm_init_(model.parameters(), 0.01, seed=2, scope=scope)  # type: ignore[arg-type]
    untouched = bool(torch.equal(state, torch.get_rng_state()))
    warm = flat(model)
    optimizer = SGD(model.parameters(), lr=0.1)
    OneCycleAutoLR(optimizer, 0.1, 100, cycle_momentum=False, ensemble_lr_spread_ratio=0.1)
    return {
        "ratio": float((warm - before).norm() / before.norm()) / 0.01,
        "survived": bool(torch.equal(flat(model), warm)),
        "apart": largest_difference(warm) > 0,
        "untouched": untouched,
    }


def _linear() -> tuple[nn.Linear, SGD]:
    model = nn.Linear(2, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    return model, SGD(model.parameters(), lr=0.1)
