"""The digits as `digits.py` trains on them: data, network, and all trainings of a sweep at once."""

from dataclasses import dataclass
from typing import Literal

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, leaky_relu
from torch.optim import AdamW

BATCH, LR, HIDDEN = 32, 0.01, 32
TRAINED_ON, PROBED, WRONG = 200, 700, 0.4

Units = Literal["leaky", "mortal"]
SLOPES: dict[Units, float] = {"leaky": 0.01, "mortal": 0.0}
"""Hidden units by the slope below 0: with slope 0, a unit that no image activates has no gradient, and stays dead."""


class Data:
    """A few training images with many wrong labels, a probe, and a test set."""

    def __init__(self, seed: int) -> None:
        digits = load_digits()
        images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
        generator = torch.Generator().manual_seed(seed)
        train, probe, test = torch.randperm(len(labels), generator=generator).split(
            [TRAINED_ON, PROBED, len(labels) - TRAINED_ON - PROBED]
        )
        told = labels[train]
        wrong = torch.rand(TRAINED_ON, generator=generator) < WRONG
        told[wrong] = torch.randint(10, (int(wrong.sum()),), generator=generator)
        self.train = images[train], told
        self.probe = images[probe], labels[probe]
        self.test = images[test], labels[test]

    def batch(self, seed: int, step: int, rank: int) -> tuple[Tensor, Tensor]:
        picked = picks(seed, step, rank)
        return self.train[0][picked], self.train[1][picked]


def picks(seed: int, step: int, rank: int) -> Tensor:
    """The images of a replica's batch."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + 31 * step + 7919 * rank)
    return torch.randint(TRAINED_ON, (BATCH,), generator=generator)


def build(seed: int, p: float, units: Units) -> nn.Sequential:
    """The network, the same on every rank."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(64, HIDDEN), nn.LeakyReLU(SLOPES[units]), nn.Dropout(p), nn.Linear(HIDDEN, 10)
        )


def loss_on(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def units_alive(model: nn.Sequential, images: Tensor) -> int:
    """How many hidden units are above 0 for at least one image."""
    with torch.no_grad():
        return int((model[0](images) > 0).any(0).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Fixed values, each trained on its own replicas from every seed.

    Attributes:
        weight_decays: one for each value; of the same length as `dropouts`.
        dropouts: see above.
        units: the hidden units.
        shared: whether replicas share gradients; otherwise parameters and moments are averaged every `interval` steps.
    """

    weight_decays: tuple[float, ...]
    dropouts: tuple[float, ...]
    seeds: range
    replicas: int
    steps: int
    interval: int
    units: Units
    shared: bool

    def test_losses(self) -> list[list[float]]:
        """Trains all models side by side as one batched network; returns the losses by value, then seed.

        The same arithmetic as one training after the other on real replicas, many times faster.
        """
        many = (len(self.weight_decays), len(self.seeds), self.replicas)
        data = [Data(seed) for seed in self.seeds]
        images, labels = (torch.stack([one.train[part] for one in data]) for part in (0, 1))
        weights = self._initial()
        optimizer = AdamW(weights, lr=LR, weight_decay=0.0, fused=True)
        keep = 1 - torch.tensor(self.dropouts)[:, None, None, None, None]
        shrink = 1 - LR * torch.tensor(self.weight_decays)[:, None, None, None, None]
        generator = torch.Generator().manual_seed(1)
        rows = torch.arange(len(self.seeds))[:, None, None]
        for step in range(self.steps):
            picked = torch.stack(
                [
                    torch.stack([picks(seed, step, rank) for rank in range(self.replicas)])
                    for seed in self.seeds
                ]
            )
            x, y = images[rows, picked].expand(*many, BATCH, 64), labels[rows, picked].expand(*many, BATCH)
            hidden = leaky_relu(x @ weights[0] + weights[1], SLOPES[self.units])
            if max(self.dropouts) > 0:
                hidden = hidden * (torch.rand(hidden.shape, generator=generator) < keep) / keep
            loss = cross_entropy(
                (hidden @ weights[2] + weights[3]).reshape(-1, 10), y.reshape(-1), reduction="sum"
            )
            optimizer.zero_grad()
            (loss / BATCH).backward()
            with torch.no_grad():
                for one in weights:
                    one.mul_(shrink)
                    if self.shared:
                        _average([one.grad])
                optimizer.step()
                if not self.shared and (step + 1) % self.interval == 0:
                    moments = [
                        optimizer.state[one][key] for one in weights for key in ("exp_avg", "exp_avg_sq")
                    ]
                    _average([*weights, *moments])
        first = [one.detach()[:, :, 0] for one in weights]
        x, y = (torch.stack([one.test[part] for one in data]) for part in (0, 1))
        logits = leaky_relu(x @ first[0] + first[1], SLOPES[self.units]) @ first[2] + first[3]
        labels = y.expand(*logits.shape[:-1])
        losses = cross_entropy(logits.reshape(-1, 10), labels.reshape(-1), reduction="none")
        return losses.view(labels.shape).mean(2).tolist()

    def _initial(self) -> list[Tensor]:
        """Weights and biases of all models, indexed by value, seed and replica."""
        built = [build(seed, 0.0, self.units) for seed in self.seeds]
        many = (len(self.weight_decays), len(self.seeds), self.replicas)
        found = []
        for layer in (0, 3):
            for part in (
                torch.stack([one[layer].weight.detach().T for one in built]),
                torch.stack([one[layer].bias.detach()[None] for one in built]),
            ):
                spread = part[None, :, None].expand(*many, *part.shape[1:])
                found.append(spread.clone().requires_grad_())
        return found


def _average(tensors: list[Tensor | None]) -> None:
    """Replaces replicas, the third axis, by their mean."""
    for one in tensors:
        assert one is not None
        one.copy_(one.mean(2, keepdim=True).expand_as(one))
