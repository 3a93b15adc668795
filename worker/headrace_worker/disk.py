"""A full disk: a passing problem of the machine, never a fault of the configuration."""

import asyncio
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar

from headrace.v1 import event_pb2
from headrace_worker.backoff import Backoff

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""No space, quota exceeded, or a limit on the size of files."""

LEAST_BYTES = 1 << 20
"""With less free space than this on its disk, a worker reports it before anything has failed."""

_LOOKED_AT = 10_000
_Result = TypeVar("_Result")


def is_full(error: OSError) -> bool:
    """Whether an operation failed because the disk is full."""
    return error.errno in FULL


def out_of_room(folder: Path) -> str:
    """Says that the disk of a folder is full, or nothing. Trials that save there wait for space by themselves."""
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        return f"the disk of {folder} does not answer: {error.strerror}"
    free = disk.f_bavail * disk.f_frsize
    if free >= LEAST_BYTES:
        return ""
    return f"the disk of {folder} is full ({free} bytes free); trials wait until they can save"


class Tenant(Protocol):
    """A trial with a folder on the disk."""

    lease: event_pb2.LeaseRef

    def taken_bytes(self) -> int:
        """The disk space that its files use."""
        ...


def who_fills(home: Path, tenants: Sequence[Tenant]) -> str:
    """Says that the disk is full, and which trial uses most of it; nothing while there is space."""
    full = out_of_room(home)
    if not full or not tenants:
        return full
    taken, trial = max((tenant.taken_bytes(), tenant.lease.trial) for tenant in tenants)
    return f"{full}; {trial} has {taken >> 20} MiB in its folder"


def size_bytes(folder: Path) -> int:
    """The disk space that a folder uses, as far as can be seen in a moment. Files that vanish meanwhile are left
    out."""
    total = seen = 0
    folders = [str(folder)]
    while folders and seen < _LOOKED_AT:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in islice(entries, _LOOKED_AT - seen):
                seen += 1
                with suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
    return total


def clear_away(folder: Path) -> None:
    """Deletes what a trial has made, as far as possible and however deeply it is nested."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:  # Python 3.11 recurses once per level
        subprocess.run(["rm", "-rf", "--", folder], stderr=subprocess.DEVNULL, check=False)


def says_full(text: str) -> bool:
    """Whether the last line of a traceback speaks of a full disk: `OSError: [Errno 28] No space left on device`."""
    return any(f"[Errno {number}]" in text for number in FULL)


async def when_there_is_room(
    work: Callable[[], _Result], note: Callable[[str], None], backoff: Backoff
) -> _Result:
    """Does some work in a thread, again and again while the disk is full. `note` receives each failure, and an
    empty text on success. Other errors are raised."""
    while True:
        try:
            result = await asyncio.to_thread(work)
        except OSError as error:
            if not is_full(error):
                raise
            note(str(error))
            await backoff.wait()
        else:
            note("")
            return result
