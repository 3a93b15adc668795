"""Without PyTorch, checkpoints are JSON, and resuming is just as exact."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted_daemon import Daemon

SOURCE = """
import random
import sys
import numpy
from headrace import trial

class Weights:
    def __init__(self):
        self.values = numpy.zeros(3)
    def state_dict(self):
        return {"values": self.values}
    def load_state_dict(self, state):
        self.values = state["values"]

def train(t):
    try:
        import torch
    except ImportError:
        pass
    weights, batches, own = Weights(), trial.ResumableBatches(7, 2, seed=t.seed), random.Random(5)
    t.track(weights=weights, batches=batches, own=own)
    t.state["best"] = (float("inf"), {0: b"\\x00\\xff"})
    for step in t.steps():
        for batch in batches.take(3):
            luck = random.gauss(0, 1) + numpy.random.randn(3) + own.random()
            weights.values += numpy.array(batch[:1]) * 0.1 + luck
        t.state["best"] = (min(t.state["best"][0], abs(weights.values).sum()), {step: b"\\x00\\xff"})
        t.report(loss=weights.values.sum(), best=t.state["best"][0], kept=t.state["best"][1] == {step: b"\\x00\\xff"})
    assert sys.modules.get("torch") is None
"""


@pytest.fixture
def no_torch(tmp_path: Path) -> str:
    """A folder for PYTHONPATH in which importing PyTorch fails."""
    (tmp_path / "torch.py").write_text("raise ImportError('no PyTorch here')")
    return str(tmp_path)


@pytest.mark.full
def test_json_checkpoints_are_exact(daemon: Callable[..., Daemon], no_torch: str) -> None:
    straight = daemon(SOURCE, rungs=(1, 2, 5), python_path=no_torch)
    paused = daemon(SOURCE, rungs=(1, 2, 5), pauses=(1, 2), python_path=no_torch)
    assert straight.start().returncode == 0
    for _ in range(3):
        ended = paused.start()
        assert ended.returncode == 0, ended.stderr
    for metric in ("loss", "best", "kept"):
        assert paused.metrics(metric) == straight.metrics(metric)
    assert paused.checkpoint is not None
    assert [path.name for path in paused.checkpoint.iterdir()] == ["rank-0.json"]
    assert json.loads((paused.checkpoint / "rank-0.json").read_text())["step"] == 5
