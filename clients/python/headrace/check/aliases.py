"""Values in `t.state` that are not copies: they share memory with a tracked object, and change with it.

After `t.state["best"] = model.state_dict()` a step also changes what `t.state` holds. After a restore it does not.
"""

from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from headrace.check.classes import Classes

_DEEPEST = 4
_MOST = 1_000
_CONTAINERS = (list, dict, set, deque, bytearray)


def aliases(state: Mapping[str, Any], tracked: Mapping[str, Any]) -> dict[str, str]:
    """The keys of `t.state` whose values share memory with a tracked object, with its name in `t.track(...)`."""
    kinds, owners = Classes.imported(), dict[Hashable, str]()
    for name, target in tracked.items() if state else ():
        for place in _places_of_all(target, kinds):
            owners.setdefault(place, name)
    return {
        key: owner
        for key, value in state.items()
        if (owner := next((owners[at] for at in _places(value, kinds) if at in owners), ""))
    }


def _places_of_all(target: Any, kinds: Classes) -> Iterator[Hashable]:
    """The memory of a module's tensors, and of any object's attributes."""
    if issubclass(type(target), kinds.module):
        for tensor in (*target.parameters(), *target.buffers()):
            yield from _places(tensor, kinds)
    for value in getattr(target, "__dict__", {}).values():
        yield from _places(value, kinds)


def _places(value: Any, kinds: Classes, depth: int = _DEEPEST) -> Iterator[Hashable]:
    """The parts of a value that can change, by their location in memory."""
    if issubclass(type(value), kinds.tensor):
        yield from _address(value)
    elif issubclass(type(value), kinds.array):
        while issubclass(type(value.base), kinds.array):
            value = value.base
        yield id(value)
    elif issubclass(type(value), _CONTAINERS):
        yield id(value)
        if depth and len(value) <= _MOST and not isinstance(value, bytearray):
            for item in tuple(value.values() if isinstance(value, dict) else value):
                yield from _places(item, kinds, depth - 1)
    elif type(value) is tuple and depth and len(value) <= _MOST:
        for item in value:
            yield from _places(item, kinds, depth - 1)


def _address(tensor: Any) -> Iterator[Hashable]:
    try:
        address = tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # for example, a sparse tensor has no storage of its own
        return
    if address:
        yield "storage", address
