"""The code that this worker has: one archive per digest, in the worker's home, fetched from a scheduler once.

An archive is compared with its digest when it arrives, and again each time it is unpacked. It is downloaded beside
its place and renamed when it is complete, so a crash leaves a partial file that the next start deletes. An archive
is never rewritten. Each process gets its own copy, in a folder that it may write to (`unpack`): no other trial
sees what one trial changes.

The archives together have a size limit. The one used longest ago is deleted first, but none that an attempt holds.
A deleted archive is fetched again when needed: the scheduler keeps it while its study exists.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from headrace.code import CodeCorruptError, verify
from headrace.code import unpack as unpack_archive
from headrace_worker.backoff import Backoff
from headrace_worker.disk import is_full
from headrace_worker.run_as import give_to

log = logging.getLogger(__name__)
_SUFFIX = ".tar"
_PART = ".part"
_ATTEMPTS = 5

Fetch = Callable[[str, BinaryIO], Awaitable[None]]
"""Writes the archive of a digest into a file. Raises `UnpreparedError` if nobody has it, and `OSError`."""


class UnpreparedError(Exception):
    """The program of a study cannot be prepared here; the text is for the user."""


class CodeCache:
    """The archives of one daemon."""

    def __init__(self, folder: Path, fetch: Fetch, limit_bytes: int) -> None:
        self._folder = folder
        self._fetch = fetch
        self._limit_bytes = limit_bytes
        self._held: Counter[str] = Counter()
        self._locks: dict[str, asyncio.Lock] = {}
        for part in folder.glob(f"*{_PART}"):
            part.unlink(missing_ok=True)

    async def hold(self, digest: str, note: Callable[[str], None]) -> Path:
        """The archive of a digest, which stays until `release`; `note` receives what it is waiting for. Raises
        `UnpreparedError`, and `OSError` if it cannot be fetched now."""
        self._held[digest] += 1
        try:
            path = self._folder / f"{digest}{_SUFFIX}"
            async with self._locks.setdefault(digest, asyncio.Lock()):
                if not path.exists():
                    await self._obtain(digest, path, note)
            os.utime(path)
        except BaseException:
            self.release(digest)
            raise
        return path

    def release(self, digest: str) -> None:
        """One holder of the archive has released it."""
        self._held[digest] -= 1
        if not self._held[digest]:
            del self._held[digest]

    async def _obtain(self, digest: str, path: Path, note: Callable[[str], None]) -> None:
        backoff = Backoff(cap_s=5.0)
        part = path.with_suffix(_PART)
        try:
            while True:
                note("fetches the study's code")
                self._folder.mkdir(parents=True, exist_ok=True)
                try:
                    with part.open("w+b") as file:
                        await self._fetch(digest, file)
                        file.seek(0)
                        await asyncio.to_thread(verify, file, digest)
                except (OSError, CodeCorruptError) as error:
                    unreachable = isinstance(error, ConnectionError)
                    full = isinstance(error, OSError) and is_full(error)
                    if backoff.failures + 1 >= _ATTEMPTS and not (unreachable or full):
                        raise OSError(f"the code {digest[:12]} cannot be fetched: {error}") from error
                    note(f"cannot fetch the study's code yet: {error}")
                    log.warning("the code %s cannot be fetched yet: %s", digest[:12], error)
                    await backoff.wait()
                else:
                    part.chmod(0o444)
                    part.rename(path)
                    break
            await asyncio.to_thread(self._trim)
        finally:
            part.unlink(missing_ok=True)
            note("")

    def _trim(self) -> None:
        """Deletes the archives used longest ago, down to the limit."""
        found = []
        for path in self._folder.glob(f"*{_SUFFIX}"):
            with suppress(FileNotFoundError):
                found.append((path.stat().st_mtime_ns, path.stat().st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._limit_bytes:
                break
            if path.stem not in self._held:
                path.unlink(missing_ok=True)
                total -= size


def unpack(archive: Path, folder: Path, owner: str = "") -> None:
    """Unpacks an archive into a folder that does not exist yet, for another user if one is given (`run_as`).
    Raises `OSError`; a damaged archive is deleted."""
    with archive.open("rb") as file:
        try:
            unpack_archive(file, archive.stem, folder)
        except CodeCorruptError as error:
            archive.unlink(missing_ok=True)  # it is fetched again
            raise OSError(
                f"the code {archive.stem[:12]} is damaged on this worker's disk: {error}"
            ) from error
    if owner:
        give_to(owner, folder)
