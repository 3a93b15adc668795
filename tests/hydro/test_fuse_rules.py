"""Each grouped rule equals the op that it replaces: layers of all kinds, in float64, by the probe's comparison."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace_torch import hydro


class Attend(nn.Module):
    """`nn.MultiheadAttention` with a causal mask, key padding, or returned weights."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        kdim = 4 if kind == "kdim" else None
        self.attention = nn.MultiheadAttention(
            8, 2, batch_first=kind != "seq", kdim=kdim, bias=kind != "no bias"
        )

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).triu(1)
        match self.kind:
            case "causal":
                return self.attention(x, x, x, attn_mask=causal, is_causal=True, need_weights=False)[0]
            case "added":
                return self.attention(
                    x, x, x, attn_mask=torch.linspace(-1, 1, length**2, dtype=x.dtype).view(length, length)
                )[0]
            case "hidden":
                hidden = torch.zeros(x.shape[0], length, dtype=torch.bool)
                hidden[:, -2:] = True
                return self.attention(x, x, x, key_padding_mask=hidden, attn_mask=causal)[0]
            case "weights":
                out, weights = self.attention(x, x, x, average_attn_weights=False)
                return out + weights.mean()
            case "kdim":
                return self.attention(x, x[..., :4], x)[0]
        return self.attention(x, x, x, need_weights=False)[0]


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


class Scaled(nn.Module):
    """`scaled_dot_product_attention` with masks of several shapes, and grouped heads."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.project = kind, nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.project(x).view(batch, length, 3, 4, 2).permute(2, 0, 3, 1, 4).unbind(0)
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        match self.kind:
            case "mask":
                out = functional.scaled_dot_product_attention(q, k, v, causal)
            case "mask4":
                out = functional.scaled_dot_product_attention(
                    q, k, v, causal.expand(batch, 1, length, length), scale=0.3
                )
            case "batched mask":
                bias = x.mean(-1)[:, None, None, :] * self.project.weight.mean()
                out = functional.scaled_dot_product_attention(q, k, v, bias)
            case "grouped heads":
                out = functional.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)
            case _:
                out = functional.scaled_dot_product_attention(q[0], k[0], v[0])  # three dims: vmap handles it
        return out.transpose(-2, -3).flatten(-2)


def layers(*parts: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*parts)


SEQUENCES = {
    "attend": lambda: Attend("plain"),
    "attend sequence first": lambda: Attend("seq"),
    "attend causal": lambda: Attend("causal"),
    "attend added mask": lambda: Attend("added"),
    "attend hidden keys": lambda: Attend("hidden"),
    "attend weights": lambda: Attend("weights"),
    "attend other keys": lambda: Attend("kdim"),
    "attend without bias": lambda: Attend("no bias"),
    "scaled mask": lambda: Scaled("mask"),
    "scaled mask of four dims": lambda: Scaled("mask4"),
    "scaled batched mask": lambda: Scaled("batched mask"),
    "scaled grouped heads": lambda: Scaled("grouped heads"),
    "scaled three dims": lambda: Scaled("three"),
    "transformer layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True),
    "layer norms": layers(
        nn.LayerNorm(8), nn.Linear(8, 8, bias=False), nn.LayerNorm((5, 8)), nn.LayerNorm(8, bias=False)
    ),
    "layer norm without affine": layers(nn.Linear(8, 8), nn.LayerNorm(8, elementwise_affine=False)),
    "rms norm": layers(nn.Linear(8, 8), nn.RMSNorm(8)),
    "conv1d": layers(
        nn.Conv1d(5, 6, 3, padding="same"), nn.GELU(), nn.BatchNorm1d(6), nn.Conv1d(6, 4, 2, dilation=2)
    ),
    "bilinear softplus": layers(nn.Linear(8, 8), nn.Softplus(), nn.PReLU(), nn.Dropout(0.2)),
}
IMAGES = {
    "depthwise": layers(
        nn.Conv2d(3, 6, 1),
        nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False),
        nn.GroupNorm(2, 6),
        nn.Conv2d(6, 4, 1),
    ),
    "grouped first": layers(nn.Conv2d(3, 6, 3, groups=3, stride=2), nn.ReLU(), nn.AvgPool2d(2)),
    "reflected": layers(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), nn.AdaptiveAvgPool2d(2)),
    "transposed": layers(
        nn.ConvTranspose2d(3, 4, 2, stride=2), nn.MaxPool2d(2), nn.InstanceNorm2d(4, affine=True)
    ),
    "pool of the input": layers(nn.MaxPool2d(2), nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.Dropout2d(0.3)),
    "batch norm without statistics": layers(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)),
    "batch norm with a cumulative mean": layers(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=0.5, affine=False)
    ),
    "flat": layers(nn.Flatten(), nn.Linear(192, 8), nn.BatchNorm1d(8), nn.SiLU(), nn.Linear(8, 3)),
}


def square(model: nn.Module, batch: Tensor) -> Tensor:
    out = model(batch)
    return (
        (out * torch.linspace(0.5, 1.5, out[0].numel(), dtype=out.dtype).view(out.shape[1:])).square().mean()
    )


def check(make: Callable[[], nn.Module], batch: Tensor) -> None:
    members = [{"lr": 1e-3, "seed": i, "dropout": None if i else 0.4} for i in range(3)]
    group = hydro.fuse(make, members, engine="grouped")
    group.step(batch, square)  # raises if losses, gradients or buffers differ by more than 1e-9
    assert group.report is not None
    assert group.report.error["grouped"] < 1e-9
    assert group.step(batch, square).isfinite().all()


@pytest.mark.parametrize("name", SEQUENCES)
def test_layers_on_sequences(name: str) -> None:
    check(SEQUENCES[name], torch.randn(4, 5, 8, generator=_seeded()))


@pytest.mark.parametrize("name", IMAGES)
def test_layers_on_images(name: str) -> None:
    check(IMAGES[name], torch.randn(4, 3, 8, 8, generator=_seeded()))


class Words(nn.Module):
    """Embeddings with a padding index, tied to a functional readout, and a vector input."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 6, padding_idx=3)
        self.gate = nn.Linear(6, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        first = self.gate(x[0, 0])  # one vector
        return functional.linear(x * first, self.table.weight)


def test_embeddings() -> None:
    check(Words, torch.randint(0, 12, (4, 5), generator=_seeded()))


def test_volumes() -> None:
    check(
        layers(nn.Conv3d(2, 4, 2), nn.BatchNorm3d(4), nn.ReLU(), nn.Conv3d(4, 2, 2)),
        torch.randn(2, 2, 4, 4, 4),
    )
