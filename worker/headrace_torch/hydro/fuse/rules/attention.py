"""Attention: members are one more batch dim of the fused kernel."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headrace_torch.hydro.fuse.lanes import Lanes, is_stacked


def attention(
    lanes: Lanes,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(q k' · scale + mask) v on (B, H, T, D), with members folded into B."""
    if dropout_p > 0 or query.dim() != 4:
        return NotImplemented
    q, k, v = (lanes.at(part, 0).flatten(0, 1) for part in (query, key, value))
    mask = attn_mask
    if attn_mask is not None:
        if is_stacked(attn_mask) or attn_mask.dim() == 4:
            full = attn_mask.expand(query.shape[0], *attn_mask.shape[-3:]) if attn_mask.dim() == 4 else None
            if full is None:
                return NotImplemented
            mask = lanes.at(full, 0).flatten(0, 1)
        elif attn_mask.dim() > 2:
            return NotImplemented
    out = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return lanes.join(out.view(lanes.size, -1, *out.shape[1:]))


def explicit_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The same in single operators, including dropout: for attention with dropout.

    It computes what the reference in torch's documentation of `scaled_dot_product_attention` does.
    """
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    scores = _masked(scores, attn_mask)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    weights = functional.dropout(scores.softmax(-1), dropout_p, training=True)
    mixed: Tensor = weights @ value
    return mixed


def _masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,  # noqa: ARG001
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    """`nn.MultiheadAttention` in operators that have rules; inputs are (T, B, E), as torch passes them.

    Returns NotImplemented for added keys (`bias_k`, `add_zero_attn`), static keys and unbatched input.
    """
    if bias_k is not None or bias_v is not None or add_zero_attn or query.dim() != 3:
        return NotImplemented
    if static_k is not None or static_v is not None:
        return NotImplemented
    if use_separate_proj_weight:
        weights: Any = (q_proj_weight, k_proj_weight, v_proj_weight)
    else:
        assert in_proj_weight is not None
        weights = in_proj_weight.chunk(3)
    biases: Any = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
    q, k, v = (
        _heads(functional.linear(x, weight, bias), num_heads)
        for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
    )
    mask = _as_added(attn_mask, q)
    if mask is not None and mask.dim() == 3:
        mask = mask.view(-1, num_heads, *mask.shape[1:])
    padding = _as_added(key_padding_mask, q)
    if padding is not None:
        padding = padding[:, None, None, :]
        mask = padding if mask is None else mask + padding
        is_causal = False
    dropout = dropout_p if training else 0.0
    if need_weights:
        scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
        attended = functional.dropout(_masked(scores, mask).softmax(-1), dropout, training)
        mixed = attended @ v
        reported = attended.mean(1) if average_attn_weights else attended
    else:
        if mask is not None and is_causal:  # torch treats the flag as a hint about the mask
            mask = None
        mixed = functional.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal and mask is None)
        reported = None
    tokens = mixed.permute(2, 0, 1, 3).flatten(2)
    return functional.linear(tokens, out_proj_weight, out_proj_bias), reported


def _heads(x: Tensor, heads: int) -> Tensor:
    """(T, B, E) to (B, H, T, E/H)."""
    return x.view(*x.shape[:2], heads, -1).permute(1, 2, 0, 3)


def _as_added(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A mask to be added to scores; torch's boolean masks here mark what is hidden."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)
