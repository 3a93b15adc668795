"""Bad input, on all ranks or on one: what each rank is told."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from ranks_tasks import loss_on, network, samples
from torch import nn
from torch.optim import SGD

from headrace_torch.hdet import (
    HDETController,
    HdetError,
    LogSpaceRule,
    OneCycleAutoLR,
    Probe,
    ScalarHyperparameter,
    dropout,
    learning_rates,
)


def one_cycle(only_rank: int | None = None, **wrong: Any) -> str:
    """Makes a drop-in with one wrong setting on all ranks, or on one only; returns what this rank is told."""
    settings: dict[str, Any] = {
        "max_lr": 0.1,
        "total_steps": 100,
        "cycle_momentum": False,
        "ensemble_lr_spread_ratio": 0.1,
        "model_sync_interval": 5,
        "auto_lr_warmup_steps": 10,
        "enable_auto_lr": True,
    }
    if only_rank is None or only_rank == dist.get_rank():
        settings |= wrong
    optimizer = SGD(network().parameters(), lr=0.1)
    return told(lambda: OneCycleAutoLR(optimizer, **settings))


def controller(only_rank: int | None = None, **wrong: Any) -> str:
    """The same for a controller. Some settings are given by name and made here, since they cannot be pickled."""
    mine = only_rank is None or only_rank == dist.get_rank()
    model = network(dropout=0.1)
    optimizer = SGD(model.parameters(), lr=0.1)
    rates: dict[str, Any] = {}
    settings: dict[str, Any] = {"sync_every": 5}
    explored: list[ScalarHyperparameter] = []
    if mine:
        named = {key: wrong.pop(key) for key in list(wrong) if key in ("spread", "low", "high")}
        rates |= named
        if wrong.pop("out_of_bounds", False):
            explored.append(
                ScalarHyperparameter("x", lambda: 5.0, lambda _v: None, "identity", 0.0, 1.0, 0.1)
            )
        if wrong.pop("twice", False):
            explored += learning_rates(optimizer)
        if wrong.pop("dropout", False):
            explored.append(dropout(model))
        if "cap" in wrong:
            settings["rule"] = LogSpaceRule(cap=wrong.pop("cap"))
        settings |= wrong
    return told(
        lambda: HDETController(model, optimizer, [*learning_rates(optimizer, **rates), *explored], **settings)
    )


def probe(kind: str) -> str:
    """A probe that fails on one rank, or sees another batch there; returns what each rank is told at the sync."""
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)

    def batch(sync: int) -> Any:
        if kind == "fails" and dist.get_rank() == 2:
            raise OSError("the disk is gone")
        return samples(sync, dist.get_rank() if kind == "differs" else None)

    made = HDETController(
        model, optimizer, learning_rates(optimizer), sync_every=1, score=Probe(model, batch, loss_on)
    )
    return told(made.after_step)


def all_diverged() -> str:
    """Every replica's parameters are NaN at a sync."""
    model = nn.Linear(2, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    made = HDETController(
        model, optimizer := SGD(model.parameters(), lr=0.1), learning_rates(optimizer), sync_every=1
    )
    with torch.no_grad():
        model.weight.fill_(float("nan"))
    return told(made.after_step)


def resume(api: str, kind: str) -> str:
    """Loads a state that does not fit; returns what each rank is told."""
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)

    def make(interval: int = 5) -> Any:
        if api == "controller":
            return HDETController(model, optimizer, learning_rates(optimizer), sync_every=interval)
        return OneCycleAutoLR(
            optimizer,
            0.1,
            100,
            cycle_momentum=False,
            ensemble_lr_spread_ratio=0.1,
            model_sync_interval=interval,
            auto_lr_warmup_steps=2,
            enable_auto_lr=True,
        )

    first = make()
    for _ in range(3):
        optimizer.step()
        first.after_step() if api == "controller" else first.step(1.0)
    state = first.state_dict()
    own = state if api == "controller" else state["hdet"]
    if kind == "world size":
        own["replicas"] = 8
    if kind == "cut" and dist.get_rank() == 1:
        del own["loss_total"]
    if kind == "rank":
        own["replica"] = 0
    if kind == "mixed" and dist.get_rank() == 2:
        state["steps" if api == "controller" else "last_epoch"] = 2
    if kind == "words" and dist.get_rank() == 1:
        state["steps" if api == "controller" else "last_epoch"] = "three"
    if kind == "loss" and dist.get_rank() == 1:
        own["loss_total"] = None
    if kind == "short" and dist.get_rank() == 1:
        own["starts" if api == "controller" else "orders"] = []
    if kind == "nothing" and dist.get_rank() == 1:
        state = None
    return told(lambda: make(6 if kind == "settings" else 5).load_state_dict(state))


def other_groups() -> str:
    """Rank 2's optimizer has one more parameter group; returns what the drop-in tells each rank."""
    model = network()
    parts = list(model.parameters())
    split = [parts[:2], parts[2:]] if dist.get_rank() == 2 else [parts]
    optimizer = SGD([{"params": part} for part in split], lr=0.1)
    return told(
        lambda: OneCycleAutoLR(optimizer, 0.1, 100, cycle_momentum=False, ensemble_lr_spread_ratio=0.1)
    )


def told(action: Callable[[], object]) -> str:
    """The text of the raised error, or `nothing`."""
    try:
        action()
    except HdetError as error:
        return str(error)
    return "nothing"
