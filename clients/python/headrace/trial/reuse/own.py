"""Which modules, classes and functions are the user's own: all but Python's, installed packages and Headrace."""

import os
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

from headrace import sources

_ANYWHERE = sources.Sources(os.sep)


@cache
def is_own_file(file: str) -> bool:
    """Whether a source file is the user's own."""
    return not file.startswith("<") and _ANYWHERE.within(os.path.abspath(file)) is not None  # noqa: PTH100


def is_own_module(module: object) -> bool:
    """Whether a module is the user's own. One without a file is not."""
    if not issubclass(type(module), ModuleType):
        return False
    values = vars(module)  # a lazy module computes its attributes
    name, file = values.get("__name__"), values.get("__file__")
    return isinstance(name, str) and isinstance(file, str) and not sources.is_own(name) and is_own_file(file)


def is_own(value: Any) -> bool:
    """Whether a class or a function is defined in a module of the user's own."""
    name = getattr(value, "__module__", None)
    return isinstance(name, str) and is_own_module(sys.modules.get(name))


class OwnModules:
    """The user's own modules among those imported. Each module's file is looked at once."""

    def __init__(self) -> None:
        self._others: set[str] = set()

    def now(self, *, unfinished: bool = False) -> Iterator[tuple[str, ModuleType]]:
        """The names and modules, in the order of their imports. Those that are still being imported are left out,
        unless they are asked for.
        """
        for name in [name for name in list(sys.modules) if name not in self._others]:
            module = sys.modules.get(name)
            if getattr(getattr(module, "__spec__", None), "_initializing", False) and not unfinished:
                continue
            if module is not None and is_own_module(module):
                yield name, module
            else:
                self._others.add(name)
