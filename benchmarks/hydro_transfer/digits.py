"""Scikit-learn's handwritten digits, and two models of them as factories of a width."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import relu

Batch = tuple[Tensor, Tensor]


class Digits:
    """Images (rows, 1, 8, 8) with zero mean and unit variance, and their classes; every fourth one is for
    validation."""

    def __init__(self) -> None:
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)
        images = (images - images.mean()) / images.std()
        labels = torch.tensor(digits.target)
        held_out = torch.arange(len(labels)) % 4 == 0
        self._train = images[~held_out], labels[~held_out]
        self.validation = images[held_out], labels[held_out]

    def batch(self, step: int, rows: int, seed: int = 0) -> Batch:
        """Images and classes."""
        generator = torch.Generator().manual_seed(1_000_003 * seed + step)
        picked = torch.randint(len(self._train[1]), (rows,), generator=generator)
        return self._train[0][picked], self._train[1][picked]


class MLP(nn.Module):
    """Images of digits, flattened, in; logits of ten classes out."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, width), nn.Linear(width, width)
        self.readout = nn.Linear(width, 10)
        nn.init.zeros_(self.readout.weight)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.readout(relu(self.second(relu(self.first(image.flatten(1))))))
        return logits


class ResidualBlock(nn.Module):
    """Two convolutions, added to the stream before the last ReLU."""

    def __init__(self, channels_in: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and channels_in == channels
            else nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        change = self.norm2(self.conv2(relu(self.norm1(self.conv1(x)))))
        return relu(self.shortcut(x) + change)


class ResNet(nn.Module):
    """Images of digits, 8 by 8, in; logits of ten classes out."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(ResidualBlock(width, width), ResidualBlock(width, 2 * width, stride=2))
        self.readout = nn.Linear(2 * width, 10)
        nn.init.zeros_(self.readout.weight)

    def forward(self, image: Tensor) -> Tensor:
        features = self.blocks(relu(self.norm(self.stem(image)))).mean(dim=(2, 3))
        logits: Tensor = self.readout(features)
        return logits
