"""A small GPT on the text of Python's standard library: tuned on copies 16 times narrower, many in one process.

Tune it:                  headrace run study.yaml
By hand, three trials:    python train.py --lr 0.001,0.004,0.016
"""

from itertools import islice
from typing import Any

import torch
from data import Batch, Text
from models import GPT
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headrace import trial
from headrace_torch import hydro

DEFAULTS = {"lr": 4e-3, "warmup": 0.1, "beta1": 0.9}
STEPS = 9
BATCHES, ROWS = 10, 8  # of a step, and of a batch


def make_model(width: int = 128) -> GPT:
    """The model: 128 wide, with 16 heads. A narrower one has fewer heads of the same width."""
    return GPT(width=width, depth=2, head_width=8)


def some_text() -> Tensor:
    """A batch as the model takes it, for the gate's check."""
    return Text().batch(0, 4)[0]


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """The mean cross-entropy of all predictions, in nats."""
    return cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def settings_of(member: trial.Member) -> dict[str, Any]:
    """A trial as `fuse` takes it: its rate rises linearly, then follows a cosine down to the end of the full
    budget."""
    updates = member.max_steps * BATCHES
    rise = round(member.params["warmup"] * updates)
    fall = hydro.Cosine(steps=updates - rise)
    schedule = hydro.WarmUp(steps=rise, start=0.01, after=fall) if rise else fall
    betas = (member.params["beta1"], 0.99)
    return {"lr": member.params["lr"], "betas": betas, "schedule": schedule, "seed": member.seed}


@torch.no_grad()
def validate(model: nn.Module, batch: Batch) -> float:
    """The loss on text that no trial trains on."""
    return float(loss_of(model.eval(), batch))


def train(bundle: trial.Bundle) -> None:
    """Train all trials of a bundle. In the study they train small copies; in the transfer study, the model itself."""
    torch.set_num_threads(1)  # several bundles share this machine
    text = Text()
    group = hydro.fuse(bundle.model(make_model), optimizer="adam")  # empty: trials join and leave
    batches = hydro.EpochBatches(group, *text.train, batch_size=ROWS, seed=7)
    bundle.track(group=group, member=settings_of)
    for _turn in bundle.steps():
        for batch in islice(batches, BATCHES):  # each trial's own next ones
            group.step(batch, loss_of)
        bundle.report(val_loss=[validate(group.member_model(one), text.validation) for one in group.ids])


if __name__ == "__main__":
    trial.main(train, defaults=DEFAULTS, steps=STEPS)
