"""Cross-entropy of all members' rows in one call; `vmap` splits it into some ten operations."""

from typing import Any

from torch import Tensor
from torch.nn import functional

from headrace_torch.hydro.fuse.lanes import Lanes, is_stacked


def cross_entropy(
    lanes: Lanes,
    input: Tensor,  # noqa: A002  torch's name
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Logits (B, C) and classes (B,): members' rows stacked below each other, reduced member by member."""
    plain = weight is None and size_average is None and reduce is None and label_smoothing == 0.0
    if not plain or not is_stacked(input) or input.dim() != 2 or target.dim() != 1:
        return NotImplemented
    logits = lanes.at(input, 0)
    classes = lanes.at(target, 0)
    losses = functional.cross_entropy(
        logits.flatten(0, 1), classes.reshape(-1), ignore_index=ignore_index, reduction="none"
    ).view(lanes.size, -1)
    if reduction == "none":
        return lanes.join(losses)
    total = losses.sum(1)
    if reduction == "mean":
        counted, dim = lanes.split((target != ignore_index).sum())
        total = total / (counted if dim is None else counted.movedim(dim, 0))
    return lanes.join(total)
