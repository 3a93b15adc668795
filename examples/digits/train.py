"""A small convolutional network on scikit-learn's handwritten digits: 1797 images of 8 x 8 pixels.

Run it by hand:  python train.py --lr 0.01 --width 24
Tune it:         headrace run study.yaml
Prove that pausing it changes nothing:  headrace check train.py
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headrace import trial

DEFAULTS = {"lr": 1e-3, "weight_decay": 1e-2, "width": 32, "batch_size": 64, "dropout": 0.25}
EPOCHS = 27


def load_data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same split for every trial: 1197 images for training, 600 for validation."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(2718))
    val, train = order[:600], order[600:]
    return images[train], labels[train], images[val], labels[val]


def build_model(width: int, dropout: float) -> nn.Module:
    """Two convolutions, pooled, and one linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, width, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(2 * width * 4 * 4, 10),
    )


def train(t: trial.Trial) -> None:
    """Train one configuration, from the first epoch or from where it was paused."""
    torch.set_num_threads(1)  # several trials share this machine
    images, labels, val_images, val_labels = load_data()

    model = build_model(t.params["width"], t.params["dropout"])
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=t.params["lr"], weight_decay=t.params["weight_decay"]
    )
    # The schedule spans the whole budget, however early this trial is stopped.
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=t.max_steps)
    batches = trial.ResumableBatches(len(images), t.params["batch_size"], seed=t.seed)
    t.track(model=model, optimizer=optimizer, lr_scheduler=scheduler, batches=batches)

    for _epoch in t.steps():
        model.train()
        for batch in batches:
            optimizer.zero_grad()
            cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        scheduler.step()

        model.eval()
        with torch.no_grad():
            logits = model(val_images)
        t.report(
            val_loss=cross_entropy(logits, val_labels),
            val_accuracy=(logits.argmax(dim=1) == val_labels).float().mean(),
        )


if __name__ == "__main__":
    trial.main(train, defaults=DEFAULTS, steps=EPOCHS)
