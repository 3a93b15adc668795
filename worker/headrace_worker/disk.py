"""A disk that is full: the machine's trouble, which passes, and never the configuration's."""

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
"""No space, no quota, or a limit on the size of files."""

LEAST_BYTES = 1 << 20
"""With less room than this on its disk, a worker says so before anything has failed."""

_LOOKED_AT = 10_000
_Result = TypeVar("_Result")


def is_full(error: OSError) -> bool:
    """Whether there was no room."""
    return error.errno in FULL


def out_of_room(folder: Path) -> str:
    """Says that the disk of a folder is full, or nothing. Trials that save there wait for room by themselves."""
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
        """What its files take of the disk."""
        ...


def who_fills(home: Path, tenants: Sequence[Tenant]) -> str:
    """Says that the disk is full, and which trial has most of it; nothing while there is room."""
    full = out_of_room(home)
    if not full or not tenants:
        return full
    taken, trial = max((tenant.taken_bytes(), tenant.lease.trial) for tenant in tenants)
    return f"{full}; {trial} has {taken >> 20} MiB in its folder"


def size_bytes(folder: Path) -> int:
    """What a folder takes of its disk, as far as can be seen in a moment. What vanishes meanwhile is left out."""
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
    """Deletes what a trial has made, as far as that is possible and however deep it is nested."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:  # Python 3.11 goes one call deeper with each level
        subprocess.run(["rm", "-rf", "--", folder], stderr=subprocess.DEVNULL, check=False)


def says_full(text: str) -> bool:
    """Whether the last line of a traceback speaks of a full disk: `OSError: [Errno 28] No space left on device`."""
    return any(f"[Errno {number}]" in text for number in FULL)


async def when_there_is_room(
    work: Callable[[], _Result], note: Callable[[str], None], backoff: Backoff
) -> _Result:
    """Does some work in a thread, again and again while the disk is full; `note` is told of each failure, and of
    success by an empty text. Other errors are raised."""
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
