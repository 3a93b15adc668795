"""Files and folders that survive a power cut: their bytes are flushed before they get their name, and the name
afterwards.

A file has a name that starts with a dot until it is complete. A process that is killed leaves at most that file;
a write that fails leaves nothing.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

DELETED = ".deleted-"
"""The prefix of the name of a folder that is being deleted."""


def flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_below(folder: Path) -> None:
    """Flush a folder and everything in it to the disk, except broken links and files that vanish."""
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            flush(path)
    flush(folder)


def rename(old: Path, new: Path) -> None:
    """Move a flushed file to its final name, replacing any other file there."""
    old.replace(new)
    flush(new.parent)


@contextmanager
def written(file: Path, *, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Write a new file and replace the old one atomically: a reader sees either of them, complete."""
    new = file.with_name(f".{file.name}.new")
    new.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        rename(new, file)
    except Exception:
        new.unlink(missing_ok=True)
        raise


def replace(file: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write a file with this content; see `written`."""
    with written(file, mode=mode) as out:
        out.write(content)


@contextmanager
def filled(folder: Path, partial: Path) -> Iterator[Path]:
    """Create a folder, `partial`, for the caller to fill, and replace `folder` with it.

    The caller flushes what it writes (`flush_below`). Anything that an earlier attempt left in `partial` is
    deleted.
    """
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        yield partial
        remove(folder)
        rename(partial, folder)
    except Exception:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def remove(folder: Path) -> None:
    """Delete a folder, its name first, so that nobody sees a part of it. A missing one is not an error."""
    doomed = folder.with_name(DELETED + folder.name)
    shutil.rmtree(doomed, ignore_errors=True)  # from a process that was killed
    with suppress(FileNotFoundError):
        folder.rename(doomed)
        shutil.rmtree(doomed)
