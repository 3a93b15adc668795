"""ResNet-18 on scikit-learn's handwritten digits at 32 x 32 pixels: on a GPU of its own, on a share of one, or fused.

By hand:                       python train.py --lr 0.05
A GPU for each trial:          headrace run plain.yaml
Eight trials share a GPU:      headrace run shared.yaml
Up to 16 trials in a process:  headrace run fused.yaml

On a CPU, --width 8 makes it bearable.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, relu

from headrace import trial
from headrace_torch import hydro

DEFAULTS = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4, "width": 64}
EPOCHS = 9
BATCH = 64
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm_first = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm_second = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, images: Tensor) -> Tensor:
        """Add what the convolutions find to the input."""
        found = relu(self.norm_first(self.first(images)))
        return relu(self.norm_second(self.second(found)) + self.shortcut(images))


def make_model(width: int) -> nn.Module:
    """ResNet-18 for small images: a first convolution that keeps their size, and no pooling behind it."""
    layers: list[nn.Module] = [
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    inputs = width
    for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10)).to(DEVICE)


def load_data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same split for every trial: 1197 images for training, 600 for validation, on the device."""
    digits = load_digits()
    small = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    images = interpolate(small, size=32, mode="bilinear").to(DEVICE)
    labels = torch.tensor(digits.target).to(DEVICE)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(2718)).to(DEVICE)
    val, train = order[:600], order[600:]
    return images[train], labels[train], images[val], labels[val]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean over a batch; in bfloat16 on a GPU."""
    with torch.autocast(DEVICE.type, torch.bfloat16, enabled=DEVICE.type == "cuda"):
        return cross_entropy(model(batch[0]), batch[1])


def validate(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The loss on images that the model has not seen."""
    model.eval()
    with torch.no_grad():
        return float(loss_of(model, (images, labels)))


def train(t: trial.Trial) -> None:
    """Train one configuration, from the first epoch or from where it was paused."""
    torch.set_num_threads(1)  # several trials share this machine
    images, labels, val_images, val_labels = load_data()
    model = make_model(t.params["width"])
    numbers = {name: t.params[name] for name in ("lr", "momentum", "weight_decay")}
    optimizer = torch.optim.SGD(model.parameters(), **numbers)
    batches = trial.ResumableBatches(len(images), BATCH, seed=t.seed)
    t.track(model=model, optimizer=optimizer, batches=batches)
    for _epoch in t.steps():
        model.train()
        for batch in batches:
            optimizer.zero_grad()
            loss_of(model, (images[batch], labels[batch])).backward()
            optimizer.step()
        t.report(val_loss=validate(model, val_images, val_labels))


def train_fused(bundle: trial.Bundle) -> None:
    """Train all trials of a bundle in one process, each from its first epoch or from where it was paused."""
    torch.set_num_threads(1)  # several bundles share this machine
    images, labels, val_images, val_labels = load_data()
    group = hydro.fuse(bundle.model(make_model), optimizer="sgd")  # empty: trials join and leave
    batches = hydro.EpochBatches(group, images, labels, batch_size=BATCH, seed=7)
    bundle.track(group=group)
    for _turn in bundle.steps():
        for batch in batches:  # an epoch of each trial's own
            group.step(batch, loss_of)
        bundle.report(
            val_loss=[validate(group.member_model(one), val_images, val_labels) for one in group.ids]
        )


if __name__ == "__main__":
    trial.main(train, defaults=DEFAULTS, steps=EPOCHS)
