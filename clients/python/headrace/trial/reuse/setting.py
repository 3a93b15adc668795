"""One setting of the process: how it is read, and how it is restored. Values are compared with `==`."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting, with the name that a message gives it."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Same:
    """An object that is equal to itself alone, whatever its class says."""

    key: Any
    value: Any = field(compare=False)


@dataclass(frozen=True, slots=True)
class Listed:
    """A list, and its items."""

    key: int
    items: tuple[Any, ...]
    value: list[Any] = field(compare=False)


def attribute(owner: Any, name: str, told: str = "") -> Setting:
    """The object that an attribute of a module holds."""

    def read() -> Same:
        value = getattr(owner, name, None)
        return Same(id(value), value)

    return Setting(told or f"{owner.__name__}.{name}", read, lambda saved: setattr(owner, name, saved.value))


def listed(owner: Any, name: str, written: Callable[[], object] = lambda: None) -> Setting:
    """A list in an attribute of a module: the same list, with the same items."""

    def read() -> Listed:
        value = getattr(owner, name)
        return Listed(id(value), tuple(value), value)

    def write(saved: Listed) -> None:
        saved.value[:] = saved.items
        setattr(owner, name, saved.value)
        written()

    return Setting(f"{owner.__name__}.{name}", read, write)


def merged(saved: Any, before: Any, after: Any) -> Any:
    """The saved value after an import that found the setting at `before` and left it at `after`: what the trial
    had changed is undone, and what the import changed stays.
    """
    if isinstance(saved, Mapping) and isinstance(before, Mapping) and isinstance(after, Mapping):
        result = {**saved}
        for key in before.keys() | after.keys():
            if key not in after:
                result.pop(key, None)
            elif key not in before or before[key] != after[key]:
                result[key] = after[key]
        return result
    if isinstance(saved, Listed) and isinstance(before, Listed) and isinstance(after, Listed):
        return Listed(saved.key, _merged_items(saved.items, before.items, after.items), saved.value)
    return saved if before == after else after


def _merged_items(
    saved: Iterable[_Value], before: Iterable[_Value], after: Iterable[_Value]
) -> tuple[_Value, ...]:
    kept, was, now = list(saved), list(before), list(after)
    of_trial = [one for one in was if one not in kept]
    missing = [one for one in kept if one not in was]
    return (*(one for one in now if one not in of_trial), *missing)
