"""The worker's home: its lock, its identity, and what an earlier daemon left in it.

A daemon that died at any instant left its leases in the outbox. The next one on the same home buries it: it kills what
outlived it, reports its leases lost, and delivers what it could not.
"""

import fcntl
import logging
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headrace.durable import replace
from headrace.v1 import event_pb2, worker_pb2
from headrace_worker import own_groups
from headrace_worker.outbox import DurableOutbox, Entry, Outbox
from headrace_worker.own_groups import Group
from headrace_worker.process import bury, end_group, end_strays
from headrace_worker.session_core import SessionCore
from headrace_worker.standby import family

log = logging.getLogger(__name__)
_PAGE = 256


class AlreadyRunningError(Exception):
    """Another daemon uses the same home."""


@dataclass(slots=True)
class only_one:  # noqa: N801 - used as a context manager
    """Holds the home's lock: two daemons on one outbox would both number their messages."""

    home: Path
    _file: IO[str] | None = None

    def __enter__(self) -> None:
        self._file = (self.home / "lock").open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise AlreadyRunningError(
                f"another worker already runs with --home {self.home}; give this one another --name or --home"
            ) from None

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        self._file.close()


def identity(home: Path) -> str:
    """What tells this home from all others: drawn once, kept in a file."""
    path = home / "id"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        replace(path, uuid.uuid4().hex.encode())
        return path.read_text()


async def bury_predecessor(outbox: Outbox, home: Path) -> None:
    """Ends what an earlier daemon left running, and reports its leases lost."""
    for recorded in outbox.leases():
        killed = bury(recorded)
        if killed and recorded.pid is not None:
            log.warning("%s: killed %s, left by an earlier daemon", recorded.lease.trial, killed)
            await end_group(recorded.pid)
        await end_strays(recorded.carried)
        exited = worker_pb2.Exited(
            lease=recorded.lease, outcome=worker_pb2.EXIT_OUTCOME_LOST, error="the worker daemon died"
        )
        outbox.append_exit(recorded.lease.lease_id, worker_pb2.SessionRequest(exited=exited))
    ours = family(home)
    group = Group(own_groups.of_family(ours)) if os.geteuid() == 0 else None
    await end_strays(family=ours, group=group)


async def recall(core: SessionCore, outbox: DurableOutbox) -> None:
    """Tells the core what an earlier daemon could not deliver."""
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
