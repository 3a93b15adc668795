"""A trial paused at every rung, and moved to another process each time, computes what an uninterrupted one does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scripted_daemon import Daemon

pytestmark = pytest.mark.full

# Adam's moments, a cosine schedule, dropout, batch statistics, shuffled data (by index and by a generator, across
# the ends of epochs), and draws from every existing generator.
SOURCE = """
import random
import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from headrace import trial

def train(t: trial.Trial) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)  # a script may seed as it likes before its loop
    inputs = torch.randn(50, 6)
    targets = inputs.square().sum(dim=1, keepdim=True)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=t.params["lr"])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=t.max_steps)
    batches = trial.ResumableBatches(len(inputs), 8, seed=t.seed)
    shuffling = torch.Generator().manual_seed(t.seed)
    shuffled = DataLoader(TensorDataset(inputs, targets), batch_size=25, shuffle=True, generator=shuffling)
    noise = numpy.random.default_rng(t.seed)
    t.track(model=model, optimizer=optimizer, lr_scheduler=scheduler)
    t.track(batches=batches, shuffling=shuffling, noise=noise)
    t.state["smooth"] = 0.0
    for _ in t.steps():
        pairs = [(inputs[batch], targets[batch]) for batch in batches.take(3)]
        for x, y in [*pairs, *shuffled]:
            optimizer.zero_grad()
            loss = (model(x + noise.normal(scale=0.01)) - y).square().mean()
            loss.backward()
            optimizer.step()
        scheduler.step()
        t.state["smooth"] = 0.9 * t.state["smooth"] + 0.1 * loss.item()
        luck = random.random() + numpy.random.rand() + torch.rand(())
        t.report(loss=loss, smooth=t.state["smooth"], luck=luck, lr=scheduler.get_last_lr()[0])
"""


def test_paused_at_every_rung_equals_uninterrupted(daemon: Callable[..., Daemon]) -> None:
    rungs = (1, 3, 9)
    straight = daemon(SOURCE, params={"lr": 0.01}, rungs=rungs)
    paused = daemon(SOURCE, params={"lr": 0.01}, rungs=rungs, pauses=rungs)

    assert straight.start().returncode == 0
    for _ in rungs:
        ended = paused.start()
        assert ended.returncode == 0, ended.stderr

    assert [report.step for report in straight.reports] == list(range(1, 10))
    for metric in ("loss", "smooth", "luck", "lr"):
        assert paused.metrics(metric) == straight.metrics(metric)
    assert len(paused.restored) == 2, "two processes began with a checkpoint"
    assert (len(straight.finished), len(paused.finished)) == (1, 3)

    one, other = (torch.load(_state(end), weights_only=True) for end in (straight, paused))
    assert one.keys() == other.keys()
    _assert_same(one, other)


def _state(daemon: Daemon) -> Path:
    assert daemon.checkpoint is not None
    return daemon.checkpoint / "rank-0.pt"


def _assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            _assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        for mine, theirs in zip(one, other, strict=True):
            _assert_same(mine, theirs)
    else:
        assert one == other
