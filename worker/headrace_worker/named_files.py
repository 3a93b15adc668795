"""Files of this machine that a study names, if its code is not shipped: what the worker may read of them."""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_WORDS = re.compile(r"[^\s=;,\"'{}\[\]]+")
_TEXTS = (".txt", ".in")
_OF_PROJECTS = ("pyproject.toml", "setup.py", "setup.cfg", "uv.lock")
_ARCHIVES = (".whl", ".zip", ".gz", ".tgz", ".bz2", ".xz")
_MOST_FILES = 1000
MOST_BYTES = 16 << 20
"""A larger file is not a list of packages."""


@contextmanager
def opened(file: Path, may_read: Callable[[int], bool]) -> Iterator[str | None]:
    """The descriptor of a file to read; None if a trial may not read it, or if it is not a regular file. Nothing
    else is opened: a pipe would block, and a device could be triggered."""
    try:
        place = os.open(file, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        yield None
        return
    try:
        readable = stat.S_ISREG(os.fstat(place).st_mode) and may_read(place)
        yield f"/proc/self/fd/{place}" if readable else None
    finally:
        os.close(place)


def contents(file: Path, may_read: Callable[[int], bool]) -> bytes | None:
    """What a file holds, up to one byte more than `MOST_BYTES`; None if there is none that a trial may read."""
    with opened(file, may_read) as place:
        if place is None:
            return None
        with Path(place).open("rb") as readable:
            return readable.read(MOST_BYTES + 1)


def state_of(folder: Path, requirements: str, may_read: Callable[[int], bool]) -> str:
    """A text that changes with the files that a folder's requirements file refers to: other requirements files,
    archives, and the descriptions of projects. Sources of a project do not count: programs write their results
    among them."""
    states: dict[str, None] = {}
    file = folder / requirements
    _add(file, states, may_read)
    _add(file.parent / _OF_PROJECTS[0], states, may_read)
    return hashlib.sha256("\0".join((str(folder), *states)).encode(errors="surrogateescape")).hexdigest()


def _add(path: Path, states: dict[str, None], may_read: Callable[[int], bool]) -> None:
    """Adds a file, the files that it refers to, and those in a folder that are packages or describe one."""
    with suppress(OSError, ValueError):
        found = path.stat()
        state = f"{path} {found.st_ino} {found.st_size} {found.st_mtime_ns}"
        if state in states or len(states) >= _MOST_FILES:
            return
        states[state] = None
        if stat.S_ISDIR(found.st_mode):
            for name in sorted(os.listdir(path)):  # noqa: PTH208 - names alone
                if name in _OF_PROJECTS or name.endswith(_ARCHIVES):
                    _add(path / name, states, may_read)
        elif path.suffix in _TEXTS or path.name in _OF_PROJECTS:
            text = (contents(path, may_read) or b"")[:MOST_BYTES].decode(errors="replace")
            for word in dict.fromkeys(_WORDS.findall(text)):
                _add(path.parent / word.removeprefix("file://"), states, may_read)
