"""Between two trials of a process: whether it may run another one, and everything restored if so.

    import → take() → trial → after_trial() → take() → trial → after_trial() …

After each trial, in this order: garbage is collected, settings are restored, and what the trial left behind and
what it changed in the user's own modules is looked for. An error on the way is a reason to end, like a finding.
"""

import faulthandler
import gc
import os
import sys
from collections.abc import Sequence
from typing import Any

from headrace.trial.reuse.imports import Imports
from headrace.trial.reuse.leftovers import Leftovers
from headrace.trial.reuse.memory import empty_cache
from headrace.trial.reuse.module_state import ModuleState
from headrace.trial.reuse.own_folders import OwnFolders
from headrace.trial.reuse.settings import Settings

_MANY_OBJECTS = 10_000
"""So many new objects come from an import: they are set aside, as those of earlier imports are."""


class Baseline:
    """The process as it was before its first trial."""

    def __init__(self, folders: Sequence[str] = ()) -> None:
        """`folders` are the process's own: its copy of the code, and its folder for temporary files."""
        self._folders = OwnFolders(folders)
        self._settings = Settings()
        self._state = ModuleState()
        self._leftovers = Leftovers(os.environ.get("HEADRACE_RUNTIME", ""))
        self._imports = Imports(self._import_begins, self._import_ends)
        self._taken = False
        self._failed = ""
        self.kind = ""
        """The kind of the reason that `after_trial` has returned, as `Handover.end` takes it."""

    def take(self) -> None:
        """Right before a trial's function is called. From the second trial on, only connections are new."""
        try:
            if self._taken:
                self._leftovers.take_connections()
                return
            self._taken = True
            self._imports.watch()
            self._leftovers.take()
            self._folders.take()
            self._settings.take()
            self._state.take()
        except Exception as error:  # noqa: BLE001 - the trial runs in any case, and is the process's last
            self._fail(error)

    def after_trial(self) -> str:
        """Restores everything; returns the first reason why the process cannot run another trial, or nothing."""
        try:
            return self._failed or self._after_trial()
        except Exception as error:  # noqa: BLE001 - a process that cannot be checked runs no other trial
            self._fail(error)
            return self._failed

    def _after_trial(self) -> str:
        self.kind = "left"
        if loop := self._leftovers.loop_left():
            return loop
        gc.collect()
        faulthandler.cancel_dump_traceback_later()
        self.kind = "setting"
        if left := self._settings.restore():
            return left
        _forget_compiled()
        empty_cache()
        self.kind = "left"
        if left_behind := self._leftovers.find():
            return left_behind[0]
        if written := self._folders.changed():
            return written
        self.kind = "state"
        if changed := self._state.changed():
            return changed
        if len(gc.get_objects(generation=2)) > _MANY_OBJECTS:
            gc.freeze()
        return ""

    def _import_begins(self, own: bool) -> None:
        try:
            self._settings.import_begins()
            if own:
                self._state.import_begins()
        except Exception as error:  # noqa: BLE001 - the import must not fail for it
            self._fail(error)

    def _import_ends(self, own: bool) -> None:
        try:
            self._settings.import_ends()
            if own:
                self._state.import_ends()
        except Exception as error:  # noqa: BLE001 - the import must not fail for it
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.kind = ""
        self._failed = f"it cannot be checked: {type(error).__name__}: {error}"


def _forget_compiled() -> None:
    """Drops what `torch.compile` has made. How it compiles depends on the shapes that it has met before, and after
    a few it stops compiling.
    """
    compiler: Any = sys.modules.get("torch._dynamo")
    if compiler is not None and not getattr(compiler.__spec__, "_initializing", False):
        compiler.reset()
