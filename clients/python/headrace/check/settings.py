"""What modules, optimizers and the process have beside every state_dict(). No checkpoint holds it.

Gradients, requires_grad, modes, hooks, attributes, environment variables.

A gradient is left over at nearly every report, and nearly every next step clears it first. So it is watched, in the
straight run, what the first backward pass after a report does: whether it adds to the gradient that was there. A
gradient that was cleared is another object, or has been written once more.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.check.digest import digest

TRAINED, FROZEN = "True", "False"
"""What requires_grad is."""
TRAINING, EVALUATING = "in train mode", "in eval mode"
HOOKS, ENVIRONMENT = "hooks of ", "os.environ["
"""How the names begin of what is counted, and of what the whole process has."""
_LONG = "-" * 64
_HOOKS_OF_MODULE = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_OPTIMIZER = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def is_hook(path: str) -> bool:
    """Whether it is a hook of a module or an optimizer: those are counted."""
    return any(f".{kind}[" in path for kind in (*_HOOKS_OF_MODULE, *_HOOKS_OF_OPTIMIZER))


class Gradients:
    """The gradients that a step takes over from the one before."""

    def __init__(self) -> None:
        self._hooks: list[Any] = []
        self.carried: dict[int, list[str]] = {}
        """The parameters that had such a gradient at a step's report."""

    def watch(self, modules: Mapping[str, Any], step: int) -> None:
        """Begins with what there is at the report of this step."""
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
    """By path, whether each parameter is trained, each module's mode, how many hooks there are, the attributes of
    optimizers; and the environment, as digests."""
    found = {name: TRAINED if one.requires_grad else FROZEN for name, one in _parameters(modules)}
    for variable, module in modules.items():
        for name, part in module.named_modules():
            path = f"{variable}.{name}" if name else variable
            found[path] = TRAINING if part.training else EVALUATING
            found |= _hooks(path, part, _HOOKS_OF_MODULE)
    for variable, optimizer in optimizers.items():
        found |= _hooks(variable, optimizer, _HOOKS_OF_OPTIMIZER)
        found |= {f"{variable}.{name}": digest(value) for name, value in plain_attributes(optimizer)}
    # As digests of lists that are too long to stand as they are: a variable may be a secret.
    return found | {f"{ENVIRONMENT}{name!r}]": digest([value, _LONG]) for name, value in os.environ.items()}


def plain_attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """The public ones of an object, but for a module's mode."""
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
    """`model.0.weight`, and how many more."""
    return f"`{names[0]}`" + (f" and {len(names) - 1} more" if names[1:] else "")
