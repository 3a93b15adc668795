"""Which source files of a folder a process runs, each with the digest of its content.

    watch(folder) ── every import looks up its file, and what it holds at that moment is noted ──► take()

A file is read when it is imported, not when somebody asks: it may have been edited since. What was imported before
`watch`, or by a finder of its own, is read at the next `take`.

Left out are packages that are installed (a virtual environment may lie in the folder), Headrace itself, and what is no
source file. Programs that the process starts are not looked at.
"""
# Paths are texts here: every import of a trial's process passes through.
# ruff: noqa: PTH100, PTH120, PTH123, PTH206

import hashlib
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.machinery import SOURCE_SUFFIXES, ModuleSpec, PathFinder
from types import ModuleType
from typing import Final, NamedTuple

from headrace.bounds.numbers import SOURCE_PATH, SOURCES

MOST_CHARACTERS: Final = 16 << 10
"""Of all paths of a process together: what comes later is left out, as is what comes after `SOURCES` files."""
LARGEST_BYTES: Final = 16 << 20
"""A larger file is no source file."""
_DIGITS: Final = 16
_INSTALLED: Final = ("site-packages", "dist-packages")
_OWN: Final = ("headrace", "headrace_torch", "headrace_worker", "headrace_services")
_NOT_THE_USERS: Final = tuple(
    os.path.dirname(os.path.abspath(file)) + os.sep for file in (os.__file__, __file__)
)
"""Where the standard library lies, and Headrace."""


lock = threading.RLock()
"""Whoever takes holds it. An import never waits for it: what is taken may have to be imported first."""


class SourceFile(NamedTuple):
    """A source file, from the folder on, with the beginning of the SHA-256 of its content."""

    path: str
    digest: str


class Sources:
    """The source files of a folder that this process has imported."""

    def __init__(self, folder: str) -> None:
        self._roots = tuple({os.path.abspath(folder), os.path.realpath(folder)})
        self._looked_up: dict[str, SourceFile | None] = {}
        """By module: what its file held when it was about to be imported, until that is seen."""
        self._seen: set[str] = set()
        self._files: dict[SourceFile, None] = {}
        self._characters = 0
        self._taken = 0
        self._modules = 0

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds nothing, as a finder of `sys.meta_path`: reads the file that those behind it are about to load."""
        with suppress(Exception):  # whatever is wrong, the import itself says it
            if name.partition(".")[0] not in _OWN and (path is None or any(map(self._within, path))):
                found = PathFinder.find_spec(name, path, target)
                if found is not None and found.has_location and found.origin:
                    self._looked_up[name] = self._read(found.origin)
        return None

    def take(self) -> list[SourceFile]:
        """The files that came since the last call. Threads may share it: each file comes to one of them."""
        with lock:
            if len(sys.modules) != self._modules:
                names = list(sys.modules)
                self._modules = len(names)
            else:
                names = [name for name in list(self._looked_up) if name in sys.modules]
            for name in names:
                if name in self._looked_up:
                    self._add(self._looked_up.pop(name, None))
                elif name not in self._seen and name.partition(".")[0] not in _OWN:
                    file = getattr(sys.modules.get(name), "__file__", None)
                    self._add(self._read(file) if isinstance(file, str) else None)
                self._seen.add(name)
            new = list(self._files)[self._taken :]
            self._taken += len(new)
            return new

    def _read(self, file: str) -> SourceFile | None:
        path = self._within(os.path.abspath(file))
        return read(file, path) if path is not None and path.endswith(tuple(SOURCE_SUFFIXES)) else None

    def _add(self, file: SourceFile | None) -> None:
        if file is None or file in self._files or len(self._files) >= SOURCES:
            return
        if self._characters + len(file.path) <= MOST_CHARACTERS:
            self._files[file] = None
            self._characters += len(file.path)

    def _within(self, file: str) -> str | None:
        """The path, from the folder on, of a file or a folder of the user's own; None for any other."""
        if file.startswith(_NOT_THE_USERS):
            return None
        for root in self._roots:
            if file == root:
                return "."
            if file.startswith(root.rstrip(os.sep) + os.sep):
                path = file[len(root.rstrip(os.sep)) + 1 :]
                return None if any(part in _INSTALLED for part in path.split(os.sep)) else path
        return None


_watched: dict[str, Sources] = {}


def watch(folder: str) -> Sources:
    """Notes from now on what this process imports from a folder. A second call for it returns the first one's."""
    with lock:
        if folder not in _watched:
            _watched[folder] = sources = Sources(folder)
            sys.meta_path.insert(0, sources)
        return _watched[folder]


def _forked() -> None:
    """Whoever held the lock does not exist in the child."""
    global lock
    lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def read(file: str, path: str) -> SourceFile | None:
    """A file that lies at `path` from its folder on; None where it cannot be read, or is nothing to compare."""
    if len(path) > SOURCE_PATH or not path.isprintable():
        return None
    try:
        with open(file, "rb") as opened:
            content = opened.read(LARGEST_BYTES + 1)
    except OSError:
        return None
    if len(content) > LARGEST_BYTES:
        return None
    return SourceFile(path, hashlib.sha256(content).hexdigest()[:_DIGITS])


def digest_of(files: Iterable[tuple[str, str]]) -> str:
    """One digest of many files: the same for the same paths and contents, in whatever order they came."""
    lines = "".join(f"{path}\0{digest}\n" for path, digest in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()[:_DIGITS]
