"""Data that a model soon learns by heart: half of its labels are random, so the validation loss rises again."""

import os
import time

import torch
from torch import Tensor

BATCH_S = float(os.environ.get("BATCH_S", "0"))
"""The minimum duration of a batch: a process must be caught at work to be killed there."""
FEATURES, CLASSES, LEARNT, JUDGED = 16, 5, 192, 128


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs and labels for training, then those for validation."""
    drawn = torch.Generator().manual_seed(2718)
    inputs = torch.randn(LEARNT + JUDGED, FEATURES, generator=drawn)
    labels = (inputs @ torch.randn(FEATURES, CLASSES, generator=drawn)).argmax(1)
    by_lot = torch.rand(len(labels), generator=drawn) < 0.5
    labels[by_lot] = torch.randint(CLASSES, (int(by_lot.sum()),), generator=drawn)
    return inputs[:LEARNT], labels[:LEARNT], inputs[LEARNT:], labels[LEARNT:]


class Lingering(torch.nn.Module):
    """Waits for a while with each training batch."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs unchanged."""
        if self.training:
            time.sleep(BATCH_S)
        return inputs


def network() -> torch.nn.Module:
    """Large enough to learn the labels by heart."""
    return torch.nn.Sequential(
        Lingering(),
        torch.nn.Linear(FEATURES, 64),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(64, CLASSES),
    )
