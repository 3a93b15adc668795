"""What a function changes after the report that used up its budget: that report's checkpoint is the trial's last one,
so that an extension continues as if there had been no end."""

from collections.abc import Hashable, Mapping
from typing import Any

from headrace.trial.saving import digest_of

Marks = Mapping[str, Hashable]


def marks(objects: Mapping[str, Any], state: Mapping[str, Any]) -> Marks:
    """Something that changes when a tracked model or a value in `t.state` does. No weights are read: a tensor counts
    its changes itself."""
    found: dict[str, Hashable] = {
        f"t.state[{name!r}]": digest_of(value, name) for name, value in state.items()
    }
    for name, target in objects.items():
        if callable(getattr(target, "named_parameters", None)):
            found[f"`{name}`"] = tuple(
                (part, getattr(one, "_version", None), id(one)) for part, one in _tensors(target)
            )
    return found


def _tensors(module: Any) -> list[tuple[str, Any]]:  # Any: a torch module, which this file must not import
    return [*module.named_parameters(), *module.named_buffers()]


def changed(before: Marks, after: Marks) -> list[str]:
    """The names of what changed, was added or is gone."""
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def warning(names: list[str], steps: int) -> str:
    """What the trial's log says about them."""
    one = "it is" if len(names) == 1 else "they are"
    return (
        f"{', '.join(names)} changed after the last report of the full budget ({steps} steps). The checkpoint is that "
        f"of the report, so {one} in it as before. Make the change before that report; for the weights of the best "
        "step, the study can say `keep: best`"
    )
