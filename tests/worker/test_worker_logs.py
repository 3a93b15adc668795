"""Logs of trials: parts of them over the session, and each attempt's log in the store."""

import asyncio
import os
from collections import OrderedDict
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripted_scheduler import ScriptedScheduler, Stream, until
from worker_site import Site

from headrace.checkpoints import CheckpointStore, StoreUnavailableError, store_from_url
from headrace.checkpoints.small import log_name
from headrace.v1 import worker_pb2
from headrace_worker import log_reads
from headrace_worker.log_reads import LogKeeper, LogReads, Part
from headrace_worker.logs import AttemptLog, open_to_read

PLACE = "studies/s/trials/0"


async def part(stream: Stream, assign: worker_pb2.Assign, offset: int = 0) -> worker_pb2.LogChunk:
    """Ask for a part of a log."""
    number = len(stream.all("log_chunk")) + 1
    ask = worker_pb2.ReadLog(id=number, lease=assign.lease, study_uid=assign.study_uid, offset=offset)
    stream.send(read_log=ask)
    chunk = await stream.get("log_chunk", number)
    assert chunk.id == number
    return chunk


async def has(stream: Stream, assign: worker_pb2.Assign, words: bytes) -> worker_pb2.LogChunk:
    """Ask until the log contains some words."""
    async with asyncio.timeout(60):
        while words not in (found := await part(stream, assign)).data:
            await asyncio.sleep(0.05)
    return found


def store_of(site: Site) -> CheckpointStore:
    return store_from_url(site.settings.store_url)


