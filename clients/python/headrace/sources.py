"""Which source files of a folder a process runs, each with the digest of its content.

    notice() ── whatever file is executed is read at that moment, and what it holds is noted ──► Sources.new_files()

A file is read when it is executed, not when somebody asks: it may have been edited since, and a module need not stay
in `sys.modules`. Python says what it executes by the audit event `exec`, whichever way it got there: an import, also of
cached bytecode, `spec_from_file_location`, `runpy.run_path`, and `exec` of what was compiled with the file's name. What
was imported before is read by `notice` itself. A file that may hold something else by then than what was executed gets
a digest that equals no other (`loaded_before`, `not_known`).

Left out are packages that are installed (a virtual environment may lie in the folder), Headrace itself, text that is
executed without a file's name, and files that are read as data. Programs that the process starts are not looked at.

An audit hook stays for the life of its process. It costs each of Python's audit events a fifth of a microsecond: each
call of `id` is one, and a training step of PyTorch has some eight.
"""
# Paths are texts here: all that a trial's process executes passes through.
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
"""Of all paths of a process together: what comes later is left out, as is what comes after `SOURCES` files."""
LARGEST_BYTES: Final = 16 << 20
"""A larger file is no source file."""
_MOST_EXECUTED: Final = 16 * SOURCES
"""Files that are noted, in whatever folder they lie: at first it is not known which one counts."""
_DIGITS: Final = 16
_INSTALLED: Final = ("site-packages", "dist-packages")
_OWN: Final = ("headrace", "headrace_torch", "headrace_worker", "headrace_services")
_NOT_THE_USERS: Final = tuple(
    os.path.dirname(os.path.abspath(file)) + os.sep for file in (os.__file__, __file__)
)
"""Where the standard library lies, and Headrace."""


lock = threading.RLock()
"""Whoever takes holds it. What is executed never waits for it: what is taken may have to be imported first."""


class SourceFile(NamedTuple):
    """A source file, from the folder on, with the beginning of the SHA-256 of its content, or with a digest of
    `not_known`."""

    path: str
    digest: str


_executed: dict[tuple[str, str], None] = {}
"""What was executed: the absolute path of each file, with the digest of what it held."""
_codes: "WeakValueDictionary[int, CodeType]" = WeakValueDictionary()
"""Code that was executed, by its id: where it is executed again, its file may hold something else by now."""
_notices = False


def notice() -> None:
    """Notes which files this process has executed, and from now on which it executes. A second call changes nothing."""
    global _notices
    if not _notices:
        _notices = True
        sys.addaudithook(_audit)
        _note_imported(lambda file: not _installed(file))


def executed() -> list[str]:
    """The files that were executed, by their absolute paths; those of the standard library are left out."""
    return [file for file, _ in list(_executed)]


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event != "exec":
        return
    with suppress(Exception):  # whatever is wrong, the code is executed all the same
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
    """Notes the modules that were loaded before `notice`, of the files that count."""
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
        """How many of the executed files were taken in."""
        self._began = False

    def new_files(self) -> list[SourceFile]:
        """The files that came since the last call. Threads may share it: each file comes to one of them."""
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

    def within(self, file: str) -> str | None:
        """The path, from the folder on, of a file of the user's own; None for any other."""
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
    """Notes from now on what this process executes of a folder. A second call for it returns the first one's."""
    with lock:
        notice()
        if folder not in _watched:
            _watched[folder] = Sources(folder)
        return _watched[folder]


def _forked() -> None:
    """Whoever held the lock does not exist in the child."""
    global lock
    lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def is_own(module: str) -> bool:
    """Whether a module is of Headrace itself."""
    return module.partition(".")[0] in _OWN


def _own_folders() -> tuple[str, ...]:
    """Where the packages of Headrace lie that were imported."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _OWN)
    return tuple(os.path.dirname(file) + os.sep for file in files if isinstance(file, str))


def _installed(path: str) -> bool:
    return not set(_INSTALLED).isdisjoint(path.split(os.sep))


def _can_be_told(path: str) -> bool:
    return len(path) <= SOURCE_PATH and path.isprintable()


def read(file: str, path: str) -> SourceFile | None:
    """A file that lies at `path` from its folder on; None where it cannot be read, or is nothing to compare."""
    digest = _digest(file) if _can_be_told(path) else None
    return None if digest is None else SourceFile(path, digest)


def _digest(file: str) -> str | None:
    content = _content(file)
    return None if content is None else _digest_of_content(content)


def _content(file: str) -> bytes | None:
    """What a file holds; None for all but regular files: a pipe would lose what is read."""
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
    """One digest of many files: the same for the same paths and contents, in whatever order they came."""
    lines = "".join(f"{path}\0{digest}\n" for path, digest in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()[:_DIGITS]
