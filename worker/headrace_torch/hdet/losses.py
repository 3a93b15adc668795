"""The mean loss of an interval, added up on the device: observing a loss never waits for the GPU."""

import torch
from torch import Tensor

from headrace_torch.hdet.errors import HdetConfigError


class LossMeter:
    """A weighted mean of losses since the last reset.

    Every micro-batch is one observation; its weight is the number of samples or tokens that it stands for, 1 by
    default. The sum is kept in double precision on the loss's device.
    """

    def __init__(self) -> None:
        """An empty meter."""
        self._total: Tensor | float = 0.0
        self._weight = 0.0

    def observe(self, loss: Tensor | float, weight: float = 1.0) -> None:
        """Adds a loss; a tensor of one element is detached and stays on its device.

        Raises:
            HdetConfigError: the tensor has more than one element.
        """
        if isinstance(loss, Tensor):
            if loss.numel() != 1:
                raise HdetConfigError(
                    f"a loss is one number, not a tensor of shape {tuple(loss.shape)}: give the mean of the batch"
                )
            wide = torch.float32 if loss.device.type == "mps" else torch.float64
            loss = loss.detach().reshape(()).to(wide)
        self._total = self._total + loss * weight
        self._weight += weight

    def read(self) -> tuple[float, float]:
        """Returns the weighted sum and the weight; waits for the device."""
        return float(self._total), self._weight

    def reset(self) -> None:
        """Resets the sum and the weight."""
        self._total, self._weight = 0.0, 0.0

    def load(self, total: float, weight: float) -> None:
        """Resumes from what `read` returned."""
        self._total, self._weight = total, weight
