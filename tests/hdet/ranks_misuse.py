"""Wrong uses that show only in the course of training: what each rank is told, after how many steps."""

import io
from collections import UserDict
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from ranks_inputs import told
from ranks_tasks import flat, largest_difference, loss_on, network, samples, shared_step
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.optim.lr_scheduler import ConstantLR, StepLR

from headrace_torch.hdet import (
    HDETController,
    HDETScheduler,
    OneCycleAutoLR,
    Probe,
    learning_rates,
    weight_decay,
)


def drop_in(optimizer: Any, **changes: Any) -> OneCycleAutoLR:
    """A drop-in that syncs every third step."""
    settings: dict[str, Any] = {
        "max_lr": 0.1,
        "total_steps": 60,
        "cycle_momentum": False,
        "ensemble_lr_spread_ratio": 0.3,
        "model_sync_interval": 3,
        "auto_lr_warmup_steps": 1,
        "enable_auto_lr": True,
    }
    return OneCycleAutoLR(optimizer, **(settings | changes))


def gradients(api: str, wrapped: bool, mode: str = "shared_grad") -> tuple[int, str]:
    """Trains with or without DDP; returns after how many steps this rank was told what."""
    bare = network(0)
    model = DistributedDataParallel(bare) if wrapped else bare
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    step: Any
    if api == "one_cycle":
        step = drop_in(optimizer).step
    else:
        explored = learning_rates(optimizer) if mode == "shared_grad" else [weight_decay(optimizer)]
        made = HDETController(model, optimizer, explored, sync_every=3, mode=mode)
        step = lambda _loss: made.after_step()  # noqa: E731 - one of three ways to step, chosen by the case
    for number in range(1, 8):
        loss = loss_on(model, samples(number, dist.get_rank()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (text := told(lambda: step(loss))) != "nothing":  # noqa: B023  called at once
            return number, text
    return number, "nothing"


def schedules(kind: str) -> tuple[int, str]:
    """Ranks whose schedules differ from the start, or from a later step on; returns after how many steps they are
    told."""
    mine = dist.get_rank() == 2
    model = network(0)
    optimizer = SGD(model.parameters(), lr=0.2 if kind == "rate" and mine else 0.1)
    controller = HDETController(model, optimizer, learning_rates(optimizer), sync_every=4)
    base: Any = StepLR(optimizer, 3 if kind == "later" and mine else 100)
    if kind == "class" and mine:
        base = ConstantLR(optimizer, 1.0)
    made: list[HDETScheduler] = []
    text = told(lambda: made.append(HDETScheduler(base, controller)))
    if text != "nothing":
        return 0, text
    for number in range(1, 9):
        shared_step(model, optimizer, samples(number, dist.get_rank()))
        if (text := told(made[0].step)) != "nothing":
            return number, text
    return number, "nothing"


def probed(kind: str, differ: bool) -> str:
    """A probe on a batch without a tensor; on rank 1 it is the same or another one."""
    model = network(0)
    optimizer = SGD(model.parameters(), lr=0.1)
    values = np.arange(3.0) + (1 if differ and dist.get_rank() == 1 else 0)
    batch = {"numpy": values, "userdict": UserDict(x=[values, "text"])}[kind]
    probe = Probe(model, lambda _sync: batch, lambda _model, _batch: torch.tensor(1.0))
    made = HDETController(model, optimizer, learning_rates(optimizer), sync_every=1, score=probe)
    return told(made.after_step)


def steps_apart(api: str) -> str:
    """Ranks that sync after different numbers of steps, and know nothing of each other in between."""
    model = network(0)
    optimizer = SGD(model.parameters(), lr=0.1)
    if api == "one_cycle":
        scheduler = drop_in(optimizer)
        scheduler.last_epoch += 3 if dist.get_rank() == 1 else 0
        step = scheduler.step
    else:
        controller = HDETController(model, optimizer, learning_rates(optimizer), sync_every=3)
        controller._steps += 3 if dist.get_rank() == 1 else 0
        step = controller.after_step
    for _ in range(3):
        optimizer.step()
        text = told(step)
    return text


def loaded_before_ddp(api: str, before: bool) -> str:
    """Resumes in mid-interval; the model's state is loaded before or after DDP wraps it."""
    state, scheduler_state = _interrupted(api, at=4)
    bare = network(9)
    if before:
        bare.load_state_dict(state)
    model = DistributedDataParallel(bare)
    if not before:
        bare.load_state_dict(state)
    made = _made(api, model, SGD(model.parameters(), lr=0.1))
    return told(lambda: made.load_state_dict(scheduler_state))


def one_file_for_all(api: str) -> tuple[list[float], float, bool]:
    """Saves at a sync point, and loads rank 0's file on all ranks.

    Returns this rank's rates before and after, the largest difference between ranks' parameters at the next sync,
    and whether the resumed run equals the one that was saved.
    """
    model = network(0)
    optimizer = SGD(model.parameters(), lr=0.1)
    made = _made(api, model, optimizer)
    for step in range(6):
        shared_step(model, optimizer, samples(step, dist.get_rank()))
        made.step(float(dist.get_rank()))
    file: list[Any] = [None]
    if dist.get_rank() == 0:
        held = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict(), made.state_dict()], held)
        file[0] = held.getvalue()
    dist.broadcast_object_list(file)
    parts = torch.load(io.BytesIO(file[0]), weights_only=True)
    again = network(9)
    other = SGD(again.parameters(), lr=0.1)
    resumed = _made(api, again, other)
    again.load_state_dict(parts[0])
    other.load_state_dict(parts[1])
    resumed.load_state_dict(parts[2])
    rates = [optimizer.param_groups[0]["lr"], other.param_groups[0]["lr"], *resumed.get_last_lr()]
    for step in range(6, 8):
        for one, its, scheduler in ((model, optimizer, made), (again, other, resumed)):
            shared_step(one, its, samples(step, dist.get_rank()))
            scheduler.step(float(dist.get_rank()))
    return rates, largest_difference(flat(model)), torch.equal(flat(model), flat(again))


