"""The plain values of the script's own variables, as text or digests."""

import sys
from collections.abc import Iterator
from typing import Any

from headrace.check import discover
from headrace.check.classes import Classes
from headrace.check.digest import digest
from headrace.check.plain_values import NAMED, is_one_value, is_plain_container, named
from headrace.check.settings import is_hook
from headrace.check.snapshot import Owner

_MOST_ELEMENTS = 1 << 22
_MOST_ELEMENTS_IN_ALL = 1 << 25


class Variables:
    """The values of the script's own variables, and which of them a framework saves."""

    def __init__(self, classes: Classes, *, room: int = _MOST_ELEMENTS_IN_ALL) -> None:
        self._classes = classes
        self._reached: set[int] = set()
        self._room = room
        self.found: dict[str, str] = {}
        self.caches: dict[str, int] = {}
        self.owners: dict[str, Owner] = {}
        self.holders: dict[str, bool] = {}
        self.defaults: dict[str, str] = {}
        self.unread: dict[str, None] = {}

    def add(self, found: discover.Found) -> None:
        path, value = found.path, found.value
        # An object reached only through a library's object is named by its class, and the class itself has that
        # name too.
        if not found.own or not self.found.get(path, NAMED).startswith(NAMED):
            return
        self._reached.add(id(value))
        if (held := discover.cached_results(value)) is not None:
            self.caches[path] = held
        if discover.has_attributes(value):
            self.holders[path] = discover.is_own_throughout(value)
            self.defaults |= {
                f"{path}.{name}": digest(item)
                for name, item in discover.class_defaults(value)
                if is_plain(item)
            }
        if (kind := self._classes.owner(value)) is not None:
            self.owners[path] = Owner(kind=kind, label=type(value).__name__)
        if is_plain(value) and _elements(value) < self._room:
            self._room -= _elements(value)
            self.found[path] = digest(value)
        elif (stands_for := named(value)) is not None and not is_hook(path):
            self.found[path] = stands_for
        elif _elements(value) > _MOST_ELEMENTS or is_plain(value):
            self.unread[path] = None

    def named(self, hidden: list[Any]) -> Iterator[tuple[str, Any]]:
        """Objects of the script's own classes that only a library's object leads to, such as a callback given to
        a trainer. They are named by their class.
        """
        counted: dict[str, int] = {}
        for value in hidden:
            if id(value) in self._reached or not discover.is_of_script(value):
                continue
            label = type(value).__name__
            counted[label] = counted.get(label, 0) + 1
            yield label if counted[label] == 1 else f"{label} {counted[label]}", value


def is_plain(value: Any) -> bool:
    if is_one_value(value) or is_plain_container(value):
        # What an object of the script's own class holds besides its items is inspected separately.
        return not getattr(value, "__dict__", None) or not discover.is_of_script(value) or is_one_value(value)
    return 0 <= _elements(value, of_others=-1) <= _MOST_ELEMENTS


def _elements(value: Any, *, of_others: int = 0) -> int:
    """The number of elements of a tensor or an array. Other classes may use `size` for anything."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return int(value.numel())
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return int(value.size)
    return of_others
