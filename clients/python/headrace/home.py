"""Where Headrace keeps its files, and which scheduler a command uses.

`HEADRACE_HOME` (default `~/.headrace`) is the folder of `headrace up`: the embedded database, the checkpoint
store, the workers' logs and outboxes, and the files `address` and `console`, which contain the addresses of the
scheduler and the console while `up` serves and are removed at a clean stop. After a crash a file may be stale. That
costs one failed connection, whose error names the address and the remedy.

`up` locks the home while it runs. If a home is locked and has no address, `up` is starting there. A command that
needs the scheduler then says so; it never uses the default address, where another Headrace may run.
"""

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from headrace.errors import HeadraceError, UnreachableError
from headrace.userfile import UserFile, UserFileError

DEFAULT_ADDRESS = "127.0.0.1:7440"
"""The address where a scheduler listens by default."""

ADDRESS_FILE = "address"
"""The file in the home folder that `headrace up` writes when it is ready."""

CONSOLE_FILE = "console"
"""The file in the home folder with the address of the console that `headrace up` runs."""

CONSOLE_ENV = "HEADRACE_CONSOLE"
"""The variable with the address under which browsers reach the console."""

LOCK_FILE = "up.lock"
"""The file in the home folder that `headrace up` locks and writes its process id to."""


_ADDRESS: Final = UserFile(largest_bytes=10_000, remedy="Remove it.")


class StartingError(UnreachableError):
    """`headrace up` is starting in this home and has no address yet."""

    def __init__(self, home: Path) -> None:
        super().__init__(
            f"`headrace up` is still starting in {home}; it has no address yet.",
            remedy="Try again when it says that Headrace is ready, or give another address with HEADRACE_ADDRESS.",
        )


class NotRunningError(UnreachableError):
    """No `headrace up` is running in the home that the user named."""

    def __init__(self, home: Path) -> None:
        super().__init__(
            f"No `headrace up` runs in {home} (HEADRACE_HOME).",
            remedy="Start one with `headrace up`, or give a scheduler's address with --address or HEADRACE_ADDRESS.",
        )


def home_dir() -> Path:
    """The folder of `HEADRACE_HOME`, or `~/.headrace`. It need not exist."""
    named = os.environ.get("HEADRACE_HOME")
    return Path(named).expanduser().absolute() if named else Path.home() / ".headrace"


def address(explicit: str | None = None, *, login: str | None = None) -> str:
    """The scheduler to use: `explicit`, or else `HEADRACE_ADDRESS`, or else the file that `headrace up` left, or
    else that of a `login`, or else 127.0.0.1:7440.

    Raises StartingError while `headrace up` starts in this home. Raises NotRunningError if none runs in a home
    that `HEADRACE_HOME` names, because a different Headrace may run at the default address.
    """
    if given := given_address(explicit):
        return given
    home = home_dir()
    held = up_runs(home)  # checked first, so that an address written meanwhile is found
    if found := address_in(home):
        return found
    if held:
        raise StartingError(home)
    if login:
        return login
    if os.environ.get("HEADRACE_HOME"):
        raise NotRunningError(home)
    return DEFAULT_ADDRESS


def given_address(explicit: str | None) -> str | None:
    """The address that the user named: `explicit`, or else `HEADRACE_ADDRESS`."""
    return explicit or os.environ.get("HEADRACE_ADDRESS")


def make_private(folder: Path) -> None:
    """Creates a folder, and missing folders above it, for this user only. Existing folders keep their mode."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def check_own(folder: Path, what: str, *, remedy: str, user: int | None = None) -> None:
    """Rejects a folder that another user may have put there, or may write to: its keys and records would be theirs.

    It must belong to `user` (default: this process's) or to root. So must each folder above it that is in a folder
    which all users may write, such as /tmp. Raises HeadraceError with the `remedy`, and OSError.
    """
    trusted = {0, os.geteuid() if user is None else user}
    found = folder.stat()
    why = ""
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in trusted:
        why = "belongs to another user"
    elif found.st_mode & stat.S_IWOTH:
        why = "can be written by every user"
    for one in (folder, *folder.parents):
        if one.parent.stat().st_mode & stat.S_IWOTH and one.lstat().st_uid not in trusted:
            why = f"belongs to another user: {one}" if one != folder else "belongs to another user"
    if why:
        raise HeadraceError(f"{folder}, {what}, {why}.", remedy=remedy)


def append_private(file: Path) -> BinaryIO:
    """Opens a file for appending; creates it, and its folder, for this user only."""
    make_private(file.parent)
    return os.fdopen(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")


def is_on_this_machine(where: str) -> bool:
    """Whether every replica of an address is a loopback address, so that the workers are most likely here too."""
    hosts = {replica.rpartition(":")[0] for replica in where.removeprefix("tls://").split(",")}
    return hosts <= {"127.0.0.1", "localhost", "[::1]"}


def address_in(home: Path) -> str | None:
    """The content of a home folder's `address` file; None while `headrace up` does not serve from there."""
    try:
        return _ADDRESS.text(home / ADDRESS_FILE).strip() or None
    except UserFileError:
        return None


def console_of(scheduler: str, home: Path | None = None) -> str | None:
    """The address of a scheduler's console: if it is the scheduler of `headrace up` in a home (default: this one), the
    console there; otherwise HEADRACE_CONSOLE.
    """
    home = home or home_dir()
    if address_in(home) == scheduler:
        with suppress(UserFileError):
            return _ADDRESS.text(home / CONSOLE_FILE).strip().rstrip("/") or None
    return os.environ.get(CONSOLE_ENV, "").strip().rstrip("/") or None


def up_runs(home: Path) -> bool:
    """Whether a `headrace up` runs in this home now."""
    try:
        with (home / LOCK_FILE).open("rb") as lock:
            if lock.read(1):  # empty: it stopped cleanly
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released at once
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
