"""Grouped formulations of single operators: all members in one call of one dense kernel.

A rule takes a `Lanes` and then the operator's own arguments; it returns NotImplemented if it has nothing better
than `vmap`. In every rule a member's numbers come from that member's own slice: batched products, grouped
convolutions, folded batches. `RULES` is the table.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from headrace_torch.hydro.fuse.rules.attention import attention, multi_head_attention
from headrace_torch.hydro.fuse.rules.conv import conv1d, conv2d, conv3d
from headrace_torch.hydro.fuse.rules.fold import fold_images
from headrace_torch.hydro.fuse.rules.linear import embedding, linear
from headrace_torch.hydro.fuse.rules.loss import cross_entropy
from headrace_torch.hydro.fuse.rules.norm import batch_norm, layer_norm

Rule = Callable[..., Any]

RULES: Mapping[Callable[..., Any], Rule] = {
    functional.linear: linear,
    functional.embedding: embedding,
    functional.conv1d: conv1d,
    functional.conv2d: conv2d,
    functional.conv3d: conv3d,
    functional.batch_norm: batch_norm,
    functional.layer_norm: layer_norm,
    functional.cross_entropy: cross_entropy,
    functional.scaled_dot_product_attention: attention,
    functional.max_pool2d: fold_images(torch.max_pool2d),
    torch.max_pool2d: fold_images(torch.max_pool2d),
    functional.avg_pool2d: fold_images(functional.avg_pool2d),
    functional.adaptive_avg_pool2d: fold_images(functional.adaptive_avg_pool2d),
}

# Written in operators that have rules, and run with the interception on.
COMPOSITES: Mapping[Callable[..., Any], Callable[..., Any]] = {
    functional.multi_head_attention_forward: multi_head_attention,
}
