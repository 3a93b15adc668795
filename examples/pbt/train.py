"""A learning-rate schedule to discover: plain SGD on handwritten digits, whose rate nothing lowers automatically.

A high rate learns fast and then circles around the minimum; a low one never gets far. A constant rate pays for one
or the other. Population-based training finds a schedule during training.

Run it by hand:  python train.py --lr 0.03
Tune it:         headrace run study.yaml
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headrace import trial

DEFAULTS = {"lr": 0.03, "momentum": 0.9}
EPOCHS = 30


def load_data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same split for every trial: 1197 images for training, 600 for validation."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(2718))
    val, train = order[:600], order[600:]
    return images[train], labels[train], images[val], labels[val]


def train(t: trial.Trial) -> None:
    """Train one member of the population, from the first epoch or from where it, or the member it copied, stopped."""
    torch.set_num_threads(1)  # several trials share this machine
    images, labels, val_images, val_labels = load_data()

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=t.params["lr"])
    batches = trial.ResumableBatches(len(images), 16, seed=t.seed)
    t.track(model=model, optimizer=optimizer, batches=batches)

    for _epoch in t.steps():
        # A checkpoint brings the optimizer's settings along, after a copy those of another member: set them again.
        for group in optimizer.param_groups:
            group.update(lr=t.params["lr"], momentum=t.params["momentum"])
        model.train()
        for batch in batches:
            noisy = images[batch] + 0.3 * torch.randn(len(batch), 64)
            optimizer.zero_grad()
            cross_entropy(model(noisy), labels[batch]).backward()
            optimizer.step()

        model.eval()
        with torch.no_grad():
            logits = model(val_images)
        t.report(
            val_loss=cross_entropy(logits, val_labels),
            val_accuracy=(logits.argmax(dim=1) == val_labels).float().mean(),
        )


if __name__ == "__main__":
    trial.main(train, defaults=DEFAULTS, steps=EPOCHS)
