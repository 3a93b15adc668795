"""What a module has beside its state_dict(): gradients, requires_grad and its mode. No checkpoint holds them.

A gradient is left over at nearly every report, and nearly every next step clears it first. So it is watched, in the
straight run, what the first backward pass after a report does: whether it adds to the gradient that was there. A
gradient that was cleared is another object, or has been written once more.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

TRAINED, FROZEN = "True", "False"
"""What requires_grad is."""
_TRAINING, _EVALUATING = "in train mode", "in eval mode"


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


def settings_of(modules: Mapping[str, Any]) -> dict[str, str]:
    """By path, whether each parameter is trained, and each module's mode."""
    found = {name: TRAINED if one.requires_grad else FROZEN for name, one in _parameters(modules)}
    for variable, module in modules.items():
        for name, part in module.named_modules():
            found[f"{variable}.{name}" if name else variable] = _TRAINING if part.training else _EVALUATING
    return found


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