async def test_a_log_is_read_while_the_trial_runs_and_from_the_store_afterwards(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    assert stream.hello.protocol >= 1
    program = "import time\nprint('one', flush=True)\nwhile not Path(os.environ['MARKS'], 'go').exists():\n"
    program = "import os\nfrom pathlib import Path\n" + program + "    time.sleep(0.02)\nprint('two')\n"
    assign = site.assign(site.program(program, prelude=False))
    stream.send(assign=assign)
    first = await has(stream, assign, b"one\n")
    assert first.live
    assert first.data.startswith(b"==== ")
    assert first.next_offset == len(first.data)
    assert not (await part(stream, assign, first.next_offset)).data
    (site.marks / "go").touch()
    assert (await stream.get("exited")).outcome == worker_pb2.EXIT_OUTCOME_FINISHED
    store = store_of(site)
    await until(lambda: store.read_file(PLACE, log_name(1), 0, 1000) is not None, "the log in the store")
    (site.settings.log_dir / "s/0.log").unlink()
    last = await part(stream, assign, first.next_offset)
    assert (last.data, last.live) == (b"two\n", False)
    assert (await part(stream, assign)).data == first.data + b"two\n"
    assert not (await part(stream, assign, last.next_offset)).data
    other = worker_pb2.Assign(lease=assign.lease)
    other.lease.lease_id, other.lease.attempt = "another", 2
    assert (await part(stream, other)).trouble == worker_pb2.LOG_TROUBLE_GONE


@pytest.mark.full
async def test_what_a_trial_puts_in_the_place_of_its_log_is_not_read(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    (site.root / "store").mkdir()
    site.start()
    stream = await scheduler.stream()
    secret = site.root / "token"
    secret.write_text("hr_secret")
    body = f"""
        path = Path({str(site.settings.log_dir)!r}, "s/0.log")
        path.unlink()
        path.symlink_to({str(secret)!r})
        mark("done")
        while not Path(os.environ["MARKS"], "go").exists():
            time.sleep(0.02)
        """
    assign = site.assign(site.program(body))
    stream.send(assign=assign)
    await until((site.marks / "done").exists)
    chunk = await part(stream, assign)
    assert (chunk.data, chunk.trouble) == (b"", worker_pb2.LOG_TROUBLE_GONE)
    (site.marks / "go").touch()
    await stream.get("exited")
    chunk = await part(stream, assign)
    assert (chunk.data, chunk.trouble) == (b"", worker_pb2.LOG_TROUBLE_GONE)
    assert store_of(site).read_file(PLACE, log_name(1), 0, 1000) is None


@pytest.mark.full
def test_another_file_in_the_place_of_a_log_is_not_read(tmp_path: Path) -> None:
    written = AttemptLog.open(tmp_path / "0.log", "header")
    with open_to_read(written.path, written.identity) as file:
        assert file.read() == b"==== header ====\n"
    (tmp_path / "other").write_text("other")
    (tmp_path / "other").rename(written.path)
    with pytest.raises(FileNotFoundError):
        open_to_read(written.path, written.identity)
    written.path.unlink()
    (tmp_path / "pipe").mkdir()
    with pytest.raises(FileNotFoundError):
        open_to_read(tmp_path / "pipe")
    written.close()


class Store(SimpleNamespace):
    """A store that fails as often as it is told to."""

    files: dict[tuple[str, str], bytes]
    failures: int

    def put_file(self, trial: str, name: str, data: bytes) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailableError("the store is away")
        self.files[trial, name] = data

    def delete_file(self, trial: str, name: str) -> None:
        self.files.pop((trial, name), None)

    def read_file(self, trial: str, name: str, start: int, most: int) -> bytes | None:
        if self.failures:
            raise StoreUnavailableError("the store is away")
        data = self.files.get((trial, name))
        return None if data is None else data[start : start + most]


def attempt_of(tmp_path: Path, attempt: int, words: bytes) -> tuple[worker_pb2.Assign, AttemptLog]:
    assign = worker_pb2.Assign(study_uid="u")
    assign.lease.lease_id, assign.lease.trial, assign.lease.attempt = (
        f"l{attempt}",
        "studies/s/trials/0",
        attempt,
    )
    written = AttemptLog.open(tmp_path / "0.log", f"attempt {attempt}")
    written.file.write(words)
    written.close()
    return assign, written


async def kept(tmp_path: Path, store: Any, attempts: dict[int, bytes]) -> LogKeeper:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        keeper = LogKeeper(store, tasks)
        for attempt, words in attempts.items():
            keeper.keep(*attempt_of(tmp_path, attempt, words))
    return keeper


async def test_each_attempt_is_stored_by_itself_and_the_last_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reads, "LOGS_KEPT", 2)
    monkeypatch.setattr(log_reads, "STORED_BYTES", 100)
    store = Store(files={}, failures=0)
    long = b"a" * 200 + b"z" * 200
    await kept(tmp_path, store, {1: b"one\n", 2: b"two\n", 3: long})
    assert {name for _, name in store.files} == {log_name(2), log_name(3)}
    place = "studies/s-u/trials/0"
    assert store.files[place, log_name(2)] == b"==== attempt 2 ====\ntwo\n"
    cut = store.files[place, log_name(3)]
    assert cut.startswith(b"==== attempt 3 ====\naaa")
    assert cut.endswith(b"z" * 50)
    assert b"bytes left out: the store keeps 100 bytes of an attempt" in cut


@pytest.mark.full
async def test_a_store_that_is_away_is_tried_again_and_the_disk_answers_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reads, "FIRST_PAUSE_S", 0.01)
    store: Any = Store(files={}, failures=3)
    keeper = await kept(tmp_path, store, {1: b"one\n"})
    assert len(store.files) == 1
    assert not keeper.pending
    store.failures = 99
    keeper = await kept_with_few_tries(tmp_path, store, monkeypatch)
    assert list(keeper.pending) == ["l2"]
    assign, _ = attempt_of(tmp_path / "x", 2, b"")
    ask = worker_pb2.ReadLog(lease=assign.lease, study_uid="u")
    reads = LogReads(store, keeper.pending, tmp_path / "logs")
    assert (await reads.read(ask, None)).data == b"==== attempt 2 ====\ntwo\n"
    ask.lease.lease_id = "unknown"
    assert (await reads.read(ask, None)).trouble == worker_pb2.LOG_TROUBLE_AWAY


async def kept_with_few_tries(tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch) -> LogKeeper:
    monkeypatch.setattr(log_reads, "TRIES", 1)
    return await kept(tmp_path, store, {2: b"two\n"})


