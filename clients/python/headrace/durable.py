"""Files that outlast a power cut: their bytes are flushed before they get their name, and the name after."""

import os
from pathlib import Path


def flush(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(old: Path, new: Path) -> None:
    """Put what is flushed already in its place, or in that of another file."""
    old.replace(new)
    flush(new.parent)


def replace(file: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write a file beside its old one, and put it in its place: whoever reads sees one of them whole."""
    new = file.with_name(f".{file.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    rename(new, file)
