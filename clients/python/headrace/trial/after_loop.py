"""What a function changes after the report that used up its budget: that report's checkpoint is the trial's last one,
so that an extension continues as if there had been no end.

It is only a hint for the log. It never fails a trial and never reads weights: it compares how often each parameter
was changed in place, as by `load_state_dict`, and which values `t.state` holds.
"""

from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import Any

Marks = Mapping[str, Hashable]


def marks(objects: Mapping[str, Any], state: Mapping[str, Any]) -> Marks:
    """Something that changes when a parameter of a tracked model, or a value in `t.state`, does. Raises nothing."""
    found: dict[str, Hashable] = {
        f"t.state[{name!r}]": value if isinstance(value, str | int | float) else id(value)
        for name, value in state.items()
    }
    for name, target in objects.items():
        with suppress(Exception):  # no model, or one that cannot tell
            found[f"`{name}`"] = tuple(one._version for one in target.parameters())
    return found


def changed(before: Marks, after: Marks) -> list[str]:
    """The names of what changed, was added or is gone."""
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def warning(names: list[str], steps: int) -> str:
    """What the trial's log says about them."""
    return (
        f"{', '.join(names)} changed after the report at the full budget ({steps} steps). The trial's checkpoint was "
        "saved with that report and does not include the change. Make the change before that report or, to get the "
        "weights of the best step, write `keep: best` into the study"
    )
