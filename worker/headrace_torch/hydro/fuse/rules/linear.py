"""Linear layers as one batched product, embeddings as one table of all members' rows."""

from typing import Any

import torch
from torch import Tensor

from headrace_torch.hydro.fuse.lanes import Lanes, is_stacked


def linear(lanes: Lanes, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:  # noqa: A002  torch's name
    """x W' + b with W (N, O, I): `baddbmm` over members; a batch that all members share is never copied."""
    if not is_stacked(weight):
        return NotImplemented
    weights = lanes.at(weight, 0)
    x, dim = lanes.split(input)
    # Usually no view needs to be made. Views cost as much as small layers do.
    flat = x.dim() == (2 if dim is None else 3)
    if dim is None:
        rows = (x if flat else x.reshape(-1, x.shape[-1])).expand(lanes.size, -1, -1)
    else:
        first = x if dim == 0 else x.movedim(dim, 0)
        rows = first if flat else first.flatten(1, -2) if x.dim() > 2 else first.unsqueeze(1)
    if bias is None:
        out = torch.bmm(rows, weights.mT)
    else:
        out = torch.baddbmm(lanes.at(bias, 0).unsqueeze(1), rows, weights.mT)
    return lanes.join(out if flat else out.reshape(lanes.size, *input.shape[:-1], weight.shape[0]))


def embedding(
    lanes: Lanes,
    input: Tensor,  # noqa: A002  torch's name
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,  # noqa: ARG001  torch's signature
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Looks up in the (N·V, D) table of all members, whose gradient is one dense scatter."""
    if not is_stacked(weight) or max_norm is not None or scale_grad_by_freq or sparse:
        return NotImplemented
    tables = lanes.at(weight, 0)
    entries, width = weight.shape
    first = torch.arange(lanes.size, device=tables.device) * entries
    entries_of = lanes.at(input, 0)
    flat = entries_of + first.view(-1, *[1] * input.dim())
    if padding_idx is not None:  # entries of the padding index take no gradient
        padding = padding_idx % entries
        table = tables.reshape(-1, width)
        out = torch.embedding(table, flat)
        return lanes.join(torch.where((entries_of == padding).unsqueeze(-1), out.detach(), out))
    return lanes.join(torch.embedding(tables.reshape(-1, width), flat))
