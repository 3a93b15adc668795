"""How a join token gets from the loop to a job: a folder on a file system that both see, private to the user.

    NAME.ask         a job that has started asks; NAME is its worker's name
    NAME.token       the token; the worker deletes it once it is used up
    NAME.HEX.new     a token that is being written

So a token exists only from the moment when its job runs until its worker has joined, usually seconds. It is for that
worker's name, for one use, and expires within minutes. A requeued job deletes the files of its earlier start, and
asks for a new token.

A token appears complete, by a hard link, which fails if there is one: so one of several loops answers, and one that
is killed before leaves nothing in the way of the next.
"""

import os
import re
import secrets
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.launch.engine import EngineError

LEFTOVER_S: Final = 3600.0
"""Older files are of no use: a job asks for ten minutes, and its token works as long."""
_OURS: Final = re.compile(r"(slurm-\d+-\d+)\.(ask|token|[0-9a-f]{8}\.new)")


class TokenFolder:
    """The folder of one launch, which holds nothing else. Ages are by its file system's clock and the local one, which
    may differ by minutes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        """Creates it, closed to others. Raises EngineError, also if it is there and others may use it."""
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
            found = self.folder.lstat()
        except OSError as error:
            raise EngineError(
                f"The folder {self.folder} for join tokens cannot be used: {error.strerror}.",
                remedy="Give one on a file system that the jobs also see, with --folder.",
            ) from None
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise EngineError(
                f"The folder {self.folder} for join tokens is not yours alone.",
                remedy="Remove it, or give another one with --folder.",
            )

    def awaiting(self) -> frozenset[str]:
        """The workers that await a token. Raises EngineError."""
        try:
            found = {file.name for file in self.folder.iterdir()} if self.folder.exists() else set()
        except OSError as error:
            raise EngineError(f"The folder {self.folder} cannot be read: {error}.", remedy="") from None
        workers = {match[1] for name in found if (match := _OURS.fullmatch(name))}
        return frozenset(one for one in workers if f"{one}.ask" in found and f"{one}.token" not in found)

    def deliver(self, worker: str, secret: str) -> bool:
        """Writes a token for the worker. Returns False if it does not ask, or another loop has answered.
        Raises EngineError.
        """
        if worker not in self.awaiting():
            return False
        new = self.folder / f"{worker}.{secrets.token_hex(4)}.new"
        try:
            with open(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:  # noqa: PTH123 - a descriptor
                file.write(secret + "\n")
                file.flush()
                os.fsync(file.fileno())
            (self.folder / f"{worker}.token").hardlink_to(new)
        except FileExistsError:
            return False
        except OSError as error:
            raise EngineError(f"The token for {worker} cannot be written: {error}.", remedy="") from None
        finally:
            with suppress(OSError):
                new.unlink(missing_ok=True)
        return True

    def sweep(self) -> None:
        """Deletes old files of ours. What cannot be deleted stays for the next time."""
        with suppress(OSError):
            for file in list(self.folder.iterdir()):
                with suppress(OSError):
                    if _OURS.fullmatch(file.name) and time.time() - file.lstat().st_mtime > LEFTOVER_S:
                        file.unlink()
