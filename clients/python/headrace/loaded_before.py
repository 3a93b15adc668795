"""What a process loaded before it was watched: is a file still the one that was loaded?

Python keeps no source text, so if a file was changed after the process started, the process may run something
else. The file's content counts only if all evidence agrees:

- The file's change time (ctime) is before the start of the process. An edit cannot preserve that time, as it can
  preserve the modification time; renames and new links set it too.
- Cached bytecode that Python keeps up to date next to the file belongs to this file. That also reveals an edit
  on a network file system whose clock is behind.

A running script is on the stack: if its file compiles to the same code, the change does not matter.

Python itself may run bytecode of different content: it accepts bytecode for a file that has the same size and
was modified in the same second. So bytecode that is older than the file's last change is compared with the
compiled file. If it differs, it is removed, and the next process runs the file.

The start is that of the process in which the interpreter started: a forked one has what its parent had loaded.
If the system does not say when a process started (without /proc), only the bytecode is checked.
"""
# Paths are strings here, as in `sources`.
# ruff: noqa: PTH100, PTH108, PTH112, PTH116, PTH120, PTH123

import marshal
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import SOURCE_SUFFIXES, ModuleSpec, SourceFileLoader
from importlib.util import MAGIC_NUMBER, cache_from_source
from types import CodeType
from typing import Any, Final

_SECOND_NS: Final = 1_000_000_000
_HEADER_BYTES: Final = 16
_PARENTS: Final = 64


def imported() -> Iterator[tuple[str, str, Any]]:
    """The name, the source file and the specification of each loaded module."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(tuple(SOURCE_SUFFIXES)):
            yield name, os.path.abspath(file), getattr(module, "__spec__", None)


def is_what_was_loaded(file: str, spec: object, content: bytes | None, began_ns: int | None) -> bool:
    """Whether a module's file had this content, which was just read, when the module was loaded.

    Without content, the file is gone or is not a file; then only the loader knows whether there ever was one.
    """
    by_file = isinstance(spec, ModuleSpec) and type(spec.loader) is SourceFileLoader
    if content is None:
        return not (by_file and os.path.isdir(os.path.dirname(file)) and not os.path.lexists(file))
    try:
        found = os.stat(file)
    except OSError:
        return False
    changed = began_ns is not None and (_is_since(found, began_ns) or _is_relinked(file, began_ns))
    changed = changed or (by_file and _bytecode_is_of_another(spec, found))
    if changed or (by_file and ran_old_bytecode(file, content)):
        return _runs_now(file, content)
    return True


def ran_old_bytecode(file: str, content: bytes, code: CodeType | None = None) -> bool:
    """Whether Python ran bytecode of different content that it mistook for the file's. If so, removes that
    bytecode.

    `code` is what was executed; without it, the file was imported by its name.
    """
    try:
        cached = cache_from_source(file)
        found, written = os.stat(file), os.stat(cached)
        if found.st_ctime_ns < written.st_ctime_ns or _header(cached) != _header_of(found):
            return False
        with open(cached, "rb") as opened:
            kept = marshal.loads(opened.read()[_HEADER_BYTES:])  # noqa: S302 - Python has just run it
        ran = kept if code is None else code
        if ran != kept or kept == _compiled(content, kept.co_filename):
            return False
        os.unlink(cached)
    except (OSError, NotImplementedError, ValueError, EOFError, TypeError, AttributeError):
        return False
    return True


def began_ns() -> int | None:
    """When this process, or the one that it was forked from, started; None if the system does not say.

    The system counts in ticks of about 10 ms. This is the end of the tick: a file written right before the start
    does not count as edited, and Python takes longer than that until it reads a user's file.
    """
    try:
        pid, parent, ticks = os.getpid(), *_parent_and_start("self")
        command = _command(pid)
        for _ in range(_PARENTS):
            if not command or _command(parent) != command:
                break
            parent, ticks = _parent_and_start(str(parent))
        if ticks <= 0:
            return None
        began_ns = (ticks + 1) * _SECOND_NS // os.sysconf("SC_CLK_TCK")
        return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + began_ns
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def _parent_and_start(pid: str) -> tuple[int, int]:
    """The parent of a process, and its start in clock ticks since the machine's start."""
    with open(f"/proc/{pid}/stat", errors="replace") as opened:
        fields = opened.read().rpartition(")")[2].split()
    return int(fields[1]), int(fields[19])


def _command(pid: int) -> bytes:
    """A process's command line, which a forked process shares with its parent."""
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as opened:
        return opened.read()
    return b""


def _is_since(found: os.stat_result, began_ns: int) -> bool:
    """Whether a file was changed after this moment. Some file systems only keep whole seconds."""
    if found.st_ctime_ns % _SECOND_NS == 0:
        began_ns -= began_ns % _SECOND_NS
    return found.st_ctime_ns >= began_ns


def _is_relinked(file: str, began_ns: int) -> bool:
    """Whether a link in the file's path was created after this moment: it may have led elsewhere before."""
    while (parent := os.path.dirname(file)) != file:
        try:
            found = os.lstat(file)
        except OSError:
            return True
        if stat.S_ISLNK(found.st_mode) and _is_since(found, began_ns):
            return True
        file = parent
    return False


def _bytecode_is_of_another(spec: Any, found: os.stat_result) -> bool:
    """Whether Python would have replaced the cached bytecode if it had loaded the current file."""
    cached = spec.cached
    if sys.dont_write_bytecode or not cached or not os.access(os.path.dirname(cached), os.W_OK):
        return False
    header = _header(cached)
    return header is not None and header != _header_of(found)


def _header(cached: str) -> tuple[int, int] | None:
    """The modification time and the size of the file that bytecode was compiled from; None if Python compares
    neither.
    """
    try:
        with open(cached, "rb") as opened:
            header = opened.read(_HEADER_BYTES)
    except OSError:
        return None
    magic, flags, modified, size = (header[at : at + 4] for at in range(0, _HEADER_BYTES, 4))
    if magic != MAGIC_NUMBER or any(flags):
        return None
    return int.from_bytes(modified, "little"), int.from_bytes(size, "little")


def _header_of(found: os.stat_result) -> tuple[int, int]:
    return int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF


def _runs_now(file: str, content: bytes) -> bool:
    """Whether the code of this file is on the stack, and equals the compiled content."""
    frame = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and os.path.abspath(code.co_filename) == file:
            return _compiled(content, code.co_filename) == code
        frame = frame.f_back  # type: ignore[assignment]  # the loop ends where there is none
    return False


def _compiled(content: bytes, name: str) -> CodeType | None:
    with suppress(SyntaxError, ValueError):
        return compile(content, name, "exec", dont_inherit=True)
    return None
