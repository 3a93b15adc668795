"""The model that a trial's function requests: the user's own, or the small copy of it that its study trains.

`headrace_torch.hydro`, which needs PyTorch, creates the copy. It is imported by name if a study needs a copy.
"""

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any, Final, Protocol

from headrace.trial.runtime import Surrogate

LIBRARY: Final = "headrace_torch.hydro"


def is_module(model: Any) -> bool:
    """Whether it is a model rather than a factory; a class of models is a factory."""
    return hasattr(model, "state_dict") and not isinstance(model, type)


class Params(Protocol):
    """Parameters by name."""

    def __getitem__(self, name: str, /) -> Any:
        """The value."""


def with_arguments(factory: Callable[..., Any], params: Params) -> Callable[..., Any]:
    """The factory with values for its arguments without a default, each from the parameter of the same name."""
    needed = arguments_needed(factory)
    return functools.partial(factory, **{name: params[name] for name in needed}) if needed else factory


def arguments_needed(factory: Callable[..., Any]) -> list[str]:
    """The names of a factory's arguments that have no default."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return []
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [one.name for one in parameters if one.kind in plain and one.default is one.empty]


def small_copy(factory: Callable[..., Any], surrogate: Surrogate, *, asked: str) -> Any:
    """The argument of `hydro.fuse`: the copy of the model that a factory creates. `asked` is the call, for
    messages.

    Raises `ValueError` for a model other than the study's, and `ImportError` if PyTorch is missing.
    """
    refuse_other(factory, surrogate, asked=asked)
    library = importlib.import_module(LIBRARY)
    return library.surrogate_of(
        factory,
        width=surrogate.width or None,
        scale=surrogate.scale or None,
        optimizer=surrogate.optimizer,
        inputs=surrogate.inputs,
        gated=surrogate.gated,
    )


def refuse_plain_optimizer(copy: Any) -> None:
    """Raises `ValueError` if a small copy is about to be trained by an optimizer that does not treat it as one."""
    if not importlib.import_module(LIBRARY).has_optimizer(copy):
        raise ValueError(
            "t.model(...) made a small copy, whose layers have learning rates of their own: make its optimizer with "
            "headrace_torch.hydro.optimizer(model, 'adamw', lr=...), before t.steps()"
        )


def refuse_other(factory: Callable[..., Any], surrogate: Surrogate, *, asked: str) -> None:
    """Raises `ValueError` for a function that, by its name, is not that of the study's surrogate."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    name = f"{getattr(factory, '__module__', '')}:{getattr(factory, '__qualname__', '')}"
    if name != surrogate.model and factory is not _named(surrogate.model):
        raise ValueError(
            f"{asked} got {name}, and the study's surrogate is made of {surrogate.model}, which its gate checked: ask "
            "for that one, or name this one in the study file, as surrogate.model"
        )


def _named(target: str) -> Any:
    """The object that a `module:function` names, which its module may import from elsewhere; None if there is
    none.
    """
    module, _, path = target.partition(":")
    try:
        return functools.reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError):
        return None
