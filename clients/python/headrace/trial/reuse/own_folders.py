"""The folders that only this process has: its copy of shipped code, and its folder for temporary files.

A fresh process finds them as they were unpacked. So a file that a trial has written there, or removed, ends the
process.
"""

import os
from collections.abc import Sequence
from contextlib import suppress

_MOST = 20_000
_BYTECODE = "__pycache__"


class OwnFolders:
    """The files in them, as they are to be."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = folders
        self._before: dict[str, tuple[int, int]] = {}

    def take(self) -> None:
        """From now on, the files that are there now are to be."""
        self._before = self._read()

    def changed(self) -> str:
        """The first file that is not as before, and the remedy; empty if there is none."""
        if not self._folders:
            return ""
        now = self._read()
        if len(now) >= _MOST:
            return f"it has more than {_MOST} files in folders of its own: keep fewer there"
        for path in sorted(now.keys() | self._before.keys()):
            if now.get(path) != self._before.get(path):
                name = os.path.basename(path)  # noqa: PTH119 - as they are read
                return f"it wrote {name} into a folder of its process: write it elsewhere, or remove it at the end"
        return ""

    def _read(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for folder in self._folders:
            for place, folders, files in os.walk(folder):
                folders[:] = [name for name in folders if name != _BYTECODE]
                for name in files:
                    path = os.path.join(place, name)  # noqa: PTH118 - thousands after each trial
                    with suppress(OSError):
                        state = os.lstat(path)
                        found[path] = (state.st_size, state.st_mtime_ns)
                if len(found) >= _MOST:
                    return found
        return found
