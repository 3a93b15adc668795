"""Normalisation: BatchNorm over N·C channels, LayerNorm with an affine map per member."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, addcmul
from torch.nn import functional

from headrace_torch.hydro.fuse.lanes import Lanes, is_stacked


def batch_norm(
    lanes: Lanes,
    input: Tensor,  # noqa: A002  torch's name
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Each channel has its own statistics, so members' channels are side by side: (B, N·C, …).

    Running statistics are updated in place: stacked (N, C) and contiguous, or absent.
    """
    if not is_stacked(input) or input.dim() < 2:
        return NotImplemented
    running = [None if value is None else lanes.at(value, 0) for value in (running_mean, running_var)]
    if any(value is not None and not value.is_contiguous() for value in running):
        return NotImplemented
    affine = [None if value is None else lanes.at(value, 0).reshape(-1) for value in (weight, bias)]
    means, variances = (None if value is None else value.view(-1) for value in running)
    folded = lanes.at(input, 1).flatten(1, 2)
    out = functional.batch_norm(folded, means, variances, affine[0], affine[1], training, momentum, eps)
    return lanes.join(out.view(out.shape[0], lanes.size, -1, *out.shape[2:]), 1)


def layer_norm(
    lanes: Lanes,
    input: Tensor,  # noqa: A002  torch's name
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    """One call of the kernel without its affine map, which is one fused multiply-add over all members."""
    if not is_stacked(input):
        return NotImplemented
    x, dim = lanes.split(input)
    assert dim is not None
    if dim > input.dim() - len(normalized_shape):
        x, dim = x.movedim(dim, 0), 0
    out = functional.layer_norm(x, normalized_shape, None, None, eps)
    scale, shift = (
        None if value is None else _beside(lanes, value, dim, out.dim()) for value in (weight, bias)
    )
    if scale is not None:
        out = out * scale if shift is None else addcmul(shift, out, scale)
    elif shift is not None:
        out = out + shift
    return lanes.join(out, dim)


def _beside(lanes: Lanes, value: Tensor, dim: int, rank: int) -> Tensor:
    """A per-member vector, shaped so that it broadcasts against a tensor whose member dim is `dim`."""
    stacked = lanes.at(value, 0)
    shape = [1] * rank
    shape[dim] = lanes.size
    shape[rank - value.dim() :] = value.shape
    return stacked.reshape(shape)
