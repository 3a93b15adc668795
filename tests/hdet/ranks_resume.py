"""What ranks do in the tests of resuming: a run whose every future step depends on everything in a checkpoint."""

import copy
import io
from typing import Any, Literal

import torch
import torch.distributed as dist
from ranks_tasks import flat, network, samples, shared_step
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from headrace_torch.hdet import HDETController, HDETScheduler, OneCycleAutoLR, learning_rates

Api = Literal["one_cycle", "controller"]


def resumed_equals_straight(api: Api, at: int, steps: int = 16, interval: int = 5) -> bool:
    """Trains straight through, and again with a save at step `at` loaded into fresh objects; compares every bit of
    both."""
    straight = _Run(api, interval)
    straight.train(0, steps)
    first = _Run(api, interval)
    first.train(0, at)
    file = io.BytesIO()
    torch.save(first.state(), file)
    file.seek(0)
    second = _Run(api, interval, seed=99)  # different weights, until the checkpoint is loaded
    second.load(torch.load(file, weights_only=True))
    second.train(at, steps)
    return straight.outcome() == second.outcome()


class _Run:
    """A run with dropout and Adam."""

    def __init__(self, api: Api, interval: int, seed: int = 4) -> None:
        with torch.random.fork_rng():
            self.model = network(seed, norm=True, dropout=0.2)
        self.optimizer: Optimizer = Adam(self.model.parameters(), lr=0.01)
        self.scheduler: OneCycleAutoLR | HDETScheduler
        torch.manual_seed(dist.get_rank())
        if api == "one_cycle":
            self.scheduler = OneCycleAutoLR(
                self.optimizer,
                max_lr=0.05,
                total_steps=100,
                ensemble_lr_spread_ratio=0.3,
                model_sync_interval=interval,
                auto_lr_warmup_steps=3,
                enable_auto_lr=True,
                loss_scale=0.1,
            )
        else:
            controller = HDETController(
                self.model, self.optimizer, learning_rates(self.optimizer, spread=0.3), sync_every=interval
            )
            self.scheduler = HDETScheduler(CosineAnnealingLR(self.optimizer, T_max=100), controller)

    def train(self, start: int, end: int) -> None:
        for step in range(start, end):
            loss = shared_step(self.model, self.optimizer, samples(step, dist.get_rank()))
            self.scheduler.step(loss)

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "rng": torch.get_rng_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["rng"])

    def outcome(self) -> tuple[bytes, str, str]:
        return (
            flat(self.model).numpy().tobytes(),
            repr(self.optimizer.state_dict()),
            repr(copy.deepcopy(self.scheduler.state_dict())),
        )
