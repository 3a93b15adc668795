"""What can be tracked, and how its state is taken and given back.

Four protocols are in use in the wild; an object is tracked by the first that it has.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """One tracked object with the two functions that a checkpoint needs."""

    name: str
    target: Any
    take: Callable[[], Any]
    give: Callable[[Any], Any]


def named_by_type(
    objects: Sequence[Any], named: Mapping[str, Any], *, known: Collection[str]
) -> dict[str, Any]:
    """All objects by name, those without one by their type: `CosineAnnealingLR` is `cosine_annealing_lr`.

    Raises `ValueError` for a name that is `known` already, or stands twice: which object is which must not depend on
    their order. Raises `TypeError` for a dictionary.
    """
    for name in named:
        if name in known:
            raise ValueError(f"t.track({name}=...) was called before; each object has a name of its own")
    found: dict[str, Any] = {}
    for target in objects:
        kind = type(target).__name__
        if isinstance(target, Mapping):
            raise TypeError(f"t.track(...) got a {kind}; give each object a name, as in t.track(**objects)")
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind).lower()
        if name in known or name in named or name in found:
            raise ValueError(
                f"t.track(...) got more than one object of the type {kind}, or called {name!r}; "
                f"give each a name of its own, as in t.track({name}_1=..., {name}_2=...)"
            )
        found[name] = target
    return {**found, **named}


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
    plain = target is None or isinstance(target, bool | int | float | str | bytes | list | dict | tuple | set)
    kept = "the value" if plain else f"pickle.dumps({name}), made anew before each report,"
    raise TypeError(
        f"t.track({name}=...) got a {type(target).__name__}, which has no state_dict() and load_state_dict(); "
        f"keep {kept} in t.state[{name!r}] instead"
    )
