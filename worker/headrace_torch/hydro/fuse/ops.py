"""The interception of torch's functions while a model runs for members: grouped rules, and counted dropout.

A `TorchFunctionMode` sees `functional.linear` whether a layer or the user's own code calls it, so rules apply to
any model. A function without a rule is passed on to torch, where `vmap` maps it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from headrace_torch.hydro.fuse.dropout import Masks
from headrace_torch.hydro.fuse.lanes import Lanes, is_stacked
from headrace_torch.hydro.fuse.rules import COMPOSITES, RULES
from headrace_torch.hydro.fuse.rules.attention import explicit_attention

DROPOUTS: Mapping[Callable[..., Any], int | None] = {
    # How many leading dims of an input, batch and channel, have their own mask; None for all.
    functional.dropout: None,
    torch.dropout: None,
    functional.dropout1d: 2,
    functional.dropout2d: 2,
    functional.dropout3d: 2,
}


_SETS_FLAG = Tensor.requires_grad_


class MemberOps(TorchFunctionMode):
    """Active while the model of one member, or of all under `vmap`, runs.

    Args:
        lanes: the members under `vmap`; None for a single member that runs alone.
        masks: dropout's; None if the model has no dropout.
        grouped: whether to use the grouped rules.
        tensors: the model's under `vmap`, by name.
    """

    def __init__(
        self,
        lanes: Lanes | None,
        masks: Masks | None,
        *,
        grouped: bool,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Keeps them."""
        super().__init__()
        self._tensors = tensors or {}
        self._lanes, self._masks, self._grouped = lanes, masks, grouped

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Tries dropout, then composites, then rules, then torch."""
        named = kwargs or {}
        out: Any = NotImplemented
        if self._masks is not None:
            out = self._drop(self._masks, func, args, named)
        if out is NotImplemented and self._grouped and self._lanes is not None:
            if (rule := RULES.get(func)) is not None:
                out = rule(self._lanes, *args, **named)
            elif (composite := COMPOSITES.get(func)) is not None:
                with self:
                    out = composite(*args, **named)
        if func is _SETS_FLAG and (
            name := next((key for key, one in self._tensors.items() if one is args[0]), "")
        ):
            raise RuntimeError(f"a step sets requires_grad of parameter {name}, which is one for all members")
        return func(*args, **named) if out is NotImplemented else out

    def _drop(
        self, masks: Masks, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        if func in DROPOUTS:
            return self._dropout(masks, DROPOUTS[func], *args, **kwargs)
        if func is functional.scaled_dot_product_attention and _rate_of_attention(args, kwargs) > 0:
            with self:
                return explicit_attention(*args, **kwargs)
        if (composite := COMPOSITES.get(func)) is not None:
            with self:
                return composite(*args, **kwargs)
        return NotImplemented

    def _dropout(
        self,
        masks: Masks,
        leading: int | None,
        input: Tensor,  # noqa: A002  torch's name
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if not training or not masks.active(p):
            return input
        shape = input.shape if leading is None else (*input.shape[:leading], *[1] * (input.dim() - leading))
        scales = masks.scales(shape, p, input.dtype)
        if self._lanes is None:
            return input.mul_(scales[0]) if inplace else input * scales[0]
        if inplace and is_stacked(input):
            return input.mul_(self._lanes.join(scales))
        return self._lanes.join(self._lanes.at(input, 0) * scales)


def _rate_of_attention(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
    rate: float = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
    return rate
