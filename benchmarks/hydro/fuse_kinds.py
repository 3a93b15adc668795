"""The models of the first-step benchmark: a small one of each kind, with a loss of its own.

`KINDS` names them; each makes a module, and has a batch and a loss of (model, batch).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from fuse_workloads import Cnn, Gpt, Mlp, batch_of, loss_of
from torch import Tensor, nn
from torch.nn import functional

Loss = Callable[[Any, Any], Tensor]


class RmsNorm(nn.Module):
    """Divides by the root of the mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain


class LlamaBlock(nn.Module):
    """Attention with rotary positions, then SwiGLU; RMSNorm before each; no biases."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        hidden = 8 * width // 3
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

        def turned(y: Tensor) -> Tensor:
            a, b = y.chunk(2, -1)
            return y * cos + torch.cat([-b, a], -1) * sin

        h = self.norm1(x)
        mixed = functional.scaled_dot_product_attention(
            turned(split(self.q(h))), turned(split(self.k(h))), split(self.v(h)), is_causal=True
        )
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, width))
        h = self.norm2(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """Four blocks of width 64, 64 symbols, 32 positions, batches of 4."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, width)
        self.blocks = nn.ModuleList([LlamaBlock(width, heads) for _ in range(depth)])
        self.norm, self.head = RmsNorm(width), nn.Linear(width, 64, bias=False)
        half = width // heads // 2
        angle = torch.outer(torch.arange(32.0), 10_000.0 ** (-torch.arange(half) / half)).repeat(1, 2)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


class Gru(nn.Module):
    """A GRU of width 32 over 16 places, batches of 16; it cannot be fused."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(8, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0][:, -1])


class Vae(nn.Module):
    """64 → 64 → 8 → 64 → 64, batches of 32."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
        self.decode = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encode(x).chunk(2, -1)
        return self.decode(mean + (0.5 * log_variance).exp()), mean, log_variance


class Annealed:
    """The VAE's loss. It counts its calls, and the KL term's weight rises with the count."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, model: Any, batch: Tensor) -> Tensor:
        """Squared error and KL, averaged over the batch."""
        self.calls += 1
        out, mean, log_variance = model(batch)
        kl = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(-1).mean()
        return functional.mse_loss(out, batch) + min(1.0, self.calls / 1000) * kl


class Moe(nn.Module):
    """A learnt router over four experts of 64 → 64 → 64, all computed, batches of 32."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(64, 4)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)) for _ in range(4)]
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        mixed = torch.stack([one(x) for one in self.experts], -1)
        return self.head((mixed * weights.unsqueeze(-2)).sum(-1))


class UNet(nn.Module):
    """Two levels of 8 and 16 channels with GroupNorm on 16 × 16 images, batches of 8."""

    def __init__(self) -> None:
        super().__init__()

        def block(inside: int, outside: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(4, outside), nn.SiLU()
            )

        self.down1, self.down2, self.middle = block(3, 8), block(8, 16), block(16, 16)
        self.up2, self.up1 = block(32, 8), block(16, 8)
        self.out = nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(functional.avg_pool2d(a, 2))
        c = functional.interpolate(self.middle(functional.avg_pool2d(b, 2)), scale_factor=2)
        d = functional.interpolate(self.up2(torch.cat([b, c], 1)), scale_factor=2)
        return self.out(self.up1(torch.cat([a, d], 1)))


def denoising(model: Any, batch: Tensor) -> Tensor:
    """Squared error against the image itself."""
    return functional.mse_loss(model(batch), batch)


@dataclass(frozen=True)
class Kind:
    """A model, its batch, and a factory of its loss."""

    make: Callable[[], nn.Module]
    batch: Callable[[], Any]
    loss: Callable[[], Loss]


def _noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) / math.sqrt(2)


def _labelled(*shape: int) -> tuple[Tensor, Tensor]:
    return _noise(*shape), torch.randint(0, 10, shape[:1], generator=torch.Generator().manual_seed(1))


KINDS: dict[str, Kind] = {
    "mlp": Kind(Mlp, lambda: batch_of("mlp"), lambda: loss_of),
    "cnn": Kind(Cnn, lambda: batch_of("cnn"), lambda: loss_of),
    "gpt": Kind(Gpt, lambda: batch_of("gpt"), lambda: loss_of),
    "llama": Kind(Llama, lambda: batch_of("gpt"), lambda: loss_of),
    "gru": Kind(Gru, lambda: _labelled(16, 16, 8), lambda: loss_of),
    "vae": Kind(Vae, lambda: _noise(32, 64), Annealed),
    "moe": Kind(Moe, lambda: _labelled(32, 64), lambda: loss_of),
    "unet": Kind(UNet, lambda: _noise(8, 3, 16, 16), lambda: denoising),
}
