"""State of modules, optimizers and the process outside every state_dict(). No checkpoint holds it.

Gradients, requires_grad, modes, hooks, attributes, environment variables.

A gradient is left over at nearly every report, and nearly every next step clears it first. So the straight run
watches what the first backward pass after a report does: whether it adds to the existing gradient. A gradient
that was cleared is a different object, or has been written once more.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.check.digest import digest

TRAINED, FROZEN = "True", "False"
"""The values of requires_grad."""
TRAINING, EVALUATING = "in train mode", "in eval mode"
HOOKS, ENVIRONMENT = "hooks of ", "os.environ["
"""Prefixes of the names of counted hooks, and of the process's environment variables."""
_LONG = "-" * 64
_HOOKS_OF_MODULE = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_OPTIMIZER = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def is_hook(path: str) -> bool:
    """Whether a path leads to a hook of a module or an optimizer. Hooks are only counted."""
    return any(f".{kind}[" in path for kind in (*_HOOKS_OF_MODULE, *_HOOKS_OF_OPTIMIZER))


class Gradients:
    """Gradients that carry over from one step to the next."""

    def __init__(self) -> None:
        self._hooks: list[Any] = []
        self.carried: dict[int, list[str]] = {}
        """The parameters that had such a gradient at a step's report."""

    def watch(self, modules: Mapping[str, Any], step: int) -> None:
        """Start with the gradients at the report of this step."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._seen(name, parameter.grad, step))
            for name, parameter in _parameters(modules)
            if parameter.is_leaf and parameter.requires_grad
            if (gradient := parameter.grad) is not None and not gradient.is_sparse
            if bool(gradient.count_nonzero())
        ]

    def _seen(self, name: str, gradient: Any, step: int) -> Any:
        version = gradient._version
        begun = False

        def seen(parameter: Any) -> None:
            nonlocal begun
            if not begun and parameter.grad is gradient and gradient._version == version + 1:
                self.carried.setdefault(step, []).append(name)
            begun = True

        return seen


def settings_of(modules: Mapping[str, Any], optimizers: Mapping[str, Any]) -> dict[str, str]:
    """The settings by path: whether each parameter is trained, each module's mode, the number of hooks,
    attributes of optimizers; and the environment, as digests.
    """
    found = {name: TRAINED if one.requires_grad else FROZEN for name, one in _parameters(modules)}
    for variable, module in modules.items():
        for name, part in module.named_modules():
            path = f"{variable}.{name}" if name else variable
            found[path] = TRAINING if part.training else EVALUATING
            found |= _hooks(path, part, _HOOKS_OF_MODULE)
    for variable, optimizer in optimizers.items():
        found |= _hooks(variable, optimizer, _HOOKS_OF_OPTIMIZER)
        found |= {f"{variable}.{name}": digest(value) for name, value in plain_attributes(optimizer)}
    # As digests of lists too long to be shown as they are: a variable may be a secret.
    return found | {f"{ENVIRONMENT}{name!r}]": digest([value, _LONG]) for name, value in os.environ.items()}


def plain_attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """The public plain attributes of an object, except a module's mode."""
    for name, item in vars(value).items():
        if (
            not name.startswith("_")
            and name != "training"
            and type(item) in (bool, int, float, str, type(None))
        ):
            yield name, item


def _hooks(path: str, value: Any, kinds: Iterable[str]) -> dict[str, str]:
    count = sum(len(getattr(value, kind, ())) for kind in kinds)
    return {f"{HOOKS}`{path}`": str(count)} if count else {}


def _parameters(modules: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for variable, module in modules.items():
        for name, parameter in module.named_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{variable}.{name}", parameter


def listed_briefly(names: Sequence[str]) -> str:
    """The first name, such as `model.0.weight`, and how many more there are."""
    return f"`{names[0]}`" + (f" and {len(names) - 1} more" if names[1:] else "")
