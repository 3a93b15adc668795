"""Which source files of a folder a process runs, each with the digest of its content.

    notice() ── every executed file is read at that moment, and its content is recorded ──► Sources.new_files()

A file is read when it is executed, not when somebody asks: it may have been edited since, and a module need not
stay in `sys.modules`. Python reports what it executes by the audit event `exec`, in whichever way it was loaded:
an import, also of cached bytecode, `spec_from_file_location`, `runpy.run_path`, and `exec` of code that was
compiled with the file's name. Files that were imported earlier are read by `notice` itself. A file whose content
may have changed since it was executed gets a digest that equals no other (`loaded_before`, `not_known`).

The following are left out: installed packages (a virtual environment may be in the folder), Headrace itself,
text that is executed without a file's name, and files that are read as data. Programs that the process starts
are not watched.

An audit hook stays for the life of its process. It adds a fifth of a microsecond to each of Python's audit
events. Each call of `id` is one, and a training step of PyTorch has about eight.
"""
# Paths are strings here, for speed: everything that a trial's process executes passes through.
# ruff: noqa: PTH100, PTH113, PTH120, PTH123, PTH206

import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import CodeType
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

from headrace import loaded_before, not_known
from headrace.bounds.numbers import SOURCE_PATH, SOURCES

MOST_CHARACTERS: Final = 16 << 10
"""The limit on all paths of a process together: later files are left out, as are those after `SOURCES` files."""
LARGEST_BYTES: Final = 16 << 20
"""A larger file does not count as a source file."""
_MOST_EXECUTED: Final = 16 * SOURCES
"""The most files that are recorded, in any folder: at first it is not known which folder counts."""
_DIGITS: Final = 16
_INSTALLED: Final = ("site-packages", "dist-packages")
_OWN: Final = ("headrace", "headrace_torch", "headrace_worker", "headrace_services")
_NOT_THE_USERS: Final = tuple(
    os.path.dirname(os.path.abspath(file)) + os.sep for file in (os.__file__, __file__)
)
"""The folders of the standard library and of Headrace."""


lock = threading.RLock()
"""Held while files are taken from the record. Executed code never waits for it, because taking may have to
import something first.
"""


class SourceFile(NamedTuple):
    """A source file, with its path in the folder and the start of the SHA-256 of its content, or a digest of
    `not_known`.
    """

    path: str
    digest: str


_executed: dict[tuple[str, str], None] = {}
"""The executed files: the absolute path of each, with the digest of its content."""
_codes: "WeakValueDictionary[int, CodeType]" = WeakValueDictionary()
"""Executed code by its id: if it is executed again, its file may have changed by then."""
_notices = False


def notice() -> None:
    """Records which files this process has executed, and from now on executes. A second call has no effect."""
    global _notices
    if not _notices:
        _notices = True
        sys.addaudithook(_audit)
        _note_imported(lambda file: not _installed(file))


def executed() -> list[str]:
    """The executed files, as absolute paths, without those of the standard library."""
    return [file for file, _ in list(_executed)]


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event != "exec":
        return
    with suppress(Exception):  # the code is executed in any case
        code: CodeType = args[0]
        name = code.co_filename
        if name.startswith(("<", *_NOT_THE_USERS)) or _codes.get(id(code)) is code:
            return
        _codes[id(code)] = code
        file = os.path.abspath(name)
        if _installed(file) and not any(one.within(file) for one in list(_watched.values())):
            return
        content = _content(file)
        if content is None:
            return
        is_old = code.co_name == "<module>" and loaded_before.ran_old_bytecode(file, content, code)
        _note(file, not_known.new_digest() if is_old else _digest_of_content(content))


def _note(file: str, digest: str | None) -> None:
    if digest is not None and len(_executed) < _MOST_EXECUTED:
        _executed[file, digest] = None


def _note_imported(counts: Callable[[str], object]) -> None:
    """Records the modules that were loaded before `notice`, if their files count."""
    modules, began_ns = list(loaded_before.imported()), loaded_before.began_ns()
    known = {file for file, _ in list(_executed)}
    for name, file, spec in modules:
        if file in known or is_own(name) or file.startswith(_NOT_THE_USERS) or not counts(file):
            continue
        content = _content(file)
        if loaded_before.is_what_was_loaded(file, spec, content, began_ns):
            _note(file, None if content is None else _digest_of_content(content))
        else:
            _note(file, not_known.new_digest())


