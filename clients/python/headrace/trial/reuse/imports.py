"""The first imports of modules while a trial runs: what happens right before and right after each.

Only imports by the main thread, and only the outermost one: what it imports in turn belongs to it.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader, SourcelessFileLoader
from types import ModuleType

from headrace.trial.reuse.own import is_own_file

_LOADERS = (SourceFileLoader, SourcelessFileLoader, ExtensionFileLoader)
"""Loaders of which each module has its own."""


class Imports:
    """A finder of modules that finds nothing itself, and sees every import."""

    def __init__(self, begins: Callable[[bool], object], ends: Callable[[bool], object]) -> None:
        """Both are called with whether the module is the user's own; `ends` with False if the import failed."""
        self._begins, self._ends = begins, ends
        self._finding: set[tuple[int, str]] = set()
        self._depth = 0

    def watch(self) -> None:
        """From now on, imports are seen."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification that the other finders return; its loader calls this object."""
        asked = threading.get_ident(), name
        if asked in self._finding or threading.current_thread() is not threading.main_thread():
            return None
        self._finding.add(asked)  # a finder among the others may ask this one
        try:
            others = (finder for finder in list(sys.meta_path) if finder is not self)
            found = (
                finder.find_spec(name, path, target) for finder in others if hasattr(finder, "find_spec")
            )
            spec = next((one for one in found if one is not None), None)
        finally:
            self._finding.discard(asked)
        if spec is not None and isinstance(spec.loader, _LOADERS):
            self._see(spec, spec.loader)
        return spec

    def _see(
        self, spec: ModuleSpec, loader: "SourceFileLoader | SourcelessFileLoader | ExtensionFileLoader"
    ) -> None:
        load = loader.exec_module
        own = isinstance(spec.origin, str) and is_own_file(spec.origin)

        def exec_module(module: ModuleType) -> None:
            outermost, self._depth = not self._depth, self._depth + 1
            succeeded = False
            try:
                if outermost:
                    self._begins(own)
                load(module)
                succeeded = True
            finally:
                self._depth -= 1
                with suppress(AttributeError):
                    del loader.exec_module
                if outermost:
                    self._ends(own and succeeded)

        loader.exec_module = exec_module  # type: ignore[method-assign]  # of this import alone