def nothing_to_load() -> str:
    """Rank 1 has lost its state."""
    model = network(0)
    made = _made("controller", model, SGD(model.parameters(), lr=0.1))
    state = {} if dist.get_rank() == 1 else made.state_dict()
    return told(lambda: made.load_state_dict(state))


def factor_moves(signal: bool) -> tuple[list[float], bool]:
    """Gives ranks losses without a signal, or losses by which the highest rate is best, under a rising, then
    falling cycle.

    Returns the factor on the schedule's rate after each sync, and whether the run without a signal matched
    OneCycle.
    """
    optimizer, plain = (SGD(network(0).parameters(), lr=0.1) for _ in range(2))
    made = drop_in(optimizer, total_steps=200, ensemble_lr_spread_ratio=0.2)
    bare = torch.optim.lr_scheduler.OneCycleLR(plain, 0.1, 200, cycle_momentum=False)
    factors, equal = [], True
    for _ in range(199):
        rho = optimizer.param_groups[0]["lr"] / plain.param_groups[0]["lr"]
        optimizer.step()
        plain.step()
        bare.step()
        report = made.step(-rho if signal else 1.0)
        if report is not None:
            factors.append(report.hyperparameters[0].center / plain.param_groups[0]["lr"])
            equal &= report.hyperparameters[0].center == plain.param_groups[0]["lr"]
    return factors, equal


def _interrupted(api: str, at: int) -> tuple[dict[str, Any], dict[str, Any]]:
    model = DistributedDataParallel(network(0))
    optimizer = SGD(model.parameters(), lr=0.1)
    made = _made(api, model, optimizer)
    for step in range(at):
        loss = loss_on(model, samples(step, dist.get_rank()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        made.step(loss)
    return {key: value.clone() for key, value in model.module.state_dict().items()}, made.state_dict()


def _made(api: str, model: nn.Module, optimizer: Any) -> Any:
    if api == "one_cycle":
        return drop_in(optimizer)
    controller = HDETController(model, optimizer, learning_rates(optimizer, spread=0.3), sync_every=3)
    return HDETScheduler(ConstantLR(optimizer, factor=1.0), controller)
