"""Logs of trials for readers elsewhere: parts of them over the session, and each attempt's into the store when it
ends.

While an attempt runs, its log is read from the disk. When it ends, its part goes into the store, beside the
trial's checkpoints, cut to `STORED_BYTES`, with its marks (`headrace.log_times`). Until it is there, and if the
store does not have it (for example, this daemon was killed), it is read from the disk.

Nobody waits for this but the reader. A part has at most 64 KiB, all parts together at most `BYTES_A_SECOND`, and
they are sent after the messages for the scheduler. So a reader delays no report.

Only logs can be read: the place follows from the names of the study and the trial, which cannot contain a path.
"""

import asyncio
import logging
import os
import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from headrace import log_times
from headrace.bounds.sessions import LOG_CHUNK_BYTES
from headrace.bundle_logs import LogReader
from headrace.checkpoints import CheckpointError, CheckpointStore
from headrace.checkpoints.small import LOGS_KEPT, log_name, times_name
from headrace.log_times import Mark
from headrace.v1 import worker_pb2
from headrace_worker.attempt import Attempt
from headrace_worker.launch import folder_of, log_path
from headrace_worker.logs import MAX_BYTES, AttemptLog, FileIdentity, open_to_read

log = logging.getLogger(__name__)

BYTES_A_SECOND = 4 << 20
STORED_BYTES = 8 << 20
"""The most that is stored of an attempt's log; of a longer one, the beginning and the end."""
TRIES = 5
FIRST_PAUSE_S = 1.0
MOST_SEARCHED_BYTES = 2 * MAX_BYTES
"""No log is longer, unless its trial made it so and the daemon was killed before it was shortened."""
MOST_PENDING = 1000
MOST_READERS = 32
_HEADER = re.compile(rb"^==== \S+ \S+ attempt ([0-9]{1,9}) on slot ", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The part of a file that an attempt wrote."""

    path: Path
    identity: FileIdentity
    start: int
    end: int
    bundled: bool
    """Whether its program printed into its bundle's log."""
    marks: tuple[Mark, ...] = ()
    """When it was written, with offsets within it."""

    def read(self, offset: int, most: int) -> bytes:
        """Read from an offset within the part. Raises `OSError`."""
        with open_to_read(self.path, self.identity) as file:
            file.seek(self.start + offset)
            return file.read(max(0, min(most, self.end - self.start - offset)))


class LogKeeper:
    """Puts the logs of ended attempts into the store, one after another."""

    def __init__(self, store: CheckpointStore, tasks: asyncio.TaskGroup) -> None:
        self._store = store
        self._tasks = tasks
        self._turn = asyncio.Lock()
        self._storing: set[asyncio.Task[None]] = set()
        self.pending: OrderedDict[str, Part] = OrderedDict()
        """The parts that are not in the store yet, by lease."""

    def keep(self, assign: worker_pb2.Assign, written: AttemptLog) -> None:
        """Store the log of an ended attempt, soon."""
        try:
            size = written.path.stat().st_size
        except OSError:  # the trial removed it
            return
        lease_id = assign.lease.lease_id
        start = min(written.began, size)
        self.pending[lease_id] = Part(
            path=written.path,
            identity=written.identity,
            start=start,
            end=size,
            bundled=assign.grant.seats > 1,
            marks=tuple(log_times.within_part(written.marks, start, size)),
        )
        while len(self.pending) > MOST_PENDING:  # the store is away for long: the logs stay on this disk only
            self.pending.popitem(last=False)
        task = self._tasks.create_task(self._store_it(assign), name=f"log of {lease_id}")
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def finish(self, within_s: float) -> None:
        """The daemon ends: what is not in the store by then stays on this disk only."""
        if self._storing:
            await asyncio.wait(self._storing, timeout=within_s)
        for task in self._storing:
            task.cancel()

    async def _store_it(self, assign: worker_pb2.Assign) -> None:
        lease_id, trial, attempt = assign.lease.lease_id, folder_of(assign), assign.lease.attempt
        pause_s = FIRST_PAUSE_S
        for _ in range(TRIES):
            part = self.pending.get(lease_id)
            if part is None:
                return
            try:
                async with self._turn:
                    await asyncio.to_thread(self._put, part, trial, attempt)
            except FileNotFoundError:  # the trial removed it
                self.pending.pop(lease_id, None)
                return
            except (CheckpointError, OSError) as error:
                log.warning("the log of %s is not in the store yet: %s", assign.lease.trial, error)
                await asyncio.sleep(pause_s)
                pause_s *= 4
            else:
                self.pending.pop(lease_id, None)
                return

    def _put(self, part: Part, trial: str, attempt: int) -> None:
        stored = _shortened(part)
        self._store.put_file(trial, log_name(attempt), stored)
        marks = _marks_of(part, len(stored))
        if len(marks) > 2:  # its beginning and its end alone do not help
            self._store.put_file(trial, times_name(attempt), log_times.pack(marks))
        if attempt > LOGS_KEPT:
            self._store.delete_file(trial, log_name(attempt - LOGS_KEPT))
            self._store.delete_file(trial, times_name(attempt - LOGS_KEPT))


def _shortened(part: Part) -> bytes:
    size = part.end - part.start
    if size <= STORED_BYTES:
        whole = part.read(0, size)
        return _alone(whole, part.path) if part.bundled else whole
    half = STORED_BYTES // 2
    notice = (
        f"\n==== {size - 2 * half} bytes left out: the store keeps {STORED_BYTES} bytes of an attempt ====\n"
    )
    return part.read(0, half) + notice.encode() + part.read(size - half, half)


def _marks_of(part: Part, stored_bytes: int) -> Sequence[Mark]:
    """The marks of what the store keeps of a part; none for a member's log, which has lost lines throughout."""
    size, half = part.end - part.start, STORED_BYTES // 2
    if part.bundled:
        return ()
    if size <= STORED_BYTES:
        return part.marks
    return log_times.replaced(part.marks, half, size - half, stored_bytes - 2 * half)


def _alone(whole: bytes, path: Path) -> bytes:
    """A member's log without the pointers into its bundle's log: the end of what the program printed is in it."""

    def open_file(which: Path) -> BinaryIO:
        if which != path:
            raise FileNotFoundError(which)
        return BytesIO(whole)

    reader = LogReader(path, open_file=open_file)
    return b"".join(reader.new()) + reader.rest()


class LogReads:
    """Reads parts of logs."""

    def __init__(self, store: CheckpointStore, pending: "OrderedDict[str, Part]", log_dir: Path) -> None:
        self._store = store
        self._pending = pending
        self._log_dir = log_dir
        self._found: OrderedDict[str, Part] = OrderedDict()
        self._turn = asyncio.Lock()
        self._bundled: OrderedDict[tuple[str, int], _Bundled] = OrderedDict()

    async def read(self, ask: worker_pb2.ReadLog, attempt: Attempt | None) -> worker_pb2.LogChunk:
        """A part of the log of an attempt that runs here or has ended."""
        async with self._turn:
            try:
                chunk = await asyncio.to_thread(self._read, ask, attempt)
            except FileNotFoundError:
                chunk = worker_pb2.LogChunk(trouble=worker_pb2.LOG_TROUBLE_GONE)
            except (CheckpointError, OSError, ValueError) as error:
                log.warning("a part of the log of %s cannot be read: %s", ask.lease.trial, error)
                chunk = worker_pb2.LogChunk(trouble=worker_pb2.LOG_TROUBLE_AWAY)
            chunk.id = ask.id
            await asyncio.sleep(len(chunk.data) / BYTES_A_SECOND)
        return chunk

    def _read(self, ask: worker_pb2.ReadLog, attempt: Attempt | None) -> worker_pb2.LogChunk:
        if attempt is not None:
            if attempt.log is None:
                return worker_pb2.LogChunk(live=True, next_offset=ask.offset, timed=True)
            if attempt.in_bundle:
                return self._of_bundle(ask, attempt.log)
            return _of_file(ask, attempt.log)
        if (ask.lease.lease_id, ask.offset) in self._bundled and not ask.HasField("within"):
            return self._end_of_bundle(ask)
        assign = worker_pb2.Assign(lease=ask.lease, study_uid=ask.study_uid)
        part = self._pending.get(ask.lease.lease_id)
        if part is None and (found := self._of_store(ask, folder_of(assign))) is not None:
            return found
        part = part or self._left_behind(assign)
        offset, timed = _begin(ask, part.marks)
        data = part.read(offset, LOG_CHUNK_BYTES)
        return worker_pb2.LogChunk(data=data, next_offset=offset + len(data), timed=timed)

    def _of_store(self, ask: worker_pb2.ReadLog, trial: str) -> worker_pb2.LogChunk | None:
        """The part of an ended attempt; None if the store does not have it."""
        times: bytes | None = None
        if ask.HasField("within"):
            name = times_name(ask.lease.attempt)
            times = self._store.read_file(trial, name, 0, log_times.MOST_BYTES)
        offset, timed = _begin(ask, log_times.unpack(times or b""))
        data = self._store.read_file(trial, log_name(ask.lease.attempt), offset, LOG_CHUNK_BYTES)
        if data is None:
            return None
        return worker_pb2.LogChunk(data=data, next_offset=offset + len(data), timed=timed)

    def _left_behind(self, assign: worker_pb2.Assign) -> Part:
        """The part of an attempt that was not stored, found by its header line. Raises `FileNotFoundError`."""
        lease_id = assign.lease.lease_id
        if lease_id not in self._found:
            path = log_path(self._log_dir, assign)
            self._found[lease_id] = _found_in(path, assign.lease.attempt)
            while len(self._found) > MOST_READERS:
                self._found.popitem(last=False)
        return self._found[lease_id]

    def _of_bundle(self, ask: worker_pb2.ReadLog, written: AttemptLog) -> worker_pb2.LogChunk:
        """The attempt's own log with what its bundle prints: it can only be read forwards."""
        since = _since(ask)
        begun = None if since is not None else self._bundled.pop((ask.lease.lease_id, ask.offset), None)
        reader = begun or _Bundled(written, skip=ask.offset, since=since)
        data = reader.read(LOG_CHUNK_BYTES)
        self._bundled[ask.lease.lease_id, reader.end] = reader
        while len(self._bundled) > MOST_READERS:
            self._bundled.popitem(last=False)
        return worker_pb2.LogChunk(data=data, next_offset=reader.end, live=True, timed=reader.timed)

    def _end_of_bundle(self, ask: worker_pb2.ReadLog) -> worker_pb2.LogChunk:
        """The rest of a member's log for a reader that has followed it: the log in the store is another one,
        without the bundle's."""
        reader = self._bundled.pop((ask.lease.lease_id, ask.offset))
        data = reader.read(LOG_CHUNK_BYTES)
        if data:
            self._bundled[ask.lease.lease_id, reader.end] = reader
        return worker_pb2.LogChunk(data=data, next_offset=reader.end)


def _found_in(path: Path, attempt: int) -> Part:
    with open_to_read(path) as file:
        found = os.fstat(file.fileno())
        starts = [(int(one[1]), one.start()) for one in _HEADER.finditer(file.read(MOST_SEARCHED_BYTES))]
    for (which, start), (_, end) in pairwise([*starts, (0, found.st_size)]):
        if which == attempt:
            marks = tuple(log_times.within_part(log_times.read(path), start, end))
            identity = (found.st_dev, found.st_ino)
            return Part(path=path, identity=identity, start=start, end=end, bundled=False, marks=marks)
    raise FileNotFoundError(f"{path} has nothing of attempt {attempt}")


def _of_file(ask: worker_pb2.ReadLog, written: AttemptLog) -> worker_pb2.LogChunk:
    with open_to_read(written.path, written.identity) as file:
        begins, size = written.began, os.fstat(file.fileno()).st_size
        available = max(0, size - begins)
        offset, timed = _begin(ask, log_times.within_part(written.marks, begins, size))
        # It was cut if it is shorter than what was read: continue with its last part.
        offset = offset if offset <= available else max(0, available - LOG_CHUNK_BYTES)
        file.seek(begins + offset)
        data = file.read(LOG_CHUNK_BYTES)
    return worker_pb2.LogChunk(data=data, next_offset=offset + len(data), live=True, timed=timed)


def _since(ask: worker_pb2.ReadLog) -> int | None:
    """The start of the requested time, in the time of marks; None: all of the log."""
    if not ask.HasField("within"):
        return None
    return log_times.since_ms(ask.within.ToTimedelta(), time.time())


def _begin(ask: worker_pb2.ReadLog, marks: Sequence[Mark]) -> tuple[int, bool]:
    """Where to start reading, and whether that is where the requested time starts."""
    since = _since(ask)
    place = None if since is None else log_times.place_of(marks, since)
    return (ask.offset, False) if place is None else (place, True)


class _Bundled:
    """Reads a member's log together with its bundle's."""

    def __init__(self, written: AttemptLog, *, skip: int, since: int | None = None) -> None:
        self._reader = LogReader(written.path, start=written.began, since=since, open_file=open_to_read)
        self._new: Iterator[bytes] | None = None
        self._skip = self._passed = skip
        self._rest = b""

    @property
    def timed(self) -> bool:
        """Whether the time of each part is known."""
        return self._reader.timed

    @property
    def end(self) -> int:
        """Where the next part starts, counting what is not shown."""
        return self._passed + self._reader.left_out

    def read(self, most: int) -> bytes:
        self._new = self._new or self._reader.new()
        while len(self._rest) < most:
            more = next(self._new, None)
            if more is None:
                self._new = None
                break
            skipped = min(self._skip, len(more))
            self._skip -= skipped
            self._rest += more[skipped:]
        data, self._rest = self._rest[:most], self._rest[most:]
        self._passed += len(data)
        return data
