"""The models of the fusion benchmark, at sizes of surrogates, and hand-written versions to compare with.

`GROUPED` are the same models written with a member dim throughout, as HFTA and Hydro's `hydro.nn` do: one layer of
every kind for all members, optimizers over stacked parameters. They share one learning rate, which is the cheapest
option.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = tuple[Tensor, Tensor]


class Mlp(nn.Module):
    """64 → 64 → 64 → 10, batches of 32."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Cnn(nn.Module):
    """Two convolutions of 8 and 16 channels with BatchNorm on 16 × 16 images, batches of 16."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.norm1(self.conv1(x))), 2)
        x = functional.max_pool2d(functional.relu(self.norm2(self.conv2(x))), 2)
        return self.head(x.flatten(1))


class Block(nn.Module):
    """Attention with four heads and an MLP, width 32."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Two blocks, 64 symbols, 32 positions, tied embeddings, batches of 4."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(64, 32), nn.Parameter(torch.randn(32, 32) * 0.02)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 64, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(model: Callable[..., Tensor], batch: Batch) -> Tensor:
    """Cross-entropy, averaged over everything."""
    out = model(batch[0])
    return functional.cross_entropy(out.reshape(-1, out.shape[-1]), batch[1].reshape(-1))


def batch_of(name: str) -> Batch:
    """A random batch."""
    generator = torch.Generator().manual_seed(0)
    if name == "gpt":
        tokens = torch.randint(0, 64, (4, 33), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    shape = (32, 64) if name == "mlp" else (16, 3, 16, 16)
    return torch.randn(shape, generator=generator), torch.randint(0, 10, (shape[0],), generator=generator)


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": Mlp, "cnn": Cnn, "gpt": Gpt}


class GroupedLinear(nn.Module):
    """N linear layers: (N, M, I) to (N, M, O)."""

    def __init__(self, n: int, inside: int, outside: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, inside, outside) * inside**-0.5)
        self.bias = nn.Parameter(torch.zeros(n, 1, outside))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class GroupedNorm(nn.Module):
    """N LayerNorms on (N, M, D)."""

    def __init__(self, n: int, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(n, 1, width)), nn.Parameter(torch.zeros(n, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, functional.layer_norm(x, x.shape[-1:]), self.weight)


class GroupedMlp(nn.Module):
    """N times `Mlp`."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n
        self.net = nn.Sequential(
            GroupedLinear(n, 64, 64), nn.ReLU(), GroupedLinear(n, 64, 64), nn.ReLU(), GroupedLinear(n, 64, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.expand(self.n, *x.shape))


class GroupedCnn(nn.Module):
    """N times `Cnn`: members' channels side by side, the image repeated as in HFTA."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n
        self.conv1, self.norm1 = nn.Conv2d(3 * n, 8 * n, 3, padding=1, groups=n), nn.BatchNorm2d(8 * n)
        self.conv2, self.norm2 = nn.Conv2d(8 * n, 16 * n, 3, padding=1, groups=n), nn.BatchNorm2d(16 * n)
        self.head = GroupedLinear(n, 256, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.repeat(1, self.n, 1, 1)
        x = functional.max_pool2d(functional.relu(self.norm1(self.conv1(x))), 2)
        x = functional.max_pool2d(functional.relu(self.norm2(self.conv2(x))), 2)
        return self.head(x.view(x.shape[0], self.n, -1).transpose(0, 1))


class GroupedBlock(nn.Module):
    """N times `Block`."""

    def __init__(self, n: int, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.n, self.heads = n, heads
        self.norm1, self.norm2 = GroupedNorm(n, width), GroupedNorm(n, width)
        self.qkv, self.out = GroupedLinear(n, width, 3 * width), GroupedLinear(n, width, width)
        self.up, self.down = GroupedLinear(n, width, 4 * width), GroupedLinear(n, 4 * width, width)

    def forward(self, x: Tensor, length: int) -> Tensor:
        n, rows, width = x.shape
        split = self.qkv(self.norm1(x)).view(n * rows // length, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, rows, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GroupedGpt(nn.Module):
    """N times `Gpt`."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n
        self.embed, self.place = (
            nn.Parameter(torch.randn(n, 64, 32)),
            nn.Parameter(torch.randn(n, 1, 32, 32) * 0.02),
        )
        self.blocks = nn.ModuleList([GroupedBlock(n), GroupedBlock(n)])
        self.norm = GroupedNorm(n, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        first = torch.arange(self.n).view(-1, 1, 1) * 64
        x = functional.embedding(tokens + first, self.embed.view(-1, 32)) + self.place
        length = x.shape[2]
        x = x.flatten(1, 2)
        for block in self.blocks:
            x = block(x, length)
        return torch.bmm(self.norm(x), self.embed.mT)


GROUPED: dict[str, Callable[[int], nn.Module]] = {"mlp": GroupedMlp, "cnn": GroupedCnn, "gpt": GroupedGpt}


def grouped_loss(out_nmc: Tensor, target: Tensor) -> Tensor:
    """The sum of the members' means: HFTA's scaled loss."""
    n = out_nmc.shape[0]
    flat: Any = functional.cross_entropy(
        out_nmc.reshape(-1, out_nmc.shape[-1]), target.reshape(-1).repeat(n), reduction="sum"
    )
    return flat / target.numel()
