"""Models for the tests of Hydro, as factories of a width. The arguments `readout` and `tie` make twins for `mup`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, scaled_dot_product_attention

WORDS, CLASSES, CONTEXT = 24, 10, 12
Make = Callable[..., nn.Module]


class MLP(nn.Module):
    def __init__(self, width: int = 64, readout: Make = nn.Linear) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(20, width), nn.Linear(width, 2 * width)
        self.readout = readout(2 * width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.readout(relu(self.second(relu(self.first(x)))))


class ConvBlock(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        same = stride == 1 and inside == outside
        self.shortcut = (
            nn.Sequential() if same else nn.Sequential(nn.Conv2d(inside, outside, 1, stride=stride))
        )

    def forward(self, x: Tensor) -> Any:
        return relu(self.shortcut(x) + self.norm2(self.conv2(relu(self.norm1(self.conv1(x))))))


class ResNet(nn.Module):
    def __init__(self, width: int = 32, readout: Make = nn.Linear) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(ConvBlock(width, width, 1), ConvBlock(width, 2 * width, 2))
        self.readout = readout(2 * width, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.readout(self.blocks(relu(self.norm(self.stem(x)))).mean(dim=(2, 3)))


class Attention(nn.Module):
    """Grouped heads: every key and value serves several queries."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"{heads} heads do not divide a width of {width}")
        self.heads, self.kv_heads, size = heads, kv_heads, width // heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, kv_heads * size)
        self.value, self.out = nn.Linear(width, kv_heads * size), nn.Linear(width, width)
        self.attention_multiplier: float | None = None  # the mup twin's own

    def forward(self, x: Tensor) -> Any:
        batch, length, width = x.shape
        q = self.query(x).view(batch, length, self.heads, -1).transpose(1, 2)
        k = self.key(x).view(batch, length, self.kv_heads, -1).transpose(1, 2)
        v = self.value(x).view(batch, length, self.kv_heads, -1).transpose(1, 2)
        mixed = scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=self.attention_multiplier, enable_gqa=self.heads != self.kv_heads
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, kv_heads)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.narrow(gelu(self.wide(self.norm2(x))))


class GPT(nn.Module):
    """Tied embeddings and a positional parameter."""

    def __init__(
        self, width: int = 64, depth: int = 2, heads: int = 2, kv_heads: int = 1, tie: Make | None = None
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.positions = nn.Parameter(0.02 * torch.randn(1, CONTEXT, width))
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.words.weight, std=0.02)
        if tie is None:
            self.readout = nn.Linear(width, WORDS, bias=False)
            self.readout.weight = self.words.weight
        else:
            self.readout = tie(self.words.weight, bias=False)

    def forward(self, text: Tensor) -> Any:
        x = self.words(text) + self.positions[:, : text.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.readout(self.norm(x))


class ManyHeads(GPT):
    """Heads of a fixed width: their number grows with the model's width, and so does that of key and value heads."""

    def __init__(self, width: int = 64, tie: Make | None = None) -> None:
        super().__init__(width, heads=width // 8, kv_heads=width // 16, tie=tie)


class Mobile(nn.Module):
    """Depthwise, grouped and transposed convolutions, a group norm, a classifier before a log-softmax."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.pointwise = nn.Conv2d(width, 2 * width, 1, groups=2)
        self.norm = nn.GroupNorm(4, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.gain = nn.Parameter(torch.ones(width, 1, 1))
        self.classifier = nn.Sequential(nn.Linear(width, CLASSES), nn.LogSoftmax(dim=-1))

    def forward(self, x: Tensor) -> Any:
        x = self.norm(self.pointwise(relu(self.depthwise(relu(self.stem(x))))))
        return self.classifier((self.gain * self.up(relu(x))).mean(dim=(2, 3)))


class ResidualMLP(nn.Module):
    """Residual blocks of two layers, for which the depth rules exist."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm, self.inner, self.outer = (
                nn.LayerNorm(width),
                nn.Linear(width, width),
                nn.Linear(width, width),
            )

        def forward(self, x: Tensor) -> Any:
            return x + self.outer(relu(self.inner(self.norm(x))))

    def __init__(self, width: int = 32, depth: int = 8, residual: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(20, width)
        blocks = (self.Block(width) if residual else nn.Linear(width, width) for _ in range(depth))
        self.blocks = nn.Sequential(*blocks)
        self.readout = nn.Linear(width, CLASSES)
        nn.init.zeros_(self.readout.weight)

    def forward(self, x: Tensor) -> Any:
        return self.readout(self.blocks(self.first(x)))


def images(batch: int = 4, side: int = 8) -> Tensor:
    return torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(0))


def text(batch: int = 4) -> Tensor:
    return torch.randint(WORDS, (batch, CONTEXT), generator=torch.Generator().manual_seed(0))


def rows(batch: int = 16) -> Tensor:
    return torch.randn(batch, 20, generator=torch.Generator().manual_seed(0))
