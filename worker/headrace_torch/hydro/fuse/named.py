"""Places with names: attributes, dicts, classes, the globals of a function, variables of closures."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final

from torch import nn

from headrace_torch.hydro.fuse.places import ABSENT, Change, Key, Kind, alike, equal, kind_of

_REGISTRIES: Final = ("_parameters", "_buffers", "_modules")


@dataclass(slots=True)
class Named:
    """Names and values.

    Attributes:
        path: the path of the owner of the names.
        kind, target: the owner of the names.
        read: returns all names and values, in a new dict.
        replace: writes the values that differ from the current ones.
        form: the form of a name's path.
    """

    path: str
    kind: str
    target: Any
    read: Callable[[], dict[Any, Any]]
    replace: Callable[[dict[Any, Any]], None]
    form: str = "{path}.{name}"

    @property
    def key(self) -> Key:
        return self.kind, id(self.target)

    def latest(self, known: Any) -> Any:
        now = self.read()
        same = known is not ABSENT and len(now) == len(known) and alike(now.values(), known.values())
        return known if same and alike(now, known) else now

    def write(self, content: Any) -> None:
        self.replace(content)

    def change(self, before: Any, after: Any) -> Change:
        changes = [
            Change(self.of(name), kind_of(before.get(name, ABSENT), after.get(name, ABSENT)))
            for name in (*before, *(one for one in after if one not in before))
            if not equal(before.get(name, ABSENT), after.get(name, ABSENT))
        ]
        return max(changes, key=lambda one: one.kind, default=Change(self.path, Kind.RECORD))

    def inside(self, content: Any) -> Iterator[tuple[str, Any]]:
        for name, value in content.items():
            yield self.of(name), value

    @property
    def fixed(self) -> bool:
        """Whether the names are given; a name without a value then has ABSENT."""
        return self.kind in ("cell", "slots") or self.kind.startswith("names in ")

    def of(self, name: Any) -> str:
        """The path of a name."""
        shown = name if isinstance(name, str) and self.kind != "dict" else repr(name)
        return self.form.format(path=self.path, name=shown).lstrip(".")


def of_dict(path: str, value: dict[Any, Any], form: str = "{path}[{name}]") -> Named:
    """A dict; values are read as stored, because a class of its own may change what it returns."""
    kind: type[dict[Any, Any]] = OrderedDict if isinstance(value, OrderedDict) else dict

    def replace(content: dict[Any, Any]) -> None:
        kind.clear(value)
        for name, one in content.items():
            kind.__setitem__(value, name, one)

    return Named(path, "dict", value, lambda: dict(dict.items(value)), replace, form)


def of_attributes(path: str, value: Any) -> Named:
    """What an object's `__dict__` holds."""
    held = vars(value)

    def replace(content: dict[Any, Any]) -> None:
        held.clear()
        held.update(content)

    return Named(path, "attributes", value, lambda: dict(held), replace)


def of_module(path: str, value: nn.Module) -> Named:
    """The attributes of a module, without its tensors, its layers and its hooks."""
    held = vars(value)

    def read() -> dict[Any, Any]:
        return {name: one for name, one in held.items() if name not in _REGISTRIES and "_hooks" not in name}

    def replace(content: dict[Any, Any]) -> None:
        for name in read().keys() - content.keys():
            del held[name]
        held.update(content)

    return Named(path, "attributes", value, read, replace)


def of_names(path: str, space: dict[str, Any], names: frozenset[str], code: CodeType) -> Named:
    """The names of a module that a function's code uses."""

    ordered = sorted(names)

    def read() -> dict[Any, Any]:
        return {name: space.get(name, ABSENT) for name in ordered}

    def replace(content: dict[Any, Any]) -> None:
        for name, value in content.items():
            if value is ABSENT:
                space.pop(name, None)
            else:
                space[name] = value

    return Named(path, f"names in {path}", code, read, replace)


def of_slots(value: Any, path: str, names: list[str]) -> Named:
    """Attributes of an object without a `__dict__`."""

    def replace(content: Mapping[Any, Any]) -> None:
        for name, one in content.items():
            if one is not ABSENT:
                object.__setattr__(value, name, one)
            elif hasattr(value, name):
                object.__delattr__(value, name)

    return Named(
        path, "slots", value, lambda: {name: getattr(value, name, ABSENT) for name in names}, replace
    )


def of_class(value: type) -> Named:
    """What a class holds."""

    def read() -> dict[Any, Any]:
        return {name: one for name, one in vars(value).items() if not name.startswith("__")}

    def replace(content: dict[Any, Any]) -> None:
        now = read()
        for name in now.keys() - content.keys():
            type.__delattr__(value, name)
        for name, one in content.items():
            if now.get(name, ABSENT) is not one:
                type.__setattr__(value, name, one)

    return Named(value.__name__, "class", value, read, replace)


def of_cell(name: str, cell: Any) -> Named:
    """A variable of a closure."""

    def read() -> dict[Any, Any]:
        try:
            return {name: cell.cell_contents}
        except ValueError:  # not filled
            return {name: ABSENT}

    def replace(content: dict[Any, Any]) -> None:
        if content[name] is ABSENT:
            del cell.cell_contents
        else:
            cell.cell_contents = content[name]

    return Named("", "cell", cell, read, replace, "variable {name}")
