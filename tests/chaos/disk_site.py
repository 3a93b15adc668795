"""Disks that fill up on demand: a small file system of its own for root, a limit on file sizes for everybody else."""

import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psutil

SIZE = 8 << 20


class Disk(Protocol):
    """A place that can run out of space."""

    kind: str

    def fill(self) -> None:
        """Leave no space."""

    def free(self) -> None:
        """Make space again."""


class SmallDisk:
    """A file system of a few MB, filled with ballast to the last byte."""

    kind = "a full file system (ENOSPC)"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Write until there is no space for one more byte."""
        with self._ballast.open("ab", buffering=0) as out:
            for chunk in (1 << 16, 1 << 10, 1):
                try:
                    while True:
                        out.write(b"\0" * chunk)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        """Remove the ballast."""
        self._ballast.unlink(missing_ok=True)


class LimitedFiles:
    """No file of a process may grow. The limit needs no privilege and can be lifted while the process runs."""

    kind = "a limit on file sizes (EFBIG)"

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._before = self._process.rlimit(resource.RLIMIT_FSIZE)

    def fill(self) -> None:
        """No byte may be added beyond the first."""
        self._process.rlimit(resource.RLIMIT_FSIZE, (1, self._before[1]))

    def free(self) -> None:
        """Lift the limit."""
        self._process.rlimit(resource.RLIMIT_FSIZE, self._before)


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    """Mount a small file system at `folder`; needs root."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "headrace-chaos", str(folder)], check=True)
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def may_mount(folder: Path) -> bool:
    """Whether this process can mount file systems, found out by trying."""
    if os.geteuid():
        return False
    try:
        with small_disk(folder):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False
