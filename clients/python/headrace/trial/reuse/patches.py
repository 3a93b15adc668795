"""Names of libraries that the user's functions replace, as in `torch.load = mine`.

All names of all imported libraries are a hundred thousand, and reading them takes 15 ms with PyTorch and
scikit-learn. So only those are compared that the user's code mentions: a name in a module or a class that it
mentions too. What `setattr` changes under a name that is put together at run time is not found.
"""

import builtins
import sys
from collections.abc import Collection, Iterable, Iterator
from types import CodeType, ModuleType
from typing import Any, Final

from headrace.trial.reuse.own import is_own, is_own_file, is_own_module

_ABSENT: Final = object()
_Holder = ModuleType | type


class Patches:
    """What the names stood for when this was made."""

    def __init__(self, modules: Iterable[ModuleType], codes: Iterable[CodeType]) -> None:
        names = set(_mentioned(codes))
        self._names = frozenset(names)
        self._held: list[tuple[_Holder, str, Any]] = []
        self._known: list[tuple[_Holder, set[str]]] = []
        for library in _libraries(modules, names):
            values = library.__dict__
            known = values.keys() & names
            self._known.append((library, known))
            for name in known:
                value = values[name]
                self._held.append((library, name, value))
                if issubclass(type(value), type) and not is_own(value):
                    inside = vars(value)
                    self._known.append((value, inside.keys() & names))
                    self._held += [(value, inner, inside[inner]) for inner in inside.keys() & names]
        self._held += [(builtins, name, value) for name, value in vars(builtins).items() if name != "_"]

    def changed(self) -> str:
        """The first name that stands for something else, and the remedy; empty if there is none."""
        for holder, name, value in self._held:
            now = vars(holder).get(name, _ABSENT)
            if now is not value and not _is_module(value) and not _is_librarys(holder, now):
                return f"it replaced {_full_name(holder)}.{name}: {_REMEDY}"
        for holder, known in self._known:
            for name in (vars(holder).keys() & self._names) - known:
                if not name.startswith("__") and _is_users(
                    vars(holder)[name]
                ):  # Python adds `__annotations__`
                    return f"it added {_full_name(holder)}.{name}: {_REMEDY}"
        return ""


_REMEDY: Final = "do so when the module is imported, or restore it before the function returns"


def _mentioned(codes: Iterable[CodeType]) -> Iterator[str]:
    waiting = list(codes)
    while waiting:
        code = waiting.pop()
        yield from code.co_names
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                waiting.append(constant)
            elif isinstance(constant, str) and constant.isidentifier():
                yield constant


def _libraries(modules: Iterable[ModuleType], names: Collection[str]) -> list[ModuleType]:
    """The libraries that the user's modules import under any name, and those whose names are mentioned."""
    found = {
        id(value): value
        for module in modules
        for value in list(vars(module).values())
        if _is_module(value) and not is_own_module(value)
    }
    for name, module in list(sys.modules.items()):
        mentioned = name in names or name.rpartition(".")[2] in names
        if mentioned and type(module) is ModuleType and not is_own_module(module):
            found[id(module)] = module
    return list(found.values())


def _is_librarys(holder: _Holder, value: Any) -> bool:
    """Whether the library itself has put the value there, as PyTorch does with methods of optimizers."""
    module = holder.__name__ if isinstance(holder, ModuleType) else holder.__module__
    code = getattr(value, "__code__", None)  # what `functools.wraps` makes has the name of what it replaces
    return (
        isinstance(code, CodeType)
        and not is_own_file(code.co_filename)
        and value.__module__.partition(".")[0] == module.partition(".")[0]
    )


def _is_users(value: Any) -> bool:
    """Whether a library cannot have added the value itself: a library adds modules, functions and classes."""
    return is_own(value) if callable(value) else not _is_module(value)


def _is_module(value: Any) -> bool:
    return issubclass(type(value), ModuleType)  # `isinstance` runs code of objects that stand for others


def _full_name(holder: _Holder) -> str:
    return holder.__name__ if isinstance(holder, ModuleType) else f"{holder.__module__}.{holder.__qualname__}"
