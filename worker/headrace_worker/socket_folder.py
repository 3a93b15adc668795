"""The folder of the socket for trials: whose it is, whether it is still there, and when an old one may go.

It is in the system's temporary folder, where paths are short, so other programs may delete it: a cleaner of old
files, an `rm -rf`. A note in the worker's home says where it is. If the home is a copy, such a note may be older
than the copy, and then it names the folder of a running daemon. So a folder says itself whose it is, in a file
that its daemon keeps locked. It is deleted if nobody holds that lock, and the file names this machine, this home
and the instance that the note names.
"""

import fcntl
import json
import logging
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

log = logging.getLogger(__name__)
PREFIX = "headrace-worker-"
SOCKET = "rt"
_OWNER = "owner"
# A sockaddr_un path has at most 107 bytes.
_LONGEST_PATH = 100
_FOR_ALL = "/tmp"  # noqa: S108 - the folder that is made in it is new, and the daemon's
_MACHINE_ID = Path("/etc/machine-id")
_NOFOLLOW = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The owner of a folder: a start of the daemon on a home of a machine."""

    home: str
    instance: str
    machine: str


@dataclass(frozen=True, slots=True)
class _File:
    """Identifies a file, whatever its path."""

    device: int
    inode: int

    @classmethod
    def at(cls, path: Path) -> "_File":
        found = path.lstat()
        return cls(found.st_dev, found.st_ino)


def machine() -> str:
    """Identifies this machine."""
    with suppress(OSError):
        if found := _MACHINE_ID.read_text().strip():
            return found
    return socket.gethostname()


class SocketFolder:
    """A folder of this daemon's own, which it locks."""

    def __init__(self, owner: Owner, *, for_other_users: bool = False) -> None:
        self._owner = owner
        self._for_other_users = for_other_users
        self._lock: IO[str] | None = None
        self._made: dict[Path, _File] = {}
        self.path = Path()

    def make(self) -> None:
        """Makes the folder; again at the same path if it is gone, because running trials know that path. Raises
        `OSError`."""
        if self._lock is None or not self._again():
            self.path = self._new()
        self._mark()

    def note(self, *names: str) -> None:
        """Remembers the folder, and files in it, as they are now."""
        self._made = {path: _File.at(path) for path in (self.path, *(self.path / name for name in names))}

    @property
    def is_there(self) -> bool:
        """Whether everything that was remembered is still there, and unchanged."""
        try:
            return bool(self._made) and all(_File.at(path) == file for path, file in self._made.items())
        except OSError:
            return False

    def said(self) -> str:
        """The note that the home keeps about it."""
        return json.dumps({"folder": str(self.path), **asdict(self._owner)})

    def delete(self) -> None:
        """Deletes it, if it is still the same folder."""
        with suppress(OSError):
            if self._made.get(self.path) == _File.at(self.path):
                shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()

    def _again(self) -> bool:
        """Makes the folder again at its path; False if something else is there now."""
        with suppress(FileNotFoundError):
            if self._made.get(self.path) != _File.at(self.path):
                return False
            self.path.chmod(stat.S_IRWXU)
            return True
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.path.mkdir(mode=stat.S_IRWXU)
        except FileExistsError:
            return False
        return True

    def _new(self) -> Path:
        found = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_FOR_ALL if self._for_other_users else None))
        if len(os.fsencode(found / SOCKET)) > _LONGEST_PATH:
            found.rmdir()
            found = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_FOR_ALL))
        return found

    def _mark(self) -> None:
        """Records the owner in a file, and locks that file."""
        path = self.path / _OWNER
        with suppress(FileNotFoundError):
            path.unlink()
        file = os.fdopen(os.open(path, _NOFOLLOW | os.O_CREAT | os.O_EXCL, 0o600), "w")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        json.dump(asdict(self._owner), file)
        file.flush()
        if self._lock is not None:
            self._lock.close()
        self._lock = file


def delete_left(note: str, home: str) -> None:
    """Deletes the folder that an earlier daemon on the home recorded, if it is that daemon's and nobody uses it."""
    try:
        said = json.loads(note)
        folder = Path(said.pop("folder"))
        owner = Owner(**said)
    except (ValueError, TypeError, KeyError, AttributeError):  # damaged: it does not name the folder's owner
        return
    if not folder.name.startswith(PREFIX) or (owner.home, owner.machine) != (home, machine()):
        return
    with _unused(folder / _OWNER) as text:
        if text == json.dumps(asdict(owner)):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            log.info("%s is left: it is not known to be this worker's, or it is in use", folder)


@contextmanager
def _unused(path: Path) -> Iterator[str]:
    """The text of a file that its daemon locks while it lives, read under that lock. Empty if the daemon lives, or
    there is no such file."""
    try:
        file = os.fdopen(os.open(path, _NOFOLLOW), "r+")
    except OSError:
        yield ""
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield ""
        else:
            yield file.read()
