"""Which files in its folder one process of a check reads although a pause or a kill changes their contents.

In a copy of shipped code, files that a process writes are gone after a pause. So a file matters if the process
reads it in a later step than it wrote it. In the script's own folder, files survive a pause. There a file
matters if the process reads it as an earlier process of the same run left it: after a kill, the file may be
ahead of the checkpoint. If two runs without a pause differ, a file matters if the second reads it as the first
left it.

Python reports which files are opened (audit events), and a file's change time shows when it was written. Change
times are compared with those of a marker, a file of the check, because a file system's clock is coarser than the
machine's. If the folder is on a file server whose clock is off, a file may be missed. Files opened by child
processes, or by libraries without Python, are not seen.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.check.snapshot import Control, FolderFiles, result_of
from headrace.trial.shared_files import HIDDEN, MOST


class FolderReads:
    """Watches the files that this process opens in its folder."""

    def __init__(self, control: Control, rank: int = 0) -> None:
        self._folder = control.folder
        self._scratch = str(Path(control.result_file).parent)
        self._is_copy = control.is_copy
        self._older_from_ns = control.older_from_ns
        self._marker = result_of(f"{control.result_file}.marker", rank)
        self._began_ns = self._reported_ns = stamp(self._marker)
        self._shipped = dict(_files(self._folder)) if self._is_copy else {}
        # Files written from scratch in this step; and files of earlier steps that this one extends.
        self._fresh: set[str] = set()
        self._extended: set[str] = set()
        self._read: dict[str, None] = {}
        self._rebuilt: tuple[str, ...] = ()
        self._emptied: dict[str, None] = {}

    def begin(self) -> None:
        """Watch from now on, until the process ends."""
        sys.addaudithook(self._audit)

    def begun(self) -> None:
        """The loop starts. Every process writes the files that have been written by now."""
        self._rebuilt = tuple(self.written())

    def reported(self) -> None:
        """A step ends, and a pause is possible."""
        self._reported_ns = stamp(self._marker)
        self._fresh.clear()

    def written(self) -> dict[str, int]:
        """The files that the process has written in its copy, with their change times. Empty in the script's own
        folder, where files persist.
        """
        return {
            self._name(path): changed_ns
            for path, changed_ns in (_files(self._folder) if self._is_copy else ())
            if self._shipped.get(path) != changed_ns
        }

    def found(self) -> FolderFiles:
        """All findings."""
        return FolderFiles(
            written=tuple(sorted(self.written())),
            read=tuple(self._read),
            rebuilt=self._rebuilt,
            emptied=tuple(self._emptied),
        )

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self._folder)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:  # Any: each event has its own arguments
        if event == "open":
            path, flags = args[0], args[2]
        elif event == "sqlite3.connect":
            path, flags = args[0], os.O_RDWR
        else:
            return
        if not isinstance(path, str | os.PathLike):
            return
        path = os.path.abspath(os.fspath(path))  # noqa: PTH100  (a hook that every import passes)
        if isinstance(path, str) and self._is_watched(path):
            self._opened(path, flags)

    def _is_watched(self, path: str) -> bool:
        if not path.startswith(self._folder + os.sep):
            return False
        if not self._is_copy and path.startswith(self._scratch + os.sep):
            return False
        return not any(part.startswith(HIDDEN) for part in Path(self._name(path)).parts)

    def _opened(self, path: str, flags: int) -> None:
        reads = flags & os.O_ACCMODE != os.O_WRONLY
        if flags & os.O_TRUNC:
            if not self._is_copy and self._is_older(path) and size_bytes(path):
                self._emptied[self._name(path)] = None
            self._fresh.add(path)
            self._extended.discard(path)
        elif path in self._extended or self._is_older(path):
            if reads:
                self._read[self._name(path)] = None
            else:
                self._extended.add(path)
        elif not reads:
            self._fresh.add(path)

    def _is_older(self, path: str) -> bool:
        """Whether the file is as an earlier step, or an earlier process, wrote it."""
        changed_ns = written_ns(path)
        if not changed_ns or path in self._fresh:
            return False
        if self._is_copy:
            return changed_ns != self._shipped.get(path) and changed_ns <= self._reported_ns
        return 0 < self._older_from_ns < changed_ns <= self._began_ns


def stamp(marker: Path) -> int:
    """The current time by the clock of the marker's file system, in nanoseconds."""
    marker.touch()
    return marker.stat().st_ctime_ns


def _files(folder: str) -> Iterator[tuple[str, int]]:
    """The watched files below a folder, with their change times."""
    count = 0
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(HIDDEN)]
        for name in names:
            if not name.startswith(HIDDEN):
                path = f"{place}{os.sep}{name}"
                yield path, written_ns(path)
        count += len(names)
        if count > MOST:
            return


def sizes_bytes(folder: str) -> dict[str, int]:
    """The sizes of the watched files below a folder, by path relative to it."""
    return {os.path.relpath(path, folder): size_bytes(path) for path, _ in _files(folder)}


def size_bytes(path: str) -> int:
    """The size of a file; 0 if it does not exist."""
    try:
        return os.stat(path).st_size  # noqa: PTH116  (a hook that every import passes)
    except (OSError, ValueError):
        return 0


def written_ns(path: str) -> int:
    """When the file was last written or renamed; 0 if it does not exist."""
    try:
        return os.stat(path).st_ctime_ns  # noqa: PTH116  (a hook that every import passes)
    except (OSError, ValueError):
        return 0
