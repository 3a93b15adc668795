"""What can be tracked, and how its state is taken and given back.

Four protocols are in use in the wild; an object is tracked by the first that it has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """One tracked object with the two functions that a checkpoint needs."""

    name: str
    target: Any
    take: Callable[[], Any]
    give: Callable[[Any], Any]


def tracked(name: str, target: Any) -> Tracked:
    """Raises `TypeError`, naming the argument, for an object that offers no state."""
    for take, give in (
        ("state_dict", "load_state_dict"),
        ("get_state", "set_state"),
        ("getstate", "setstate"),
    ):
        if callable(getattr(target, take, None)) and callable(getattr(target, give, None)):
            return Tracked(name=name, target=target, take=getattr(target, take), give=getattr(target, give))
    bit_generator = getattr(target, "bit_generator", None)  # numpy.random.Generator
    if bit_generator is not None and hasattr(bit_generator, "state"):
        return Tracked(
            name=name,
            target=target,
            take=lambda: bit_generator.state,
            give=lambda state: setattr(bit_generator, "state", state),
        )
    raise TypeError(
        f"t.track({name}=...) got a {type(target).__name__}, which has no state_dict() and load_state_dict(); "
        f"keep plain values in t.state[{name!r}] instead"
    )
