"""A small network on scikit-learn's handwritten digits, many trials in one process: 1797 images of 8 x 8 pixels.

By hand, three trials:   python train.py --lr 0.001,0.003,0.01
Tune it, fused:          headrace run study.yaml
The same, unfused:       headrace run unfused.yaml
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headrace import trial
from headrace_torch import hydro

DEFAULTS = {"lr": 1e-3, "weight_decay": 1e-2}
EPOCHS = 27


def load_data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same split for every trial: 1197 images for training, 600 for validation."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(2718))
    val, train = order[:600], order[600:]
    return images[train], labels[train], images[val], labels[val]


def make_model() -> nn.Module:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean over one trial's batch."""
    return cross_entropy(model(batch[0]), batch[1])


def validate(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """A plain model's loss on images that it has not seen."""
    model.eval()
    with torch.no_grad():
        return float(cross_entropy(model(images), labels))


def train(bundle: trial.Bundle) -> None:
    """Train all trials of a bundle, each from its first epoch or from where it was paused."""
    torch.set_num_threads(1)  # several bundles share this machine
    images, labels, val_images, val_labels = load_data()
    group = hydro.fuse(bundle.model(make_model), optimizer="adamw")  # empty: trials join and leave
    batches = hydro.EpochBatches(group, images, labels, batch_size=32, seed=7)
    bundle.track(group=group)
    for _turn in bundle.steps():
        for batch in batches:  # an epoch of each trial's own
            group.step(batch, loss_of)
        bundle.report(
            val_loss=[validate(group.member_model(one), val_images, val_labels) for one in group.ids]
        )


if __name__ == "__main__":
    trial.main(train, defaults=DEFAULTS, steps=EPOCHS)