class Sources:
    """The source files of a folder that this process has executed."""

    def __init__(self, folder: str) -> None:
        self._roots = tuple({os.path.abspath(folder), os.path.realpath(folder)})
        self._files: dict[SourceFile, None] = {}
        self._characters = 0
        self._taken = 0
        self._noted = 0
        """How many of the executed files were processed."""
        self._began = False

    def new_files(self) -> list[SourceFile]:
        """The new files since the last call. Thread-safe: each file is returned to one caller."""
        with lock:
            if not self._began:
                self._began = True
                _note_imported(lambda file: _installed(file) and self.within(file))
            if len(_executed) > self._noted:
                found = list(_executed)[self._noted :]
                self._noted += len(found)
                for file, digest in found:
                    self._add(file, digest)
            new = list(self._files)[self._taken :]
            self._taken += len(new)
            return new

    def again(self) -> None:
        """From now on, all files count as new: they are reported for another trial of the process."""
        with lock:
            self._taken = 0

    def within(self, file: str) -> str | None:
        """The path, relative to the folder, of a user's own file; None for any other file."""
        if file.startswith(_NOT_THE_USERS):
            return None
        for root in self._roots:
            if file.startswith(root.rstrip(os.sep) + os.sep):
                path = file[len(root.rstrip(os.sep)) + 1 :]
                return None if _installed(path) else path
        return None

    def _add(self, file: str, digest: str) -> None:
        path = self.within(file)
        if path is None or not _can_be_told(path) or file.startswith(_own_folders()):
            return
        if SourceFile(path, digest) in self._files or len(self._files) >= SOURCES:
            return
        if self._characters + len(path) <= MOST_CHARACTERS:
            self._files[SourceFile(path, digest)] = None
            self._characters += len(path)


_watched: dict[str, Sources] = {}


def watch(folder: str) -> Sources:
    """Records from now on which files of a folder this process executes. A second call for the same folder
    returns the same object.
    """
    with lock:
        notice()
        if folder not in _watched:
            _watched[folder] = Sources(folder)
        return _watched[folder]


def _forked() -> None:
    """The thread that held the lock does not exist in the child."""
    global lock
    lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def is_own(module: str) -> bool:
    """Whether a module belongs to Headrace itself."""
    return module.partition(".")[0] in _OWN


def is_installed(file: str) -> bool:
    """Whether a file belongs to an installed package, to the standard library or to Headrace."""
    return _installed(file) or file.startswith(_NOT_THE_USERS)


def _own_folders() -> tuple[str, ...]:
    """The folders of the imported packages of Headrace."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _OWN)
    return tuple(os.path.dirname(file) + os.sep for file in files if isinstance(file, str))


def _installed(path: str) -> bool:
    return not set(_INSTALLED).isdisjoint(path.split(os.sep))


def _can_be_told(path: str) -> bool:
    return len(path) <= SOURCE_PATH and path.isprintable()


def read(file: str, path: str) -> SourceFile | None:
    """A file with this `path` in its folder; None if it cannot be read, or should not be compared."""
    digest = _digest(file) if _can_be_told(path) else None
    return None if digest is None else SourceFile(path, digest)


def _digest(file: str) -> str | None:
    content = _content(file)
    return None if content is None else _digest_of_content(content)


def _content(file: str) -> bytes | None:
    """The content of a file; None if it is not a regular file, as reading would consume a pipe's data."""
    try:
        if not os.path.isfile(file):
            return None
        with open(file, "rb") as opened:
            content = opened.read(LARGEST_BYTES + 1)
    except OSError:
        return None
    return content if len(content) <= LARGEST_BYTES else None


def _digest_of_content(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


def digest_of(files: Iterable[tuple[str, str]]) -> str:
    """One digest of many files: equal for the same paths and contents, in any order."""
    lines = "".join(f"{path}\0{digest}\n" for path, digest in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()[:_DIGITS]
