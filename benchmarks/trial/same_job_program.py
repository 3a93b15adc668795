"""The job of `same_job.py`: a small network on scikit-learn's handwritten digits, 1797 images of 8 x 8 pixels.

It needs PyTorch and scikit-learn alone. The data is loaded with the module, so a process that runs several trials
loads it once, whatever the tool.
"""

import os
from typing import TYPE_CHECKING

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

if TYPE_CHECKING:
    from headrace.trial import Trial

RUNGS = (1, 3, 9, 27)
EPOCHS = RUNGS[-1]
LR = (1e-4, 1e-1)
WEIGHT_DECAY = (1e-4, 1.0)
"""The space: both uniform in the logarithm, and neither changes what an epoch costs."""
BATCH = 20
EPOCHS_FILE = "SAME_JOB_EPOCHS"
"""The variable that names the file to which each epoch adds a line: its number and its loss."""


def load_data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same split for every trial: 1197 images for training, 600 for validation."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(2718))
    val, train = order[:600], order[600:]
    return images[train], labels[train], images[val], labels[val]


torch.set_num_threads(1)
IMAGES, LABELS, VAL_IMAGES, VAL_LABELS = load_data()


def make_model() -> nn.Module:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def validate(model: nn.Module) -> float:
    """The loss on images that the model has not seen."""
    model.eval()
    with torch.no_grad():
        return float(cross_entropy(model(VAL_IMAGES), VAL_LABELS))


def note_epoch(epoch: int, loss: float) -> None:
    """Adds a line to the turn's file, in one write."""
    with open(os.environ[EPOCHS_FILE], "a") as file:  # noqa: PTH123  (as cheap as possible)
        file.write(f"{epoch} {loss}\n")


class Training:
    """One configuration in training."""

    def __init__(self, *, lr: float, weight_decay: float, seed: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.model = make_model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=weight_decay)
        self._seed = seed

    def epoch(self, number: int) -> float:
        """Trains an epoch, counted from 1; returns the validation loss. The order of the images depends on the seed
        and the number alone."""
        order = torch.randperm(
            len(IMAGES), generator=torch.Generator().manual_seed(self._seed % 2**31 * 64 + number)
        )
        self.model.train()
        for batch in torch.split(order, BATCH):
            self.optimizer.zero_grad()
            cross_entropy(self.model(IMAGES[batch]), LABELS[batch]).backward()
            self.optimizer.step()
        loss = validate(self.model)
        note_epoch(number, loss)
        return loss


def train(t: "Trial") -> None:
    """The job as a trial of Headrace, in a process of its own or after others."""
    training = Training(lr=t.params["lr"], weight_decay=t.params["weight_decay"], seed=t.seed)
    t.track(model=training.model, optimizer=training.optimizer)
    for epoch in t.steps():
        t.report(val_loss=training.epoch(epoch))
