"""What fusion refuses, and what it cannot fuse; every message names the layer, op or hyperparameter."""

from headrace_torch.hydro.errors import HydroError


class FuseError(HydroError):
    """Base of fusion's errors."""


class MemberError(FuseError, ValueError):
    """A member's hyperparameter is unknown, out of range, or not one of this optimizer's."""


class StaticShapeError(FuseError, ValueError):
    """Members' models have different shapes, so no stacked tensor can hold them; names the layer."""


class LossShapeError(FuseError, ValueError):
    """The loss is not one number per member."""


class FusionGapError(FuseError, RuntimeError):
    """The model does something that cannot be fused, and the engine was asked for by name.

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
    """A worker process of the pool died or failed; the group's state is that before the step."""


class MemoryBudgetError(FuseError, ValueError):
    """Not even one member fits the memory budget."""
