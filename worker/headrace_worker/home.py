"""The worker's home: its lock, its identity, and what an earlier daemon left in it.

    lock the home → ask a scheduler → it accepts this worker → clean up after the previous daemon → run trials

A daemon may die at any instant; its leases are then in the outbox. The next daemon on the same home cleans up: it
kills the processes that outlived it, reports its leases lost, and delivers the messages that it could not.

A home can be copied, with everything in it, while its daemon runs. A copy has the same identity but another lock,
because a lock belongs to a file and not to its name. So a scheduler can tell the two apart, and refuses the copy
while the first is connected. Until a scheduler has accepted it, a daemon changes nothing outside its home. It may
be accepted on a home that is not the one on which a daemon was last accepted: the home was copied or moved, or the
machine has restarted since. Then the files' records of processes and uploads may concern another place. So the
daemon reports the leases lost, and kills and deletes nothing.

A home that is deleted while its daemon runs is made again (`ground`).
"""

import fcntl
import logging
import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

from headrace.durable import replace
from headrace.home import check_own
from headrace.v1 import event_pb2, worker_pb2
from headrace_worker import control_groups, own_groups
from headrace_worker.courier import Courier
from headrace_worker.outbox import DurableOutbox, Entry, RecordedLease
from headrace_worker.own_groups import Group
from headrace_worker.process import bury, end_group, end_strays
from headrace_worker.session_core import SessionCore
from headrace_worker.standby import family

log = logging.getLogger(__name__)
_PAGE = 256
_TAKEN = "taken-with"
"""Records with which lock a daemon was last accepted."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class AlreadyRunningError(Exception):
    """Another daemon uses the same home."""


class Home:
    """A home, whose lock is held inside the `with` block: two daemons on one outbox would both number their
    messages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.identity = ""
        # A daemon was last accepted here with another lock, so what it left may concern another place.
        self.copied = False
        self._file: IO[str] | None = None
        self._kept = {"id"}

    def __enter__(self) -> "Home":
        self._make()
        self._file = self._locked()
        self.identity = identity(self.path)
        with suppress(FileNotFoundError):
            self.copied = (self.path / _TAKEN).read_text() != self.lock
        return self

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        self._file.close()

    @property
    def lock(self) -> str:
        """Identifies the lock that is held: no other daemon can have it while this one lives, and no copy ever has
        it."""
        assert self._file is not None
        found = os.fstat(self._file.fileno())
        return f"{_boot()}-{found.st_dev:x}-{found.st_ino:x}"

    def settle(self) -> None:
        """A scheduler has accepted the daemon, and what its predecessor left is cleaned up: from now on everything
        here is its own."""
        replace(self.path / _TAKEN, self.lock.encode())
        self.copied = False
        self.keep(_TAKEN)

    def keep(self, name: str) -> None:
        """A file that is in the home from now on: without it, the home is incomplete."""
        self._kept.add(name)

    @property
    def is_there(self) -> bool:
        """Whether the locked file is still in its place, with the files that are kept beside it. Whoever deletes a
        home may still be deleting when it is made again."""
        return self._locked_here and all((self.path / name).exists() for name in self._kept)

    @property
    def _locked_here(self) -> bool:
        assert self._file is not None
        with suppress(OSError):
            return os.path.samestat(os.fstat(self._file.fileno()), (self.path / "lock").stat())
        return False

    def make_again(self) -> None:
        """Replaces a home that has vanished. Raises `AlreadyRunningError` if another daemon has done so, and
        `OSError` if it vanishes again meanwhile."""
        self._make()
        if not self._locked_here:
            file = self._locked()
            assert self._file is not None
            self._file.close()
            self._file = file
        replace(self.path / "id", self.identity.encode())
        control_groups.note(self.path)
        if not self.copied:
            self.settle()

    def _make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        check_own(
            self.path,
            "the worker's home",
            remedy="Give another --home. If all in it is yours: `chown` it to the worker's user, `chmod 700` it.",
        )

    def _locked(self) -> IO[str]:
        file = (self.path / "lock").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise AlreadyRunningError(
                f"another worker already runs with --home {self.path}; give this one another --name or --home"
            ) from None
        return file


def identity(home: Path) -> str:
    """What distinguishes this home from all others except its copies: drawn once, kept in a file."""
    path = home / "id"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        replace(path, uuid.uuid4().hex.encode())
        return path.read_text()


async def bury_predecessor(
    courier: Courier, home: Path, recorded: Sequence[RecordedLease], *, copied: bool
) -> None:
    """Ends what an earlier daemon left running, unless its records may concern another place, and reports its
    leases lost."""
    for one in recorded:
        if not copied:
            await _end_left(one)
        exited = worker_pb2.Exited(
            lease=one.lease, outcome=worker_pb2.EXIT_OUTCOME_LOST, error="the worker daemon died"
        )
        await courier.post_exit(exited)
    ours = family(home)
    group = Group(own_groups.of_family(ours)) if os.geteuid() == 0 else None
    if group is not None:
        try:
            await control_groups.end_all(home, group.number)
        except (
            OSError
        ) as error:  # a full disk: if the next daemon starts elsewhere, it finds the processes one by one
            log.warning("%s cannot be written: %s", home, error)
    await end_strays(family=ours, group=group)


async def _end_left(recorded: RecordedLease) -> None:
    killed = bury(recorded)
    if killed and recorded.pid is not None:
        log.warning("%s: killed %s, left by an earlier daemon", recorded.lease.trial, killed)
        await end_group(recorded.pid)
    await end_strays(recorded.carried)


async def recall(core: SessionCore, outbox: DurableOutbox) -> None:
    """Tells the core which messages an earlier daemon could not deliver."""
    through = 0
    while entries := await outbox.after(through, _PAGE):
        for entry in entries:
            lease, exited = _lease_of(entry)
            core.appended(entry.sequence, lease, exited=exited)
            through = entry.sequence


def _lease_of(entry: Entry) -> tuple[event_pb2.LeaseRef, bool]:
    request = entry.request
    match request.WhichOneof("message"):
        case "report":
            return request.report.lease, False
        case "restored":
            return request.restored.lease, False
        case _:
            return request.exited.lease, True


def _boot() -> str:
    """Identifies the current boot of this machine."""
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return f"{psutil.boot_time():.0f}"
