"""A GPT as a factory of a width: all that Hydro needs to know about it.

Its readout and its queries start at zero. That is good practice at any size, and necessary for small copies to
start like the model that they represent (see docs/explanation/hydro.md).
"""
# ruff: noqa: N803, N806 - a tensor's name ends in its shape: B batch, L length, D width, H heads, K width of a head

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

VOCABULARY = 256  # bytes
CONTEXT = 32


class Attention(nn.Module):
    """Causal attention; the model says how many heads share the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        nn.init.zeros_(self.query.weight)
        nn.init.zeros_(self.query.bias)

    def forward(self, x_BLD: Tensor) -> Tensor:
        B, L, D = x_BLD.shape
        q_BHLK = self.query(x_BLD).view(B, L, self.heads, -1).transpose(1, 2)
        kv_2BHLK = self.key_value(x_BLD).view(B, L, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed_BHLK = scaled_dot_product_attention(q_BHLK, kv_2BHLK[0], kv_2BHLK[1], is_causal=True)
        out: Tensor = self.out(mixed_BHLK.transpose(1, 2).reshape(B, L, D))
        return out


class Block(nn.Module):
    """Attention to earlier bytes, then a two-layer perceptron; both are added to the stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp_in, self.mlp_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_BLD = x_BLD + self.attention(self.norm_attention(x_BLD))
        return x_BLD + self.mlp_out(gelu(self.mlp_in(self.norm_mlp(x_BLD))))


class GPT(nn.Module):
    """Bytes in, logits of the next byte out.

    The width of each of its `heads` grows with the model's width; with `head_width`, their number does.
    """

    def __init__(
        self, width: int = 256, depth: int = 2, heads: int = 2, head_width: int | None = None
    ) -> None:
        super().__init__()
        if head_width is not None:
            heads = width // head_width
        self.bytes = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, VOCABULARY, bias=False)
        nn.init.normal_(self.bytes.weight, std=0.02)
        nn.init.zeros_(self.readout.weight)

    def forward(self, text_BL: Tensor) -> Tensor:
        x_BLD = self.bytes(text_BL) + self.positions[: text_BL.shape[1]]
        logits: Tensor = self.readout(self.norm(self.blocks(x_BLD)))
        return logits
