"""Files that a trial reads as an earlier trial had left them, anywhere on the machine.

A file counts if it was written after the check began and before the trial did, and the trial opens it for reading.
Python reports what is opened (audit events); files that child processes or libraries open without Python are not
seen. What Python writes for itself is left out.
"""

import os
import sys
from pathlib import Path
from typing import Any, Final

from headrace.check.folder_reads import stamp, written_ns

_OF_THE_SYSTEM: Final = ("/proc/", "/sys/", "/dev/")
_OF_PYTHON: Final = (".pyc", ".py", ".so")


class EarlierFiles:
    """The files that this process has opened since it watches."""

    def __init__(self, since_ns: int, result_file: Path) -> None:
        """`since_ns` is when the check began, by the clock of the result file's folder."""
        self._since_ns, self._began_ns = since_ns, 0
        self._marker = result_file.with_name(f"{result_file.name}.marker")
        self._own = f"{result_file.parent}{os.sep}"
        self._watches = False
        self._found: dict[str, None] = {}

    def watch(self, watches: bool) -> None:
        """Watches from now on, if `watches`."""
        if watches and not self._watches:
            self._began_ns = stamp(self._marker)
            self._watches = True
            sys.addaudithook(self._audit)

    def found(self) -> tuple[str, ...]:
        """The names of the files."""
        self._watches = False
        return tuple(self._found)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:  # Any: each event has its own arguments
        if not self._watches or event not in ("open", "sqlite3.connect"):
            return
        path, flags = args[0], args[2] if event == "open" else os.O_RDWR
        if (
            not isinstance(path, str | os.PathLike)
            or flags & os.O_ACCMODE == os.O_WRONLY
            or flags & os.O_TRUNC
        ):
            return
        path = os.path.abspath(os.fspath(path))  # noqa: PTH100 - a hook that every import passes
        if (
            isinstance(path, str)
            and self._counts(path)
            and self._since_ns < written_ns(path) <= self._began_ns
        ):
            self._found[os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path] = None  # noqa: PTH109

    def _counts(self, path: str) -> bool:
        if path.startswith(_OF_THE_SYSTEM) or path.endswith(_OF_PYTHON):
            return False
        return not (path.startswith(self._own) and os.sep not in path[len(self._own) :])
