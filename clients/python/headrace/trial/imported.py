"""Actions on a library that run once the script has imported it.

A script may import PyTorch within its function, or after `trial.current()`. What is set up for it before the
first step (generators, the memory budget) is then set up at the end of that import.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

Action = Callable[[ModuleType], object]

_waiting: Final[dict[str, dict[str, Action]]] = {}


def once_imported(name: str, action: Action, *, purpose: str) -> None:
    """Calls `action` with the module: now, if it is imported, or else at the end of its first import.

    Replaces an action that still waits for the same module with the same purpose.
    """
    _waiting.get(name, {}).pop(purpose, None)
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        action(module)
        return
    _waiting.setdefault(name, {})[purpose] = action
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


class _Finder:
    """Finds modules through the other finders, and makes the loader call the waiting actions."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None if no action waits for the module."""
        if name not in _waiting:
            return None
        found = (finder.find_spec(name, path, target) for finder in list(sys.meta_path) if finder is not self)
        spec = next((one for one in found if one is not None), None)
        loader = None if spec is None else spec.loader
        if loader is None or isinstance(loader, type):  # a namespace, or a built-in module
            return spec
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            with suppress(AttributeError):
                del loader.exec_module
            for action in _waiting.pop(name, {}).values():
                action(module)

        with suppress(AttributeError):  # a loader that cannot be changed; unknown for these libraries
            loader.exec_module = exec_module  # type: ignore[method-assign]  # of this import alone
        return spec


_FINDER: Final = _Finder()
