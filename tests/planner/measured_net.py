"""A small net and the trial that times its plans: the code that a user of `--measure` writes."""

import torch
from torch import nn

from headrace.trial import Trial
from headrace_torch.measuring import time_plan
from headrace_torch.profiling import Sample


def make() -> tuple[nn.Sequential, Sample]:
    torch.manual_seed(0)
    middle = [nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)) for _ in range(4)]
    net = nn.Sequential(nn.Linear(16, 64), *middle, nn.Linear(64, 4))
    return net, lambda size: torch.randn(size * 8, 16)


def measure(t: Trial) -> None:
    torch.set_num_threads(1)
    time_plan(t, make)


def half(t: Trial) -> None:
    """Fails if there are stages."""
    if "s=1" not in t.params["split"]:
        raise ValueError("no stages here")
    measure(t)
