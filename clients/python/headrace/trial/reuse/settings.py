"""The settings of the process that a trial may change, and that are restored before the next one.

    import → take() → a trial → restore() → a trial → restore() …

What changes while a module is imported belongs to the import: a library that is first imported by a trial adds
its warning filters, variables and loggers once, and they stay. A library whose import went unnoticed, in a thread,
has the settings that it had when it was first seen.
"""

import sys
from typing import Any

from headrace.trial.reuse import library_settings, python_settings
from headrace.trial.reuse.setting import Setting, merged

_RESTORE = "restore it before the function returns"
_ROUNDS = 2
"""Settings may depend on each other, such as the older and the newer one of a precision."""


class Settings:
    """The settings, as they are to be."""

    def __init__(self) -> None:
        self._settings: dict[str, Setting] = {}
        self._libraries: set[str] = set()
        self._saved: dict[str, Any] = {}
        self._before: dict[str, Any] = {}

    def take(self) -> None:
        """From now on, the present settings are those to restore."""
        self._settings = {one.name: one for one in python_settings.settings()}
        self._libraries.clear()
        self._saved = self._read()

    def import_begins(self) -> None:
        """A module is about to be imported for the first time."""
        self._before = self._read()

    def import_ends(self) -> None:
        """It was imported, with all that it imports itself: what has changed since stays."""
        after = self._read()
        for name, value in after.items():
            if name not in self._before:
                self._saved[name] = value
            elif value != self._before[name]:
                self._saved[name] = merged(self._saved[name], self._before[name], value)

    def restore(self) -> str:
        """Restores them; returns why the process cannot run another trial, if a setting cannot be restored."""
        python_settings.forget_warnings()  # the next trial has a log of its own
        now = self._read()
        for name, value in now.items():
            self._saved.setdefault(name, value)
        for _ in range(_ROUNDS):
            changed = [name for name, value in now.items() if value != self._saved[name]]
            if not changed:
                return ""
            for name in changed:
                if self._settings[name].read() == self._saved[name]:
                    continue  # restored by an earlier one
                try:
                    self._settings[name].write(self._saved[name])
                except Exception as error:  # noqa: BLE001 - whatever it is, the process ends
                    return f"it changed {name}, which cannot be restored ({error}): {_RESTORE}"
            now = {name: self._settings[name].read() for name in now}
        left = next((name for name, value in now.items() if value != self._saved[name]), "")
        return left and f"it changed {left}, which cannot be restored: {_RESTORE}"

    def _read(self) -> dict[str, Any]:
        for name in library_settings.LIBRARIES:
            module = sys.modules.get(name)
            if module is None or name in self._libraries:
                continue
            if not getattr(module.__spec__, "_initializing", False):
                self._libraries.add(name)
                self._settings |= {one.name: one for one in library_settings.settings_of(name)}
        return {name: one.read() for name, one in self._settings.items()}
