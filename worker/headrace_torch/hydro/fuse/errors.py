"""What fusion rejects, and what it cannot fuse; every message names the layer, op or hyperparameter."""

import torch

from headrace_torch.hydro.errors import HydroError


class FuseError(HydroError):
    """Base of fusion's errors."""


class MemberError(FuseError, ValueError):
    """One member is the cause: a hyperparameter, its state, or an error that it raised in a step.

    The group's state is as it was before the call. So the caller can drop this member, and repeat the step for the
    others.

    Attributes:
        member: the member's id, or the one that it would have got; None if no single member is the cause.
    """

    def __init__(self, message: str, *, member: int | None = None) -> None:
        """Keeps the id."""
        super().__init__(message)
        self.member = member


class StaticShapeError(MemberError):
    """A member's model has other shapes than the group's, so no stacked tensor can hold both; names the layer."""


class LossShapeError(FuseError, ValueError):
    """The loss is not one number per member."""


class FusionGapError(FuseError, RuntimeError):
    """The model does something that cannot be fused, and the engine was requested by name.

    Attributes:
        reason: names the layer and the op.
    """

    def __init__(self, reason: str) -> None:
        """Keeps the reason."""
        super().__init__(
            f"this model cannot be fused: {reason}; use engine='auto', which falls back, or 'separate'"
        )
        self.reason = reason


class PoolError(FuseError, RuntimeError):
    """A worker process of the pool died or failed; the group's state is as it was before the step."""


class MemoryBudgetError(FuseError, ValueError):
    """Not even one member fits the memory budget."""


class OutOfMemoryError(FuseError, MemoryError):
    """A device has too little memory for this many members; no single one of them is the cause.

    Attributes:
        members: how many there were.
    """

    def __init__(self, members: int, device: torch.device, error: BaseException) -> None:
        """Says how many members were too many."""
        super().__init__(
            f"{device} has too little memory for a step of {members} members: use fewer members, a smaller batch or a "
            f"smaller model ({str(error).partition(chr(10))[0]})"
        )
        self.members = members


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a device or on the machine."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("DefaultCPUAllocator" in text or "not enough memory" in text)
