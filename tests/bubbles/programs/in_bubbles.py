"""A trial of a study in bubbles: linear models in double precision, fused, through the gate of a stage."""

import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from headrace import trial
from headrace_torch import hydro
from headrace_torch.bubbles import Gate, watch


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def train(bundle: trial.Bundle) -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(16, 4, dtype=torch.float64, generator=generator)
    batch = (x, x.sum(1, keepdim=True).sin())
    group = hydro.fuse(bundle.model(make_model), optimizer="adamw")
    bundle.track(group=group)
    # Not in the kernel's idle class: other tests use the cores.
    with Gate.from_environment(idle_priority=False) as gate:
        watch(gate, group)
        for _turn in bundle.steps():
            losses = group.step(batch, loss_of)
            with gate.aside():
                bundle.report(loss=losses.tolist())
                while not Path(os.environ["GO_ON"]).exists():
                    time.sleep(0.02)
