"""The cost of giving each member state of its own: a loss that counts and records, against the same loss without.

    python benchmarks/hydro/remembering.py [--members 8]

One thread; the best of fifteen rounds of twenty steps, by the thread's own clock.
"""

import argparse
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace_torch import hydro


class Plain:
    """Keeps no state."""

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """Cross-entropy."""
        return functional.cross_entropy(model(batch[0]), batch[1])


class Counts(Plain):
    """Counts its calls, and keeps a list of them."""

    def __init__(self) -> None:
        """Starts with a count of zero."""
        self.calls = 0
        self.kept: list[int] = []

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """Cross-entropy."""
        self.calls += 1
        self.kept.append(self.calls)
        return super().__call__(model, batch)


def mlp() -> nn.Module:
    """Three layers."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def step_us(engine: Any, loss: Plain, members: int) -> float:
    """Microseconds per step of the whole group."""
    batch = torch.randn(32, 64), torch.randint(10, (32,))
    group = hydro.fuse(mlp, [{"lr": 1e-3, "seed": seed} for seed in range(members)], engine=engine)
    best = float("inf")
    for _ in range(16):
        begun = time.thread_time()
        for _ in range(20):
            group.step(batch, loss)
        best = min(best, (time.thread_time() - begun) / 20)
    return best * 1e6


def main() -> None:
    """Prints one row per engine."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=8)
    members: int = parser.parse_args().members
    torch.set_num_threads(1)
    for engine in ("grouped", "separate"):
        plain, counts = (step_us(engine, loss, members) for loss in (Plain(), Counts()))
        print(f"{engine}, {members} members: {plain:.0f} µs a step, {counts:.0f} µs where the loss counts")


if __name__ == "__main__":
    main()
