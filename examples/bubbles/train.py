"""The trial: a small network on handwritten digits, several configurations fused into one, through the gate of a stage.

By hand, three of them:  python train.py --lr 0.001,0.003,0.01
In bubbles:              run.py, or `headrace run study.yaml` beside a worker with --bubbles

By hand and on an ordinary slot its gate is always open.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headrace import trial
from headrace_torch import hydro
from headrace_torch.bubbles import join

DEFAULTS = {"lr": 1e-3, "weight_decay": 1e-2}
EPOCHS = 9
WIDTH, ROWS = 64, 32


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
        nn.Flatten(),
        nn.Linear(64, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, 10),
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
    """Trains all trials of a bundle, each from its first epoch or from where it was paused."""
    torch.set_num_threads(1)
    images, labels, val_images, val_labels = load_data()
    group = hydro.fuse(bundle.model(make_model), optimizer="adamw")  # empty: trials join and leave
    batches = hydro.EpochBatches(group, images, labels, batch_size=ROWS, seed=7)
    bundle.track(group=group)
    with join(group) as gate:  # from here on it works while the stage waits
        judged = gate.new_point()
        for _turn in bundle.steps():
            for batch in batches:
                group.step(batch, loss_of)
            losses = []
            for one in group.ids:
                gate.point(judged)
                losses.append(validate(group.member_model(one), val_images, val_labels))
            with gate.aside():  # it saves, and waits for the scheduler
                bundle.report(val_loss=losses)


if __name__ == "__main__":
    trial.main(train, defaults=DEFAULTS, steps=EPOCHS)
