"""The worker's durable memory: messages not yet acknowledged, leases held, uploads in progress.

One SQLite file (WAL, synchronous=FULL: once a call has returned, its effect survives a power cut). It is written
before anything is promised: a report is here before its trial continues, a lease before its process starts, an
upload before its first byte is stored.

- `messages`: what the scheduler must know, numbered by a count that never goes back, even over restarts.
  Deleted when the scheduler has acknowledged them, or moved to a folder when it rejected them (`rejected`).
- `leases`: what a restarted daemon must clean up: the process groups that its predecessor left, each of
  which becomes an `Exited{LOST}`.
- `uploads`: checkpoints that no message refers to yet. An upload leaves this table in the transaction that writes
  its report, so whatever is here at a start is a leftover.

`Outbox` is synchronous and not thread-safe; `DurableOutbox` gives it one thread of its own and turns a full
disk into waiting.
"""

import asyncio
import logging
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from google.protobuf.message import DecodeError

from headrace.durable import flush, rename
from headrace.v1 import event_pb2, worker_pb2
from headrace_worker.backoff import Backoff
from headrace_worker.rejected import RejectedMessages

log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS messages (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  lease_id TEXT NOT NULL,
  body BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS leases (
  lease_id TEXT PRIMARY KEY,
  trial TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  pid INTEGER,
  started REAL,
  mark TEXT NOT NULL,
  proof TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS uploads (
  uri TEXT PRIMARY KEY,
  lease_id TEXT NOT NULL
);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A durable message with its sequence filled in."""

    sequence: int
    lease_id: str
    request: worker_pb2.SessionRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLease:
    """A lease that was held when it was recorded; `pid` and its start time are set once its process exists."""

    lease: event_pb2.LeaseRef
    pid: int | None
    started: float | None
    # What the process has in its environment as its lease; empty: this lease.
    mark: str = ""

    @property
    def carried(self) -> str:
        """The lease that identifies the process."""
        return self.mark or self.lease.lease_id


_NO_FILE = Path(":memory:")


class Outbox:
    """The file, synchronously. Every method is one transaction. `:memory:` is SQLite's name for having no file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.rejected = RejectedMessages(path.parent / "rejected")
        self._db = _opened(path)
        self._file = path.stat() if path != _NO_FILE else None

    @property
    def is_there(self) -> bool:
        """Whether the file is still in its place."""
        with suppress(OSError):
            return self._file is None or os.path.samestat(self._file, self._path.stat())
        return False

    def write_again(self) -> None:
        """Writes the file again, which somebody has deleted, from the descriptor that is still open.

        Raises `OSError` or `sqlite3.OperationalError` if it is deleted once more meanwhile: the open file stays.
        Not for `together`: SQLite cannot copy within a transaction, and would wait for its end.
        """
        assert not self._db.in_transaction
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_name(f".{self._path.name}.new")
        new.unlink(missing_ok=True)
        with closing(sqlite3.connect(new)) as copy:
            self._db.backup(copy)
        flush(new)
        for left in ("-wal", "-shm"):  # they vanish with the file that was deleted
            self._path.with_name(self._path.name + left).unlink(missing_ok=True)
        with new.open("rb") as written:  # kept open, so that no other file gets its inode number
            rename(new, self._path)
            again = _opened(self._path)
            try:
                self._file = _same(written, self._path)
            except OSError:
                again.close()
                raise
        before, self._db = self._db, again
        before.close()  # SQLite sees that its file is gone, and does not touch the new one's

    def append(self, lease_id: str, request: worker_pb2.SessionRequest, *, upload: str = "") -> int:
        """Adds a `Report` or `Restored` and returns its sequence; this also completes its checkpoint's upload."""
        return self._transaction(lambda: self._append(lease_id, request, upload=upload))

    def append_exit(self, lease_id: str, request: worker_pb2.SessionRequest) -> int:
        """Adds an `Exited` and removes the lease, in one transaction; this also completes its checkpoint's upload."""

        def work() -> int:
            sequence = self._append(lease_id, request, upload=request.exited.checkpoint.uri)
            self._db.execute("DELETE FROM leases WHERE lease_id = ?", (lease_id,))
            return sequence

        return self._transaction(work)

    def after(self, sequence: int, limit: int) -> list[Entry]:
        """Reads the messages after a sequence, in order."""
        rows = self._db.execute(
            "SELECT sequence, lease_id, body FROM messages WHERE sequence > ? ORDER BY sequence LIMIT ?",
            (sequence, limit),
        )
        found = []
        for row in rows.fetchall():
            try:
                found.append(_entry(*row))
            except (DecodeError, ValueError) as error:
                log.warning("message %d in the outbox cannot be read: %s", row[0], error)
                self.reject(row[0], f"it cannot be read: {error}")
        return found

    def reject(self, sequence: int, reason: str) -> None:
        """Moves a rejected message into the folder for those; an unknown one is no error. Raises `OSError`."""
        row = self._db.execute("SELECT body FROM messages WHERE sequence = ?", (sequence,)).fetchone()
        if row is not None:
            self.rejected.keep(sequence, row[0], reason)
            self.delete([sequence])

    def delete(self, sequences: Sequence[int]) -> None:
        """Deletes acknowledged messages; unknown ones are no error."""
        self._transaction(
            lambda: self._db.executemany("DELETE FROM messages WHERE sequence = ?", [(s,) for s in sequences])
        )

    def hold(self, lease: event_pb2.LeaseRef, mark: str = "") -> None:
        """Records that the lease is held, before its process exists, and the lease that marks the process."""
        self._db.execute(
            "INSERT OR IGNORE INTO leases (lease_id, trial, attempt, mark, proof) VALUES (?, ?, ?, ?, ?)",
            (lease.lease_id, lease.trial, lease.attempt, mark, lease.proof),
        )

    def started(self, lease_id: str, pid: int, started: float) -> None:
        """Records the lease's process group and when its leader started."""
        self._db.execute(
            "UPDATE leases SET pid = ?, started = ? WHERE lease_id = ?", (pid, started, lease_id)
        )

    def leases(self) -> list[RecordedLease]:
        """Reads the leases that were held."""
        return [
            RecordedLease(
                lease=event_pb2.LeaseRef(lease_id=lease_id, trial=trial, attempt=attempt, proof=proof),
                pid=pid,
                started=started,
                mark=mark,
            )
            for lease_id, trial, attempt, pid, started, mark, proof in self._db.execute(
                "SELECT lease_id, trial, attempt, pid, started, mark, proof FROM leases ORDER BY rowid"
            )
        ]

    def begin_upload(self, uri: str, lease_id: str) -> None:
        """Records that a file may soon be at `uri` that no message refers to."""
        self._db.execute("INSERT OR IGNORE INTO uploads (uri, lease_id) VALUES (?, ?)", (uri, lease_id))

    def end_upload(self, uri: str) -> None:
        """Removes an upload that was deleted."""
        self._db.execute("DELETE FROM uploads WHERE uri = ?", (uri,))

    def uploads(self) -> list[str]:
        """Reads where uploads were in progress."""
        return [uri for (uri,) in self._db.execute("SELECT uri FROM uploads ORDER BY rowid")]

    def forget_uploads(self) -> None:
        """Removes all uploads in progress, which may have been another worker's."""
        self._db.execute("DELETE FROM uploads")

    def close(self) -> None:
        """Closes the file."""
        self._db.close()

    def _append(self, lease_id: str, request: worker_pb2.SessionRequest, *, upload: str = "") -> int:
        with closing(
            self._db.execute(
                "INSERT INTO messages (lease_id, body) VALUES (?, ?)", (lease_id, request.SerializeToString())
            )
        ) as cursor:
            sequence = cursor.lastrowid
        assert sequence is not None
        if upload:
            self._db.execute("DELETE FROM uploads WHERE uri = ?", (upload,))
        return sequence

    def together(self, works: Sequence[Callable[[], Any]]) -> list[Any]:
        """Runs several pieces of work in one transaction, with one wait for the disk. Returns their results.

        If one of them fails, nothing is written and its error is raised.
        """
        return self._transaction(lambda: [work() for work in works])

    def _transaction(self, work: Callable[[], _Result]) -> _Result:
        if self._db.in_transaction:  # one of several (`together`)
            return work()
        self._db.execute("BEGIN IMMEDIATE")
        try:
            result = work()
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        return result


def _opened(path: Path) -> sqlite3.Connection:
    # One thread at a time uses it (see DurableOutbox), but not always the one that opened it.
    found = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    try:
        found.execute("PRAGMA journal_mode=WAL")
        found.execute("PRAGMA synchronous=FULL")
        found.executescript(_SCHEMA)
    except BaseException:
        found.close()
        raise
    return found


def _same(file: IO[bytes], path: Path) -> os.stat_result:
    """The status of an open file. Raises `FileNotFoundError` if it is not the file at `path`."""
    found = os.fstat(file.fileno())
    if not os.path.samestat(found, path.stat()):
        raise FileNotFoundError(f"{path} was deleted and created again by another process")
    return found


def _entry(sequence: int, lease_id: str, body: bytes) -> Entry:
    request = worker_pb2.SessionRequest.FromString(body)
    match request.WhichOneof("message"):
        case "report":
            request.report.sequence = sequence
        case "restored":
            request.restored.sequence = sequence
        case "exited":
            request.exited.sequence = sequence
        case other:
            raise ValueError(f"message {sequence} in the outbox is a {other}, which is not a durable message")
    return Entry(sequence=sequence, lease_id=lease_id, request=request)


class DurableOutbox:
    """The outbox for the event loop: one thread, and patience with a full disk.

    Calls that wait for the thread are written together, in their order: the members of a bundle report at the same
    time, and wait for the disk once. A call that cannot be written is retried until it can; meanwhile `trouble`
    says why. Cancelling a call does not undo it: the thread completes what it has started.
    """

    def __init__(self, outbox: Outbox, backoff: Callable[[], Backoff] = Backoff) -> None:
        self._outbox = outbox
        self._backoff = backoff
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outbox")
        self._waiting: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self.trouble = ""

    async def append(self, lease_id: str, request: worker_pb2.SessionRequest, *, upload: str = "") -> int:
        """See `Outbox.append`."""
        return await self._durably(lambda: self._outbox.append(lease_id, request, upload=upload))

    async def append_exit(self, lease_id: str, request: worker_pb2.SessionRequest) -> int:
        """See `Outbox.append_exit`."""
        return await self._durably(lambda: self._outbox.append_exit(lease_id, request))

    async def after(self, sequence: int, limit: int) -> list[Entry]:
        """See `Outbox.after`."""
        return await self._durably(lambda: self._outbox.after(sequence, limit))

    async def delete(self, sequences: Sequence[int]) -> None:
        """See `Outbox.delete`."""
        await self._durably(lambda: self._outbox.delete(sequences))

    async def reject(self, sequence: int, reason: str) -> None:
        """See `Outbox.reject`."""
        await self._durably(lambda: self._outbox.reject(sequence, reason))

    def rejected(self) -> str:
        """See `RejectedMessages.summary`. Safe in any thread: it touches no database."""
        return self._outbox.rejected.summary()

    async def hold(self, lease: event_pb2.LeaseRef, mark: str = "") -> None:
        """See `Outbox.hold`."""
        await self._durably(lambda: self._outbox.hold(lease, mark))

    async def started(self, lease_id: str, pid: int, started: float) -> None:
        """See `Outbox.started`."""
        await self._durably(lambda: self._outbox.started(lease_id, pid, started))

    async def begin_upload(self, uri: str, lease_id: str) -> None:
        """See `Outbox.begin_upload`."""
        await self._durably(lambda: self._outbox.begin_upload(uri, lease_id))

    async def end_upload(self, uri: str) -> None:
        """See `Outbox.end_upload`."""
        await self._durably(lambda: self._outbox.end_upload(uri))

    async def uploads(self) -> list[str]:
        """See `Outbox.uploads`."""
        return await self._durably(self._outbox.uploads)

    async def forget_uploads(self) -> None:
        """See `Outbox.forget_uploads`."""
        await self._durably(self._outbox.forget_uploads)

    @property
    def is_there(self) -> bool:
        """See `Outbox.is_there`. Safe in any thread: it touches no database."""
        return self._outbox.is_there

    async def write_again(self) -> None:
        """See `Outbox.write_again`. It waits for its turn, and runs alone."""
        await self._patiently(lambda: self._thread.submit(self._outbox.write_again))

    def close(self) -> None:
        """Ends the thread and closes the file."""
        self._thread.shutdown(wait=True)
        self._outbox.close()

    async def _durably(self, work: Callable[[], _Result]) -> _Result:
        return await self._patiently(lambda: self._beside(work))

    def _beside(self, work: Callable[[], _Result]) -> Future[_Result]:
        """Runs a piece of work together with all others that wait."""
        done: Future[_Result] = Future()
        self._waiting.append((work, done))
        self._thread.submit(self._run_waiting)
        return done

    async def _patiently(self, begin: Callable[[], Future[_Result]]) -> _Result:
        backoff = self._backoff()
        while True:
            try:
                result = await asyncio.wrap_future(begin())
            except (sqlite3.OperationalError, OSError) as error:
                trouble = f"the outbox cannot be written: {error}"
                if trouble != self.trouble:
                    log.warning("%s; retrying until it can; nothing is lost", trouble)
                self.trouble = trouble
                await backoff.wait()
            else:
                if self.trouble:
                    log.warning("the outbox can be written again")
                    self.trouble = ""
                return result

    def _run_waiting(self) -> None:
        """Runs everything that waits. In the thread."""
        taken = []
        while self._waiting:
            work, done = self._waiting.popleft()
            if done.set_running_or_notify_cancel():
                taken.append((work, done))
        if len(taken) > 1:
            with suppress(Exception):  # then one by one: only the call at fault fails
                for (_, done), result in zip(
                    taken, self._outbox.together([work for work, _ in taken]), strict=True
                ):
                    done.set_result(result)
                return
        for work, done in taken:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001  (whoever waits for it gets it)
                done.set_exception(error)
