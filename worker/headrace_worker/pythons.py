"""The Python interpreters that environments extend."""

import hashlib
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.userfile import parse_json
from headrace_worker.code_cache import UnpreparedError
from headrace_worker.process import CannotStartError

_PROBE = (
    "import json, site, sys;"
    "print(json.dumps([sys.version, sys.prefix, sys.executable, site.getsitepackages()]))"
)
_OF_PACKAGES = (".dist-info", ".egg-info", ".pth", ".egg-link")


@dataclass(frozen=True, slots=True)
class Base:
    """A Python, with its packages."""

    version: str
    prefix: str
    executable: str
    sites: tuple[str, ...]

    @property
    def named(self) -> tuple[str, ...]:
        """What distinguishes it from others."""
        return (self.version, self.prefix, self.executable)

    def packages(self) -> str:
        """Identifies the packages that it has now, and their versions."""
        found: list[str] = []
        for folder in self.sites:
            with suppress(OSError):
                found += (name for name in os.listdir(folder) if name.endswith(_OF_PACKAGES))  # noqa: PTH208 - quick
        return hashlib.sha256("\0".join(sorted(found)).encode(errors="surrogateescape")).hexdigest()


class Pythons:
    """Asks each interpreter once what it is, and again if its file has changed."""

    def __init__(
        self, environ: Mapping[str, str], output_of: Callable[[tuple[str, ...]], Awaitable[bytes]]
    ) -> None:
        """`output_of` runs a program and returns what it prints."""
        self._path = environ.get("PATH")
        self._output_of = output_of
        self._known: dict[str, tuple[tuple[int, ...], Base]] = {}

    async def base(self, python: str) -> Base:
        """What an interpreter is; empty: the worker's own. Raises `UnpreparedError` if it cannot be started."""
        program = python or sys.executable
        file = Path(shutil.which(program, path=self._path) or program)
        stamp = _stamp(file)
        known = self._known.get(program)
        if known is not None and known[0] == stamp:
            return known[1]
        try:
            last = (await self._output_of((program, "-I", "-c", _PROBE))).splitlines()[-1]
            version, prefix, executable, sites = parse_json(last)
            base = Base(str(version), str(prefix), str(executable), tuple(map(str, sites)))
        except (CannotStartError, OSError, ValueError, TypeError, IndexError, RecursionError) as error:
            raise UnpreparedError(f"python {program!r} cannot be started: {error}") from error
        if _is_same(file, Path(base.executable)):  # not a script that selects one
            self._known[program] = stamp, base
        return base


def _stamp(file: Path) -> tuple[int, ...]:
    """What changes when the interpreter's file changes, or the environment that it belongs to."""
    numbers: list[int] = []
    for path in (file, file.parent.parent / "pyvenv.cfg"):
        with suppress(OSError, ValueError):
            found = path.stat()
            numbers += (found.st_dev, found.st_ino, found.st_mtime_ns)
    return tuple(numbers)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False
