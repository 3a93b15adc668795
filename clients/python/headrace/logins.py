"""What `headrace login` keeps in the home folder: a scheduler's address, its authority, and a token.

`login.json` is for its user alone (0600). A login counts where no address is given and no `headrace up` runs in the
home. Its token and its authority go to its own schedulers and to nobody else.
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
_READ: Final = UserFile(largest_bytes=100_000, remedy="Run `headrace login` again.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Where a user is logged in."""

    address: str
    """As the user wrote it, with `tls://`."""
    token: str = field(repr=False)
    tls_ca: Path | None
    """The authority to trust; None: the system's."""

    @property
    def _replicas(self) -> set[str]:
        return set(self.address.replace("tls://", "").replace(" ", "").split(","))

    def covers(self, replicas: tuple[str, ...]) -> bool:
        """Whether all these schedulers are the login's own."""
        return set(replicas) <= self._replicas

    def covers_hosts(self, replicas: tuple[str, ...]) -> bool:
        """Whether all these servers are on hosts of the login's schedulers."""
        return _hosts(replicas) <= _hosts(self._replicas)


def kept() -> Login | None:
    """The login of this home; None where there is none. Raises UserFileError for a file that is none."""
    path = home_dir() / FILE
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
    """Write a login down for this user alone, with a copy of its authority. Returns the file."""
    home = home_dir()
    try:
        make_private(home)
        ca = None
        if login.tls_ca is not None:
            ca = home / CA_FILE
            _write(ca, login.tls_ca.read_bytes())
        said = {"address": login.address, "tls_ca": str(ca) if ca else None, "token": login.token}
        _write(home / FILE, json.dumps(said, indent=2).encode() + b"\n")
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
    """The mode of the file where other users may read it; else None."""
    path = home_dir() / FILE
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0
    return mode if mode & 0o077 else None


def _hosts(replicas: Iterable[str]) -> set[str]:
    return {replica.rpartition(":")[0] for replica in replicas}


def _write(path: Path, data: bytes) -> None:
    """All or nothing, and never readable by others, not even for an instant."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
    new.replace(path)
