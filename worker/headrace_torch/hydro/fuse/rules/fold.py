"""Operators that treat every image of a batch alike: members are folded into the batch."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from headrace_torch.hydro.fuse.lanes import Lanes


def fold_images(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a rule for an operator on (B, C, H, W), with the member dim between B and C.

    `vmap` would move it to the front first, which copies activations that come out of a grouped convolution.
    """

    def rule(lanes: Lanes, input: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002  torch's name
        if input.dim() != 4 or kwargs.pop("return_indices", False):
            return NotImplemented
        stacked, dim = lanes.split(input)
        if dim is None or dim > 1:
            return NotImplemented
        out = operator(stacked.flatten(0, 1), *args, **kwargs)
        return lanes.join(out.view(*stacked.shape[:2], *out.shape[1:]), dim)

    return rule
