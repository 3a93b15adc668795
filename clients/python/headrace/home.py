"""Where Headrace keeps its files, and which scheduler a command talks to.

`HEADRACE_HOME` (default `~/.headrace`) is the folder of `headrace up`: the embedded database, the checkpoint
store, the workers' logs and outboxes, and the file `address`, which holds the scheduler's address while `up`
serves and is removed at a clean stop. A stale file is therefore possible after a crash; it costs one
unanswered connection, whose error names the address and the remedy.
"""

import os
from pathlib import Path
from typing import BinaryIO, Final

from headrace.userfile import UserFile, UserFileError

DEFAULT_ADDRESS = "127.0.0.1:7440"
"""Where a scheduler listens unless it is told otherwise."""

ADDRESS_FILE = "address"
"""The file in the home folder that `headrace up` writes when it is ready."""


_ADDRESS: Final = UserFile(largest_bytes=10_000, remedy="Remove it.")


def home_dir() -> Path:
    """The folder of `HEADRACE_HOME`, or `~/.headrace`. It need not exist."""
    named = os.environ.get("HEADRACE_HOME")
    return Path(named).expanduser().absolute() if named else Path.home() / ".headrace"


def study_folder(name: str, uid: str) -> str:
    """The name of the folders that hold a study's logs, checkpoints and reports. A study that was deleted and created
    again under its name has another `uid`, and folders of its own."""
    return f"{name}-{uid}" if uid else name


def address(explicit: str | None = None) -> str:
    """The scheduler to talk to: `explicit`, else `HEADRACE_ADDRESS`, else the file that `headrace up` left, else
    127.0.0.1:7440."""
    return explicit or os.environ.get("HEADRACE_ADDRESS") or address_in(home_dir()) or DEFAULT_ADDRESS


def make_private(folder: Path) -> None:
    """Makes a folder, and those above it that are missing, for this user alone. What exists keeps its mode."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def append_private(file: Path) -> BinaryIO:
    """Opens a file for appending; makes it, and its folder, for this user alone."""
    make_private(file.parent)
    return os.fdopen(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")


def is_on_this_machine(where: str) -> bool:
    """Whether every replica of an address is a loopback one, so that most likely the workers are here too."""
    hosts = {replica.rpartition(":")[0] for replica in where.removeprefix("tls://").split(",")}
    return hosts <= {"127.0.0.1", "localhost", "[::1]"}


def address_in(home: Path) -> str | None:
    """What the `address` file of a home folder says; None while `headrace up` does not serve from there."""
    try:
        return _ADDRESS.text(home / ADDRESS_FILE).strip() or None
    except UserFileError:
        return None
