"""Values in `t.state` that are no copies: they lie in the memory of a tracked object, and change with it.

A restore makes two objects of them, as `t.state["best"] = model.state_dict()` is from then on a copy, which it was not.
"""

from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

_DEEPEST = 4
_MOST = 1_000
_CONTAINERS = (list, dict, set, deque, bytearray)


def aliases(state: Mapping[str, Any], tracked: Mapping[str, Any]) -> dict[str, str]:
    """The keys of `t.state` whose values share memory with a tracked object, with its name in `t.track(...)`."""
    owners: dict[Hashable, str] = {}
    for name, target in tracked.items() if state else ():
        for part in (*_tensors(target), *_attributes(target)):
            for place in _places(part, _DEEPEST):
                owners.setdefault(place, name)
    return {
        key: owner
        for key, value in state.items()
        if (owner := next((owners[at] for at in _places(value, _DEEPEST) if at in owners), ""))
    }


def _places(value: Any, depth: int) -> Iterator[Hashable]:
    """What can change of a value, by where it is."""
    storage = getattr(value, "untyped_storage", None)
    if callable(storage):
        yield from _address(storage)
    elif hasattr(value, "__array_interface__"):
        while isinstance(base := getattr(value, "base", None), type(value)):
            value = base
        yield id(value)
    elif isinstance(value, _CONTAINERS):
        yield id(value)
        if depth and len(value) <= _MOST and not isinstance(value, bytearray):
            for item in tuple(value.values() if isinstance(value, dict) else value):
                yield from _places(item, depth - 1)
    elif isinstance(value, tuple) and depth and len(value) <= _MOST:
        for item in value:
            yield from _places(item, depth - 1)


def _address(storage: Any) -> Iterator[Hashable]:
    try:
        address = storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a tensor without memory of its own
        return
    if address:
        yield "storage", address


def _tensors(target: Any) -> Iterator[Any]:
    for names in ("parameters", "buffers"):
        if callable(found := getattr(target, names, None)):
            yield from found()


def _attributes(target: Any) -> Iterator[Any]:
    yield from getattr(target, "__dict__", {}).values()
