"""The models of `architectures.py`: as users write them, by width, each with a suitable batch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES, ROWS, LENGTH = 5, 16, 9
Data = tuple[tuple[Tensor, ...], Tensor]


@dataclass(frozen=True)
class Trained:
    """A batch, and the loss on the model's output."""

    inputs: tuple[Tensor, ...]
    targets: Tensor

    def of(self, output: Tensor) -> Tensor:
        """Cross-entropy over the last dim, or squared error if the targets are numbers."""
        if self.targets.is_floating_point():
            return (output - self.targets).square().mean()
        return functional.cross_entropy(output.reshape(-1, output.shape[-1]), self.targets.reshape(-1))

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """The loss as a group calls it."""
        return self.of(model(*batch))


def zeroed(layer: nn.Linear) -> nn.Linear:
    """A readout that starts at zero."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class UNet(nn.Module):
    """Two resolutions, with concatenation across the pooling. With a timestep it is a diffusion model's."""

    def __init__(self, width: int = 64, timed: bool = False) -> None:
        super().__init__()
        self.timed = timed
        self.first, self.norm1 = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.down, self.norm2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.up, self.norm3 = nn.Conv2d(2 * width, width, 3, padding=1), nn.BatchNorm2d(width)
        if timed:
            self.time, self.time2 = nn.Linear(4, width), nn.Linear(width, width)
        self.readout = zeroed(nn.Linear(width, CLASSES))

    def forward(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        high = torch.relu(self.norm1(self.first(x)))
        low = self.down(functional.avg_pool2d(high, 2))
        if t is not None:
            low = low + self.time2(functional.silu(self.time(t)))[:, :, None, None]
        low = functional.interpolate(torch.relu(self.norm2(low)), scale_factor=2)
        out = torch.relu(self.norm3(self.up(torch.cat([high, low], 1))))
        return self.readout(out.mean((2, 3)))


class Block(nn.Module):
    """Attention with two heads and an MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        nn.init.zeros_(self.query.weight)
        self.out, self.up, self.down = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (
            layer(h).unflatten(-1, (2, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Vit(nn.Module):
    """Patches, one block, and the class token or the mean."""

    def __init__(self, width: int = 64, token: bool = False) -> None:
        super().__init__()
        self.patches, self.block, self.norm = nn.Linear(12, width), Block(width), nn.LayerNorm(width)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width)) if token else None
        self.readout = zeroed(nn.Linear(width, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x) + self.places
        if self.token is not None:
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        x = self.norm(self.block(x))
        return self.readout(x[:, 0] if self.token is not None else x.mean(1))


class Moe(nn.Module):
    """Four experts, mixed by a learnt router."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.router = nn.Linear(20, width), zeroed(nn.Linear(width, 4))
        self.experts = nn.ModuleList([nn.Linear(width, width) for _ in range(4)])
        self.readout = zeroed(nn.Linear(width, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        shares = self.router(x).softmax(-1)
        mixed = sum(shares[:, i : i + 1] * torch.relu(one(x)) for i, one in enumerate(self.experts))
        return self.readout(mixed)


class Gru(nn.Module):
    """A recurrent layer."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.cell, self.readout = nn.GRU(12, width, batch_first=True), zeroed(nn.Linear(width, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.cell(x)[0][:, -1])


class WeightNorm(nn.Module):
    """A perceptron with parametrized layers."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.first, self.second = norm(nn.Linear(20, width)), norm(nn.Linear(width, width))
        self.readout = zeroed(nn.Linear(width, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(torch.relu(self.second(torch.relu(self.first(x)))))


class GroupNorm(nn.Module):
    """Convolutions with groups of eight channels."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, width, 3), nn.GroupNorm(width // 8, width)
        self.second, self.norm2 = nn.Conv2d(width, width, 3), nn.GroupNorm(width // 8, width)
        self.readout = zeroed(nn.Linear(width, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm2(self.second(torch.relu(self.norm1(self.first(x))))))
        return self.readout(x.mean((2, 3)))


class Tied(nn.Module):
    """Input and output words share one table."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words, self.block, self.norm = nn.Embedding(16, width), Block(width), nn.LayerNorm(width)
        nn.init.normal_(self.words.weight, std=0.02)
        self.readout = nn.Linear(width, 16, bias=False)
        self.readout.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.norm(self.block(self.words(x))))


class Mixer(nn.Module):
    """Mixes positions, then channels."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.patches, self.norm1, self.norm2 = nn.Linear(12, width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.places, self.places2 = nn.Linear(LENGTH, LENGTH), nn.Linear(LENGTH, LENGTH)
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        self.readout = zeroed(nn.Linear(width, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        x = x + self.places2(functional.gelu(self.places(self.norm1(x).mT))).mT
        x = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return self.readout(x.mean(1))


class Depthwise(nn.Module):
    """A convolution in each channel, then one across channels."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, width, 3), nn.BatchNorm2d(width)
        self.each, self.norm2 = nn.Conv2d(width, width, 3, padding=1, groups=width), nn.BatchNorm2d(width)
        self.between, self.norm3 = nn.Conv2d(width, width, 1), nn.BatchNorm2d(width)
        self.readout = zeroed(nn.Linear(width, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.first(x)))
        x = torch.relu(self.norm3(self.between(self.norm2(self.each(x)))))
        return self.readout(x.mean((2, 3)))


class StateSpace(nn.Module):
    """A diagonal recurrence with a decay per channel, between two linear layers."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.into, self.gate, self.out = (
            nn.Linear(12, width),
            nn.Linear(width, width),
            nn.Linear(width, width),
        )
        self.decay = nn.Parameter(torch.linspace(0.0, 2.0, width))
        self.norm, self.readout = nn.LayerNorm(width), zeroed(nn.Linear(width, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        state, keep, states = torch.zeros_like(x[:, 0]), torch.sigmoid(self.decay), []
        for place in range(x.shape[1]):
            state = keep * state + (1 - keep) * x[:, place]
            states.append(state)
        mixed = torch.stack(states, 1) * functional.silu(self.gate(x))
        return self.readout(self.norm(self.out(mixed))[:, -1])


class Generator(nn.Module):
    """A GAN's generator, against fixed samples."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Linear(8, width), nn.BatchNorm1d(width)
        self.second, self.norm2 = nn.Linear(width, width), nn.BatchNorm1d(width)
        self.readout = zeroed(nn.Linear(width, 12))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.first(x)))
        return torch.tanh(self.readout(torch.relu(self.norm2(self.second(x)))))


class Discriminator(nn.Module):
    """A GAN's discriminator, between two sets of samples."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, width), nn.Linear(width, width)
        self.readout = zeroed(nn.Linear(width, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = functional.leaky_relu(self.first(x), 0.2)
        return self.readout(functional.leaky_relu(self.second(x), 0.2))


def drawn(*shape: int, classes: int = CLASSES) -> Callable[[], Data]:
    """Normal inputs, and random classes."""

    def data() -> Data:
        generator = torch.Generator().manual_seed(0)
        return (torch.randn(ROWS, *shape, generator=generator),), torch.randint(
            classes, (ROWS,), generator=generator
        )

    return data


def timed() -> Data:
    """Images and timesteps."""
    (images,), classes = drawn(3, 6, 6)()
    return (images, torch.rand(ROWS, 4, generator=torch.Generator().manual_seed(1))), classes


def letters() -> Data:
    """Text that repeats, and the letters that follow."""
    text = torch.tensor(list(b"the gate is passed by what the loss depends on and by nothing else " * 3))
    rows = text[: ROWS * 10].view(ROWS, 10) % 16
    return (rows[:, :-1],), rows[:, 1:]


def samples() -> Data:
    """Noise, and samples to match."""
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(ROWS, 8, generator=generator),), torch.rand(ROWS, 12, generator=generator) - 0.5


MODELS: dict[str, tuple[Callable[..., nn.Module], Callable[[], Data]]] = {
    "ViT, class token": (lambda width=64: Vit(width, token=True), drawn(LENGTH, 12)),
    "ViT, mean": (Vit, drawn(LENGTH, 12)),
    "MoE, learnt router": (Moe, drawn(20)),
    "GRU": (Gru, drawn(LENGTH, 12)),
    "weight norm": (WeightNorm, drawn(20)),
    "GroupNorm, groups of 8": (GroupNorm, drawn(3, 6, 6)),
    "tied embeddings": (Tied, letters),
    "mixer": (Mixer, drawn(LENGTH, 12)),
    "depthwise convolutions": (Depthwise, drawn(3, 6, 6)),
    "state space": (StateSpace, drawn(LENGTH, 12)),
    "GAN, generator": (Generator, samples),
    "GAN, discriminator": (Discriminator, drawn(12, classes=2)),
    "U-Net, concatenation": (UNet, drawn(3, 6, 6)),
    "diffusion U-Net, timestep": (lambda width=64: UNet(width, timed=True), timed),
}
