"""Forward multipliers as hooks on the user's own modules: types, names and state dicts stay as they are.

A hook is an instance of a class that can be imported, so that a module with hooks can be copied, pickled, run
under `functional_call` and under `vmap`. At scale 1 no hook is installed. If the user's forward pass computes with
bare functions, two modules without parameters mark the place: `Readout` before the logits, `Query` before the
scores.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import multi_head_attention_forward, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

# The positions at which `multi_head_attention_forward` takes them.
_EMBED_DIM, _IN_PROJ_WEIGHT, _IN_PROJ_BIAS = 3, 5, 6


class Readout(nn.Identity):
    """Marks the input of logits that a function computes: `self.readout(x) @ self.words.weight.T`."""


class Query(nn.Identity):
    """Marks queries (…, head width) of scores computed by hand: `self.query(q) @ k.mT / k.shape[-1] ** 0.5`."""


@dataclass(slots=True)
class ScaledInput:
    """Forward pre-hook: multiplies the first input, whether it is passed by position or by name."""

    multiplier: float

    def __call__(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (args[0] * self.multiplier, *args[1:]), kwargs
        first = next(iter(kwargs))
        return args, {**kwargs, first: kwargs[first] * self.multiplier}


@dataclass(slots=True)
class ScaledResidual:
    """Forward hook on a residual block: multiplies what the block adds to its first input."""

    multiplier: float

    def __call__(self, _module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        stream: Tensor = args[0]
        return torch.lerp(stream, output, self.multiplier)


@dataclass(slots=True)
class EnterAttention:
    """Forward pre-hook on a module that computes attention; `LeaveAttention` ends what it starts."""

    multiplier: float

    def __call__(self, _module: nn.Module, _args: tuple[Any, ...]) -> None:
        AttentionScaling(self.multiplier).__enter__()  # type: ignore[no-untyped-call]  # torch's mode is untyped


@dataclass(slots=True)
class LeaveAttention:
    """Forward hook, also called when the forward pass raises."""

    multiplier: float

    def __call__(self, _module: nn.Module, _args: tuple[Any, ...], _output: Any) -> None:
        # Leaving a mode pops the top of this thread's stack, which is the one that `EnterAttention` pushed.
        AttentionScaling(self.multiplier).__exit__(None, None, None)  # type: ignore[no-untyped-call]


class AttentionScaling(TorchFunctionMode):
    """While active, multiplies the logits of every attention."""

    def __init__(self, multiplier: float) -> None:
        super().__init__()
        self.multiplier = multiplier

    def __torch_function__(
        self,
        func: Any,
        _types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        changed = dict(kwargs or {})
        if func is scaled_dot_product_attention:
            query = args[0] if args else changed["query"]
            scale = changed.get("scale")
            changed["scale"] = (query.shape[-1] ** -0.5 if scale is None else scale) * self.multiplier
        elif func is multi_head_attention_forward:
            args = self._with_scaled_queries(args, changed)
        return func(*args, **changed)

    def _with_scaled_queries(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Scores are linear in the queries: scaling their projection scales them. Changes `kwargs` in place."""
        changed = list(args)
        width = changed[_EMBED_DIM]
        if kwargs.get("use_separate_proj_weight"):
            kwargs["q_proj_weight"] = kwargs["q_proj_weight"] * self.multiplier
        else:
            changed[_IN_PROJ_WEIGHT] = self._scale_rows(changed[_IN_PROJ_WEIGHT], width)
        if changed[_IN_PROJ_BIAS] is not None:
            changed[_IN_PROJ_BIAS] = self._scale_rows(changed[_IN_PROJ_BIAS], width)
        return tuple(changed)

    def _scale_rows(self, projection: Tensor, width: int) -> Tensor:
        return torch.cat([projection[:width] * self.multiplier, projection[width:]])


def scale_input(module: nn.Module, multiplier: float) -> None:
    """Multiplies what the module is called with."""
    module.register_forward_pre_hook(ScaledInput(multiplier), with_kwargs=True)


def scale_attention(module: nn.Module, multiplier: float) -> None:
    """Multiplies the logits of the attention that the module's forward computes."""
    module.register_forward_pre_hook(EnterAttention(multiplier))
    module.register_forward_hook(LeaveAttention(multiplier), always_call=True)


def scale_residual(module: nn.Module, multiplier: float) -> None:
    """Multiplies what a residual block adds to its input."""
    module.register_forward_hook(ScaledResidual(multiplier))
