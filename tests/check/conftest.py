"""A script to check, in forked processes (`forked.py`); one test uses the processes of `headrace check` itself."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import launch_segment

from headrace.check import CheckReport, run_check

sys.path.insert(0, str(Path(__file__).parent.parent / "trial"))  # the programs that leak

BASE = """
import random
import numpy
import torch
from torch import nn
from headrace import trial

def train(t):
    torch.set_num_threads(1)
    inputs = torch.arange(60.0).reshape(20, 3).sin()
    targets = inputs.sum(dim=1, keepdim=True)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=t.params["lr"])
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=t.max_steps)
    batches = trial.ResumableBatches(len(inputs), 4, seed=t.seed)
    noise = torch.Generator().manual_seed(t.seed)
    t.track(model=model, optimizer=opt, lr_scheduler=sched, batches=batches, noise=noise)
    for epoch in t.steps():
        for batch in batches.take(3):
            opt.zero_grad()
            blurred = inputs[batch] + 0.1 * torch.randn(len(batch), 3, generator=noise)
            loss = (model(blurred) - targets[batch]).square().mean()
            loss.backward()
            opt.step()
        sched.step()
        t.report(loss=loss, luck=random.random() + numpy.random.rand())

if __name__ == "__main__":
    trial.main(train, defaults={"lr": 0.05}, steps=6)
"""


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., CheckReport]:
    """Checks the base script with each (old, new) replaced, or a different script."""

    def run(*changes: tuple[str, str], source: str = BASE, **options: object) -> CheckReport:
        for old, new in changes:
            assert old in source, f"the base script has no {old!r}"
            source = source.replace(old, new)
        script = tmp_path / "script.py"
        script.write_text(source)
        options.setdefault("steps", 3)  # enough for most faults, and quick
        options.setdefault("limit_s", 6000.0)
        return run_check(script, launch=launch_segment, **options)  # type: ignore[arg-type]  # passed on

    return run
