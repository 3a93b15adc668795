"""A study's surrogate: from the study file to the model that a trial trains, with a suitable optimizer.

`headrace.trial` calls this if a study has a `surrogate`. A user needs only `optimizer`, which makes an ordinary
optimizer for an ordinary model.
"""

import importlib
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headrace_torch.hydro.errors import CoordinateCheckError, ParametrizationError, ShrinkError
from headrace_torch.hydro.gate import GateResult, ask, same_rules
from headrace_torch.hydro.parametrize.parametrization import OPTIMIZERS, identity
from headrace_torch.hydro.shrink.entry import shrink
from headrace_torch.hydro.shrink.surrogate import Surrogate, surrogate_behind

_SGD, _ADAM = "sgd", "adam"
_with_optimizer: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()


class _Answered:
    """What a study's gate says about one kind of optimizer."""

    def __init__(self, refusal: str = "") -> None:
        self._refusal = refusal

    @property
    def passed(self) -> bool:
        return not self._refusal

    def raise_if_refuted(self) -> object:
        if self._refusal:
            raise CoordinateCheckError(self._refusal)
        return self


def surrogate_of(
    factory: Callable[..., nn.Module],
    *,
    width: int | None = None,
    scale: int | None = None,
    optimizer: str = "adamw",
    inputs: str = "",
    gated: bool = True,
) -> Surrogate:
    """Makes the small copy that a study asks for.

    Args:
        factory: the user's; without an argument `width`, its model is rebuilt layer by layer.
        width: the copy's width.
        scale: how many times narrower than the model it is.
        optimizer: the optimizer that the study's gate has checked it with.
        inputs: `module:function` that returns a batch as forward() takes it; empty draws one that fits.
        gated: whether there is a gate. `fuse` and `optimizer` reject an optimizer that it has not checked.

    Raises:
        ShrinkError: the model cannot be made so small; names the layer.
        ParametrizationError: no rule fits a parameter.
    """
    batch = batch_of(inputs) if inputs else None
    if _takes_width(factory):
        made = shrink(factory, width=width, scale=scale, inputs=batch)
        if made.scale < 1:
            raise ShrinkError(
                f"a width of {width} is above the model's own, {made.family.source.base['width']}"
            )
    elif width is not None:
        raise ShrinkError(
            f"the function has no argument named width, and so makes no model of width {width}: give it one, or "
            "set how many times narrower the copy should be, scale: 8, to have it rebuilt layer by layer"
        )
    else:
        made = shrink(factory(), scale=scale, inputs=batch)
    for name in (_SGD, _ADAM):
        known: GateResult = _Answered()
        if gated and name != same_rules(optimizer):
            known = _Answered(
                f"the study's gate has checked {optimizer}, and other rules apply to the optimizer used "
                f"here: name it in the study file, surrogate: {{optimizer: {name}}}"
            )
        made.family.gates[name] = known
    return made


def optimizer(model: nn.Module, name: str, *, lr: float, **settings: Any) -> torch.optim.Optimizer:
    """Makes the torch optimizer for a model: "adamw", "adam" or "sgd", with rates in terms of the user's model.

    A small copy gets the multipliers of its parametrization, any other model an ordinary optimizer with one group.
    Make it of the model itself, before that is compiled or wrapped.

    Args:
        model: the model to train.
        name: the optimizer's name.
        lr: as for the user's model.
        settings: further settings, as torch takes them.

    Raises:
        ParametrizationError: the optimizer is another one, or the copy is wrapped.
        CoordinateCheckError: the copy's gate has checked another optimizer.
    """
    kind = name.lower()
    if kind not in OPTIMIZERS:
        raise ParametrizationError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, not {name!r}")
    surrogate = surrogate_behind(model)
    if surrogate is None:
        inside = next((path for path, one in model.named_modules() if path and surrogate_behind(one)), "")
        if inside:
            raise ParametrizationError(
                f"{inside} is the small copy, and it is wrapped here: make its optimizer before you wrap it"
            )
        return identity(model, kind).make_optimizer(model, lr=lr, **settings)
    if not surrogate.is_target:
        ask(surrogate.family.gates.get(same_rules(kind)), what="the optimizer of a surrogate")
    _with_optimizer.add(model)
    return surrogate.optimizer(model, kind, lr=lr, **settings)


def has_optimizer(model: nn.Module) -> bool:
    """Whether `optimizer` has made one for this model."""
    return model in _with_optimizer


def batch_of(target: str) -> tuple[Tensor, ...]:
    """The batch that a `module:function` returns: a tensor, or several in the order of forward()'s arguments.

    Raises:
        ShrinkError: it returns something else.
    """
    found = named(target)()
    batch = (found,) if isinstance(found, Tensor) else tuple(found) if isinstance(found, Sequence) else ()
    if not batch or not all(isinstance(one, Tensor) for one in batch):
        raise ShrinkError(
            f"{target} returned a {type(found).__name__}: return the tensors that the model is called with"
        )
    return batch


def named(target: str) -> Any:
    """What a `module:function` names. Raises ImportError and AttributeError as Python does."""
    module, _, path = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _takes_width(factory: Callable[..., Any]) -> bool:
    parameters = inspect.signature(factory).parameters
    return "width" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
