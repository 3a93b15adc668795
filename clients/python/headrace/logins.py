"""What `headrace login` stores in the home folder: a scheduler's address, its certificate authority, and a token.

Only its user can read `login.json` (0600). A login is used if no address is given and no `headrace up` runs in
the home. Its token and its authority are used only for its own schedulers.
"""

import json
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.errors import HeadraceError
from headrace.home import home_dir, make_private
from headrace.userfile import UserFile, UserFileError

FILE: Final = "login.json"
CA_FILE: Final = "login-ca.pem"
HEAD_FILE: Final = "head/login.json"
"""The same for the scheduler that `headrace up --listen` runs in this home: its authority and first token."""
_READ: Final = UserFile(largest_bytes=100_000, remedy="Run `headrace login` again.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The scheduler where a user is logged in."""

    address: str
    """The address as the user wrote it, with `tls://`."""
    token: str = field(repr=False)
    tls_ca: Path | None
    """The certificate authority to trust; None: the system's."""

    def as_file(self, tls_ca: Path | None) -> bytes:
        """The file of this login, whose authority is in `tls_ca`."""
        said = {"address": self.address, "tls_ca": str(tls_ca) if tls_ca else None, "token": self.token}
        return json.dumps(said, indent=2).encode() + b"\n"

    @property
    def _replicas(self) -> set[str]:
        return set(self.address.replace("tls://", "").replace(" ", "").split(","))

    def covers(self, replicas: tuple[str, ...]) -> bool:
        """Whether all these schedulers are the login's."""
        return set(replicas) <= self._replicas

    def covers_hosts(self, replicas: tuple[str, ...]) -> bool:
        """Whether all these servers are on hosts of the login's schedulers."""
        return _hosts(replicas) <= _hosts(self._replicas)


def kept() -> Login | None:
    """The login of this home; None if there is none. Raises UserFileError for an invalid file."""
    return _read(home_dir() / FILE)


def of_head() -> Login | None:
    """What `headrace up --listen` wrote for this home's own user; None if there is none."""
    return _read(home_dir() / HEAD_FILE)


def _read(path: Path) -> Login | None:
    if not path.exists():
        return None
    found = _READ.json(path)
    try:
        ca = found["tls_ca"]
        return Login(
            address=str(found["address"]), token=str(found["token"]), tls_ca=Path(ca) if ca else None
        )
    except (KeyError, TypeError):
        raise UserFileError(path, None, "is no login", _READ.remedy) from None


def keep(login: Login) -> Path:
    """Store a login, with a copy of its authority, readable only by this user. Returns the file."""
    home = home_dir()
    try:
        make_private(home)
        ca = None
        if login.tls_ca is not None:
            ca = home / CA_FILE
            _write(ca, login.tls_ca.read_bytes())
        _write(home / FILE, login.as_file(ca))
    except OSError as error:
        raise HeadraceError(
            f"The login cannot be kept in {home}: {error.strerror or error}",
            remedy="Set HEADRACE_HOME to a folder that you can write.",
        ) from error
    return home / FILE


def forget() -> bool:
    """Remove the login of this home. Returns whether there was one."""
    (home_dir() / CA_FILE).unlink(missing_ok=True)
    path = home_dir() / FILE
    found = path.exists()
    path.unlink(missing_ok=True)
    return found


def others_may_read() -> int | None:
    """The mode of the file if other users may read it; otherwise None."""
    path = home_dir() / FILE
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0
    return mode if mode & 0o077 else None


def _hosts(replicas: Iterable[str]) -> set[str]:
    return {replica.rpartition(":")[0] for replica in replicas}


def _write(path: Path, data: bytes) -> None:
    """Write atomically, and never readable by others, not even for a moment."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
    new.replace(path)
