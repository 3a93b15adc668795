"""The loss of one member: how it is called, and what it must return."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from headrace_torch.hydro.fuse.engines.work import Batch, LossFn
from headrace_torch.hydro.fuse.errors import FuseError, LossShapeError


class Criterion:
    """A loss of (output, target), such as `nn.CrossEntropyLoss()`, on batches (*inputs, target)."""

    def __init__(self, criterion: Any) -> None:
        """Keeps the criterion."""
        self.criterion = criterion

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """Calls the model on everything in the batch but its last part."""
        *inputs, target = batch
        loss: Tensor = self.criterion(model(*inputs), target)
        return loss


def as_loss(loss_fn: Any) -> LossFn:
    """Wraps a criterion: a function of torch.nn.functional, or a module whose first argument is not the model.

    Anything else takes (model, batch). So does a module of the user's own whose first argument is named `model` or
    annotated as a module.

    Raises:
        FuseError: it cannot be called.
    """
    if not callable(loss_fn):
        raise FuseError(
            f"loss_fn must be a function of (model, batch), or a criterion such as nn.CrossEntropyLoss(), not "
            f"{loss_fn!r}"
        )
    if isinstance(loss_fn, nn.Module):
        is_criterion = not _takes_model(loss_fn)
    else:
        is_criterion = getattr(loss_fn, "__module__", "") == "torch.nn.functional"
    if is_criterion:
        return Criterion(loss_fn)
    out: LossFn = loss_fn
    return out


def _takes_model(loss: nn.Module) -> bool:
    try:
        parameters = [*inspect.signature(loss.forward, eval_str=False).parameters.values()]
    except (TypeError, ValueError):
        return False
    if not parameters:
        return False
    first = parameters[0]
    stated = first.annotation
    words = stated if isinstance(stated, str) else getattr(stated, "__name__", "")
    is_module = isinstance(stated, type) and issubclass(stated, nn.Module)
    return (
        first.name in ("model", "module", "net", "network") or is_module or words.split(".")[-1] == "Module"
    )


def checked(loss: Any, count: Tensor | int | None) -> Tensor:
    """Returns a member's loss as one number.

    Args:
        loss: what the user's function returned for this member.
        count: with padded batches, how many rows count; the loss then has one number per row.

    Raises:
        LossShapeError: it is not one number or, with padding, not one per row.
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
