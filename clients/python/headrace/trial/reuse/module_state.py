"""The state of the user's own modules: what is reached from their variables, before the first trial and after each.

    import → take() → a trial → changed() → another trial, or the first variable that differs

A process whose modules have changed runs no other trial, so the next trial never meets a change. A module that a
trial imports has the state that its import left: the next trial does not execute it again, nor would a fresh
process twice. The same goes for what such an import changes in other modules.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from headrace.trial.reuse.changes import difference
from headrace.trial.reuse.fingerprint import Node, Search, TooLongError, variables
from headrace.trial.reuse.own import OwnModules
from headrace.trial.reuse.patches import Patches

LIMIT_S = 1.0
"""The longest that one comparison may take: an import of PyTorch, which reuse saves, takes a few times as long."""


@dataclass(frozen=True, slots=True)
class _Read:
    """The modules that were imported together, and their fingerprint."""

    modules: dict[str, ModuleType]
    prints: dict[str, list[Node]]
    # The objects that are compared by identity: nothing else may get their ids.
    identities: list[Any]
    codes: set[CodeType]


class ModuleState:
    """The state of the user's own modules."""

    def __init__(self, limit_s: float = LIMIT_S, clock: Callable[[], float] = time.perf_counter) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._own = OwnModules()
        self._groups: list[_Read] = []
        self._patches: list[Patches] = []
        self._too_long = ""
        self._was_clean = False

    def take(self) -> None:
        """Reads the modules that are imported now."""
        self._add_new()

    def import_begins(self) -> None:
        """One of the user's own modules is about to be imported for the first time."""
        self._was_clean = not self.changed()

    def import_ends(self) -> None:
        """It was imported: what it changed elsewhere stays, unless something had changed before."""
        if self._was_clean:
            self._groups = [self._read(group.modules) for group in self._groups]
        self._add_new(unfinished=True)

    def changed(self) -> str:
        """The first difference, and what the user can do about it; empty if there is none."""
        until = self._clock() + self._limit_s
        for group in self._groups if not self._too_long else ():
            if gone := next(
                (name for name, one in group.modules.items() if sys.modules.get(name) is not one), ""
            ):
                return f"it replaced or deleted the module {gone} in sys.modules: leave the module there"
            now = self._read(group.modules, until)
            for name in [*group.prints, *(now.prints.keys() - group.prints)]:
                if group.prints.get(name) != now.prints.get(name):
                    return self._too_long or difference(name, group.prints.get(name), now.prints.get(name))
        if not self._too_long:
            self._add_new()
        return self._too_long or next(filter(None, (one.changed() for one in self._patches)), "")

    def _add_new(self, *, unfinished: bool = False) -> None:
        known = {name for group in self._groups for name in group.modules}
        if new := {
            name: module for name, module in self._own.now(unfinished=unfinished) if name not in known
        }:
            read = self._read(new)
            self._groups.append(read)
            self._patches.append(Patches(new.values(), read.codes))

    def _read(self, modules: dict[str, ModuleType], until: float | None = None) -> _Read:
        search = Search(self._clock() + self._limit_s if until is None else until, self._clock)
        prints: dict[str, list[Node]] = {}
        took: dict[str, float] = {}
        for module_name, module in modules.items():
            for variable, value in variables(module):
                name, began = f"{module_name}.{variable}", self._clock()
                try:
                    prints[name] = search.nodes(name, value)
                except TooLongError:
                    took[name] = self._clock() - began
                    slowest = max(took, key=lambda one: took[one])
                    self._too_long = (
                        f"comparing {slowest} after a trial takes more than {self._limit_s:g} s: load it inside the "
                        "function, or leave out reuse"
                    )
                    return _Read(modules, prints, search.identities, search.codes)
                took[name] = self._clock() - began
        return _Read(modules, prints, search.identities, search.codes)