async def test_a_log_that_a_killed_daemon_left_behind_is_read_from_the_disk(tmp_path: Path) -> None:
    log = tmp_path / "s-u/0.log"
    log.parent.mkdir()
    header = "==== 2026-01-01T00:00:00+00:00 studies/s/trials/0 attempt {} on slot 0 from the start ====\n"
    log.write_text(header.format(1) + "one\n" + header.format(4) + "four\n")
    reads = LogReads(Store(files={}, failures=0), OrderedDict(), tmp_path)  # type: ignore[arg-type]
    for attempt, words in ((1, "one\n"), (4, "four\n")):
        ask = worker_pb2.ReadLog(study_uid="u")
        ask.lease.lease_id, ask.lease.trial, ask.lease.attempt = f"l{attempt}", "studies/s/trials/0", attempt
        assert (await reads.read(ask, None)).data.decode() == header.format(attempt) + words
    ask.lease.lease_id, ask.lease.attempt = "l2", 2
    assert (await reads.read(ask, None)).trouble == worker_pb2.LOG_TROUBLE_GONE


@pytest.mark.full
async def test_a_log_that_its_trial_made_huge_before_the_daemon_was_killed_is_not_held_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "s-u/0.log"
    log.parent.mkdir()
    header = "==== 2026-01-01T00:00:00+00:00 studies/s/trials/0 attempt {} on slot 0 from the start ====\n"
    log.write_text(header.format(1) + "one\n")
    with log.open("r+b") as file:
        file.truncate(1 << 42)  # no disk is that large: the file is sparse
    reads = LogReads(Store(files={}, failures=0), OrderedDict(), tmp_path)  # type: ignore[arg-type]
    ask = worker_pb2.ReadLog(study_uid="u")
    ask.lease.lease_id, ask.lease.trial, ask.lease.attempt = "l1", "studies/s/trials/0", 1
    monkeypatch.setattr(log_reads, "MOST_SEARCHED_BYTES", 1 << 20)
    assert (await reads.read(ask, None)).data.decode().startswith(header.format(1) + "one\n")


async def test_a_report_does_not_wait_for_readers(
    site: Site, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reads, "BYTES_A_SECOND", 200_000)
    site.start()
    stream = await scheduler.stream()
    body = "print('x' * 400_000, flush=True)\nmark('printed')\n"
    body += "while not Path(os.environ['MARKS'], 'go').exists():\n    time.sleep(0.01)\nreport(1)"
    assign = site.assign(site.program(body), milestone=9)
    stream.send(assign=assign)
    await until((site.marks / "printed").exists)
    for number in range(1, 5):
        stream.send(read_log=worker_pb2.ReadLog(id=number, lease=assign.lease, offset=1000 * number))
    await stream.get("log_chunk")
    (site.marks / "go").touch()
    await stream.get("log_chunk", 4)
    kinds = [message.WhichOneof("message") for message in stream.received]
    kinds = [kind for kind in kinds if kind != "heartbeat"]
    assert kinds.index("report") < len(kinds) - 1 - kinds[::-1].index("log_chunk")


@pytest.mark.full
def test_a_members_log_is_stored_without_what_points_elsewhere(tmp_path: Path) -> None:
    begun = b"mine\nheadrace: prints into bundle-g1.log from byte 3 on\n"
    own = begun + b"headrace: the end of what it printed, 6 bytes:\ntheirs"
    path = tmp_path / "0.log"
    path.write_bytes(own)
    found = path.stat()
    whole = Part(path=path, identity=(found.st_dev, found.st_ino), start=0, end=len(own), bundled=True)
    assert log_reads._shortened(whole) == b"mine\ntheirs"
    path.write_bytes(begun)
    (tmp_path / "bundle-g1.log").write_bytes(b"xxxnews\n")
    reader = log_reads._Bundled(AttemptLog(path, BytesIO(), 0, 0, whole.identity), skip=2)
    assert reader.read(6) + reader.read(100) == b"ne\nnews\n"
    path.write_bytes(own)
    assert reader.read(100) == b""


@pytest.mark.full
def test_what_is_written_while_a_log_is_shortened_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AttemptLog.open(tmp_path / "0.log", "attempt 1")
    log.file.write(b"x" * 2000)
    read = os.pread

    def slow(descriptor: int, count: int, offset: int) -> bytes:
        found = read(descriptor, count, offset)
        if b"last line" not in (tmp_path / "0.log").read_bytes():
            log.file.write(b"the last line\n")
        return found

    monkeypatch.setattr(os, "pread", slow)
    log.shorten(1000)
    log.close()
    assert (tmp_path / "0.log").read_bytes().endswith(b"the last line\n")
