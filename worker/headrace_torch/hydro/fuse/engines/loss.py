"""The loss of one member: how it is called, and what it must return."""

from typing import Any

import torch
from torch import Tensor, nn

from headrace_torch.hydro.fuse.engines.work import Batch, LossFn
from headrace_torch.hydro.fuse.errors import LossShapeError


class Criterion:
    """A loss of (output, target), such as `nn.CrossEntropyLoss()`, on batches (*inputs, target)."""

    def __init__(self, criterion: Any) -> None:
        """Keeps the criterion."""
        self.criterion = criterion

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """Calls the model on all of the batch but its last part."""
        *inputs, target = batch
        loss: Tensor = self.criterion(model(*inputs), target)
        return loss


def as_loss(loss_fn: Any) -> LossFn:
    """Wraps a criterion (a module, or a function of torch.nn.functional); anything else takes (model, batch)."""
    if isinstance(loss_fn, nn.Module) or getattr(loss_fn, "__module__", "") == "torch.nn.functional":
        return Criterion(loss_fn)
    out: LossFn = loss_fn
    return out


def checked(loss: Any, count: Tensor | int | None) -> Tensor:
    """Returns a member's loss as one number.

    Args:
        loss: what the user's function returned for this member.
        count: with padded batches, how many rows count; the loss then has one number per row.

    Raises:
        LossShapeError: it is not one number, or with padding not one per row.
    """
    if not isinstance(loss, Tensor):
        raise LossShapeError(f"the loss must be a tensor, not {type(loss).__name__}; return it undetached")
    if count is None:
        if loss.dim() == 0:
            return loss
        if loss.numel() != 1:
            raise LossShapeError(
                f"the loss has shape {tuple(loss.shape)} and must be one number per member: the mean over that "
                "member's batch. The group itself sums over members; a mean over members would divide each "
                "one's gradient by their number"
            )
        return loss.reshape(())
    if loss.dim() != 1:
        raise LossShapeError(
            f"with padded batches the loss must have one number per row, (B,), not shape {tuple(loss.shape)}: "
            "use reduction='none'"
        )
    counted = torch.arange(loss.shape[0], device=loss.device) < count
    return torch.where(counted, loss, torch.zeros_like(loss)).sum() / count
