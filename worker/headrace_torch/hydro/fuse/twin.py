"""Copies of a user's module that train as it would, and what cannot be copied.

`copy.deepcopy` drops hooks on parameters, and rejects tensors with a history. A twin has the hooks, with the
twin's own parts where a hook's function holds parts of the module. What a function shares with the user's program,
such as a list that it fills, stays shared.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from headrace_torch.hydro.fuse.errors import FuseError
from headrace_torch.hydro.fuse.objects import tensors_within, unregistered


def twin(module: nn.Module) -> nn.Module:
    """A deep copy with the hooks of its parameters.

    Raises:
        FuseError: the module holds something that cannot be copied.
    """
    memo = _empty_registries(module)
    for _, one in tensors_within(module):
        if one.grad_fn is not None:  # an activation that was kept; deepcopy would raise
            memo[id(one)] = one.detach().clone()
    try:
        copied = copy.deepcopy(module, memo)
    except Exception as error:
        raise FuseError(
            f"the model cannot be copied, and each member needs a copy: {error}; give fuse a factory that makes it"
        ) from error
    for old, new in zip(module.parameters(), copied.parameters(), strict=True):
        _carry(old, new, memo)
    return copied


def hooked(module: nn.Module) -> str:
    """Names a parameter with hooks; empty if there is none."""
    for name, one in module.named_parameters():
        if one._backward_hooks:
            return f"parameter {name} has a hook (register_hook)"
        if _after(one):
            return f"parameter {name} has a hook (register_post_accumulate_grad_hook)"
    return ""


def has_hooks(parameter: Tensor) -> bool:
    """Whether any hook is called with its gradient."""
    return bool(parameter._backward_hooks or _after(parameter))


def hook_functions(module: nn.Module) -> list[Callable[..., Any]]:
    """All functions that run when the module or its backward pass does."""
    found: list[Callable[..., Any]] = []
    for one in module.parameters():
        found += [*(one._backward_hooks or {}).values(), *_after(one).values()]
    for child in module.modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            found += list(vars(child).get(kind, {}).values())
    return found


def cast(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Casts a module in place, including tensors that it has not registered; returns it."""
    module.to(dtype)
    for one in unregistered(module):
        if one.is_floating_point():
            one.data = one.data.to(dtype)
            one.grad = None
    return module


_REGISTRIES = frozenset(vars(nn.Module()))


def _empty_registries(module: nn.Module) -> dict[int, Any]:
    """Copies of the empty registries of layers, for deepcopy's memo. Most of a copy's time goes into a dozen of
    these per layer, because an `OrderedDict` is copied by `__reduce_ex__`.
    """
    return {
        id(held): type(held)()
        for one in module.modules()
        for name, held in vars(one).items()
        if name in _REGISTRIES and type(held) in (dict, set, OrderedDict) and not held
    }


def _after(parameter: Tensor) -> dict[int, Callable[..., Any]]:
    return getattr(parameter, "_post_accumulate_grad_hooks", None) or {}


def _carry(old: nn.Parameter, new: nn.Parameter, memo: dict[int, Any]) -> None:
    for hook in (old._backward_hooks or {}).values():
        new.register_hook(_rebound(hook, memo))  # type: ignore[no-untyped-call]  # torch's is untyped
    for hook in _after(old).values():
        new.register_post_accumulate_grad_hook(_rebound(hook, memo))  # type: ignore[no-untyped-call]


def _rebound(function: Any, memo: dict[int, Any]) -> Any:
    """The function with the copy's parts in place of the original's."""
    if isinstance(function, MethodType):
        return MethodType(function.__func__, memo.get(id(function.__self__), function.__self__))
    if not isinstance(function, FunctionType) or not function.__closure__:
        return memo.get(id(function), function)
    cells = tuple(
        CellType(memo[id(one.cell_contents)]) if id(one.cell_contents) in memo else one
        for one in function.__closure__
    )
    defaults = tuple(memo.get(id(one), one) for one in function.__defaults__ or ())
    out = FunctionType(function.__code__, function.__globals__, function.__name__, defaults or None, cells)
    out.__kwdefaults__ = function.__kwdefaults__
    return out
