"""How a join token gets from the loop to a job: a folder on a file system that both see, private to the user.

    NAME.ask      a job that has started asks; NAME is its worker's name
    NAME.claim    one of the loops answers; created exclusively, so that no other loop does
    NAME.token    the token; the worker deletes it once it is used up

So a token exists only from the moment when its job runs until its worker has joined, usually seconds. It is for that
worker's name, for one use, and expires within minutes. A requeued job deletes the files of its earlier start, and
asks for a new token.

A loop that is killed between the claim and the token leaves a claim without a token: after `CLAIM_S` it is void.
"""

import os
import secrets
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.launch.engine import EngineError

CLAIM_S: Final = 60.0
LEFTOVER_S: Final = 3600.0
"""The files of jobs that are gone are deleted after this time."""
_KINDS: Final = (".ask", ".claim", ".token", ".new")


class TokenFolder:
    """The folder of one launch. Ages are by its file system's clock and the local one, which may differ by
    minutes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        """Creates it, closed to others. Raises EngineError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.folder.chmod(0o700)
        except OSError as error:
            raise EngineError(
                f"The folder {self.folder} for join tokens cannot be used: {error.strerror}.",
                remedy="Give one on a file system that the jobs also see, with --folder.",
            ) from None

    def awaiting(self) -> frozenset[str]:
        """The workers that await a token. Raises EngineError."""
        try:
            return frozenset(_worker(ask) for ask in self._all(".ask") if not self._answered(ask))
        except OSError as error:
            raise EngineError(f"The folder {self.folder} cannot be read: {error}.", remedy="") from None

    def deliver(self, worker: str, secret: str) -> bool:
        """Writes a token for the worker. Returns False if it does not ask, or another loop answers.
        Raises EngineError.
        """
        try:
            ask = self.folder / f"{worker}.ask"
            return ask.exists() and not self._answered(ask) and self._answer(ask, secret)
        except OSError as error:
            raise EngineError(f"The token for {worker} cannot be written: {error}.", remedy="") from None

    def sweep(self, workers: Collection[str]) -> None:
        """Deletes old files of workers that are not among these. What cannot be deleted stays for the next time."""
        for file in [file for kind in _KINDS for file in self._all(kind)]:
            with suppress(OSError):
                if _worker(file) not in workers and _age_s(file) > LEFTOVER_S:
                    file.unlink(missing_ok=True)

    def _answered(self, ask: Path) -> bool:
        claim, token = ask.with_suffix(".claim"), ask.with_suffix(".token")
        return token.exists() or (claim.exists() and _age_s(claim) < CLAIM_S)

    def _answer(self, ask: Path, secret: str) -> bool:
        claim = ask.with_suffix(".claim")
        if claim.exists():  # void; one loop removes it
            with suppress(FileNotFoundError):
                void = claim.with_name(f"{claim.name}-{secrets.token_hex(4)}.new")
                claim.rename(void)
                void.unlink()
        try:
            os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        new = ask.with_suffix(".new")
        with suppress(FileNotFoundError):
            new.unlink()
        with open(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:  # noqa: PTH123
            file.write(secret + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.rename(ask.with_suffix(".token"))
        return True

    def _all(self, kind: str) -> list[Path]:
        return sorted(self.folder.glob(f"*{kind}"))


def _worker(file: Path) -> str:
    """`slurm-12-3.ask` is about worker `slurm-12-3`."""
    return file.name.split(".", 1)[0]


def _age_s(file: Path) -> float:
    try:
        return time.time() - file.stat().st_mtime
    except FileNotFoundError:
        return 0.0
