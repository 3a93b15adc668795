"""The home folder of one `headrace up`: who holds it, and the file that says where the schedulers are.

The lock is the kernel's (`flock`), released with the process that holds it, however that ends; what is written in
the lock file is only for people. The children do not inherit it: Python's file descriptors close on exec.
"""

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.home import ADDRESS_FILE, CONSOLE_FILE, LOCK_FILE, check_own, make_private

LOCK_TRIES = 20
"""A command that checks whether `up` runs holds the lock for an instant: no reason to give up."""
_OWN = "Give another --home (or HEADRACE_HOME). If all in it is yours: `chown` it to you, `chmod 700` it."


class HomeInUseError(HeadraceError):
    """Another `headrace up` is running from the same home."""

    def __init__(self, home: Path, holder: str) -> None:
        super().__init__(
            f"headrace up runs from {home} already" + (f" (process {holder})" if holder else ""),
            remedy="Use that one (`headrace studies`), stop it with Ctrl-C where it runs, or give another --home.",
        )


@contextmanager
def hold(home: Path) -> Iterator[None]:
    """Holds the home for this process, creating it if necessary, for its user only. Raises HomeInUseError, and
    HeadraceError if there can be no folder, or it is
    another user's."""
    try:
        make_private(home)
        check_own(home, "the home", remedy=_OWN)
        (home / LOCK_FILE).touch(mode=0o600)
        opened = (home / LOCK_FILE).open("a+", encoding="utf-8")
    except OSError as error:
        raise HeadraceError(
            f"{home} cannot be the home: {error.strerror}.",
            remedy="Give another --home (or HEADRACE_HOME): a folder that you may write to.",
        ) from error
    with opened as lock:
        if not _locked(lock.fileno()):
            lock.seek(0)
            raise HomeInUseError(home, lock.read().strip())
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        for file in (ADDRESS_FILE, CONSOLE_FILE):  # of one that was killed
            (home / file).unlink(missing_ok=True)
        try:
            yield
        finally:
            lock.truncate(0)


def let_through(home: Path) -> None:
    """Lets other users pass to the workers' homes, whose trials are theirs; they can list and read nothing here."""
    for folder in (home, home / "workers"):
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(stat.S_IMODE(folder.stat().st_mode) | 0o011)


def _locked(file: int) -> bool:
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False


@contextmanager
def advertised(home: Path, addresses: list[str], console: str | None = None) -> Iterator[None]:
    """Writes the addresses of the schedulers and the console where the other commands look for them; each file all
    or nothing, and removed at the end."""
    files = {CONSOLE_FILE: console, ADDRESS_FILE: ",".join(addresses)}  # the last one says that all are there
    try:
        for name, text in files.items():
            if text is not None:
                new = home / f"{name}.new"
                new.touch(mode=0o600)
                new.write_text(text + "\n", encoding="utf-8")
                new.replace(home / name)
        yield
    finally:
        for name in reversed(files):
            (home / name).unlink(missing_ok=True)
