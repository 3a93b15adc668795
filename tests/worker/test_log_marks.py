"""When a log was written: the marks beside it, whatever the trial does to them, and reading from a given time on."""

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripted_scheduler import ScriptedScheduler, Stream, until
from test_worker_logs import PLACE, Store, attempt_of, has, kept, store_of
from worker_site import Site

from headrace import log_times
from headrace.bundle_logs import aboard
from headrace.checkpoints.small import log_name, times_name
from headrace.log_times import Mark
from headrace.v1 import worker_pb2
from headrace_worker import log_reads, logs
from headrace_worker.log_reads import LogReads, Part
from headrace_worker.logs import AttemptLog

HEADER = b"==== attempt 1 ====\n"


class Clock:
    """The worker's clock, in seconds since 1970, and the logs written by it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.logs: list[AttemptLog] = []
        monkeypatch.setattr(time, "time_ns", lambda: int(self.now_s * 10**9))
        monkeypatch.setattr(time, "time", lambda: self.now_s)

    def log(self, path: Path, header: str = "attempt 1") -> AttemptLog:
        self.logs.append(AttemptLog.open(path, header))
        return self.logs[-1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock(monkeypatch)
    yield made
    for log in made.logs:
        log.file.close()


def since(path: Path, when_s: float) -> bytes | None:
    """The part of a log since a time; None if it is not known."""
    place = log_times.place_of(log_times.read(path), int(when_s * 1000))
    return None if place is None else path.read_bytes()[place:]


def grown(path: Path, clock: Clock, seconds: int, *, max_bytes: int = logs.MAX_BYTES) -> AttemptLog:
    """A log with one line per second, which contains the time of writing, and two checks per second."""
    log = clock.log(path)
    for _ in range(seconds):
        log.file.write(f"{int(clock.now_s)}\n".encode())
        for _ in range(2):
            clock.now_s += 0.5
            log.shorten(max_bytes)
    return log


def test_nothing_later_is_left_out_and_little_earlier_is_shown(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "0.log"
    log = grown(path, clock, 3600)
    for age in (0, 1, 4, 30, 60, 600, 3000, 3599):
        when = int(clock.now_s) - age
        shown = [int(line) for line in (since(path, when) or b"").removeprefix(HEADER).split()]
        assert set(range(when, int(clock.now_s))) <= set(shown)
        assert min(shown, default=when) >= when - 6 - age / 10, age
    assert since(path, 0) == path.read_bytes()
    assert log_times.path_of(path).stat().st_size <= log_times.MOST_BYTES == 4096
    log.close()
    assert since(path, clock.now_s) == b""


def test_what_was_printed_before_a_long_silence_is_left_out(tmp_path: Path, clock: Clock) -> None:
    log = grown(tmp_path / "0.log", clock, 10)
    clock.now_s += 7200
    log.file.write(b"after it\n")
    log.shorten()
    assert since(log.path, clock.now_s - 3600) == b"after it\n"


def test_a_line_that_is_not_complete_is_shown_from_its_start(tmp_path: Path, clock: Clock) -> None:
    log = clock.log(tmp_path / "0.log")
    for text in (b"10%\r20%", b" done\nepoch", b" 2", b" ends\n"):
        log.file.write(text)
        clock.now_s += 10
        log.shorten()
        clock.now_s += 10
    assert since(log.path, 1015) == b"20% done\nepoch 2 ends\n"
    assert since(log.path, 1055) == b"epoch 2 ends\n"
    assert since(log.path, 1075) == b""
    log.file.write(b"x" * 10_000)
    log.shorten()
    assert since(log.path, clock.now_s) == b""


def test_the_attempts_of_a_file_share_its_marks(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "0.log"
    grown(path, clock, 20).close()
    first, when = path.stat().st_size, clock.now_s
    clock.now_s += 100
    grown(path, clock, 20).close()
    assert since(path, when) == path.read_bytes()[first:]
    marks = log_times.within_part(log_times.read(path), first, path.stat().st_size)
    assert marks[0].offset == 0
    assert log_times.place_of(marks, int(when * 1000)) == 0


def test_a_log_that_is_shortened_keeps_the_marks_of_what_is_left(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "0.log"
    grown(path, clock, 2000, max_bytes=4000)
    text = path.read_bytes()
    assert b"bytes left out" in text
    for age in (10, 60, 100):
        when = int(clock.now_s) - age
        shown = since(path, when) or b""
        assert {str(second).encode() for second in range(when, int(clock.now_s))} <= set(shown.split())
        assert len(shown.split()) <= age + 12
    kept = (since(path, 1500) or b"").partition(b"\n\n====")[0]
    assert 0 < len(kept.split()) < 6
    assert since(path, 0) == text


@pytest.mark.parametrize("killed_at", ["ftruncate", "write"])
def test_a_daemon_that_is_killed_while_it_shortens_leaves_no_wrong_mark(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    log = grown(tmp_path / "0.log", clock, 1000)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, killed_at, killed)
    with pytest.raises(KeyboardInterrupt):
        log.shorten(4000)
    monkeypatch.undo()
    assert log_times.read(log.path)
    assert all(mark.offset <= 1000 for mark in log_times.read(log.path))


def test_marks_that_cannot_be_written_are_none_and_the_log_is_shortened(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = grown(tmp_path / "0.log", clock, 1000)

    def full(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log_times, "pack", full)
    log.shorten(4000)
    assert b"bytes left out" in log.path.read_bytes()
    assert not log_times.path_of(log.path).exists()
    assert since(log.path, clock.now_s) is None


def test_a_clock_that_is_put_back_leaves_nothing_out(tmp_path: Path, clock: Clock) -> None:
    log = grown(tmp_path / "0.log", clock, 100)
    clock.now_s -= 50
    again = clock.now_s
    log.file.write(b"after it\n")
    for _ in range(20):
        clock.now_s += 0.5
        log.shorten()
    assert b"after it\n" in (since(log.path, again) or b"")
    for second in range(int(again) + 8, int(again) + 50):  # by the clock of that moment
        assert str(second).encode() in (since(log.path, again + 8) or b"")


def test_what_a_trial_puts_in_the_place_of_the_marks_is_not_trusted(tmp_path: Path, clock: Clock) -> None:
    log = grown(tmp_path / "0.log", clock, 20)
    marks, other = log_times.path_of(log.path), tmp_path / "other"
    good = marks.read_bytes()
    for bad in (
        b"",
        b"torn",
        log_times.pack([Mark(0, 0), Mark(1, 1 << 40)]),
        log_times.pack([Mark(0, -5)]),
        log_times.pack([Mark(0, 50), Mark(1, 20)]),
    ):
        marks.write_bytes(bad)
        assert since(log.path, 1010) is None
    marks.write_bytes(good + b"torn")
    assert since(log.path, 1010)
    for put in (lambda: marks.symlink_to(other), lambda: os.mkfifo(marks), marks.mkdir):
        marks.unlink(missing_ok=True)
        other.write_bytes(good)
        put()
        with suppress(OSError):  # a pipe with a reader
            writer = os.open(marks, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            os.write(writer, good)
            assert log_times.read(log.path) == []
            os.close(writer)
        assert log_times.read(log.path) == []
        clock.now_s += 10
        log.file.write(b"more\n")
        log.shorten()
        assert other.read_bytes() == good
    marks.rmdir()
    fresh = tmp_path / "0.log.times.new"
    fresh.unlink()
    fresh.symlink_to(other)
    clock.now_s += 10
    log.file.write(b"more\n")
    log.shorten()
    assert other.read_bytes() == good
    assert log_times.read(log.path) == log.marks


def test_a_log_that_its_trial_cut_is_shown_whole(tmp_path: Path, clock: Clock) -> None:
    log = grown(tmp_path / "0.log", clock, 100)
    os.truncate(log.path, 10)
    assert since(log.path, clock.now_s) is None
    log.file.write(b"after it\n")
    log.shorten()
    assert since(log.path, clock.now_s - 1) is None
    assert since(log.path, clock.now_s) == b""


def asked(attempt: int, within_s: float) -> worker_pb2.ReadLog:
    ask = worker_pb2.ReadLog(study_uid="u")
    ask.lease.lease_id, ask.lease.trial, ask.lease.attempt = f"l{attempt}", "studies/s/trials/0", attempt
    ask.within.FromMilliseconds(int(within_s * 1000))
    return ask


def timed_part(tmp_path: Path, clock: Clock) -> Part:
    log = grown(tmp_path / "s-u/0.log", clock, 100)
    log.close()
    size = log.path.stat().st_size
    marks = tuple(log_times.within_part(log.marks, 0, size))
    return Part(path=log.path, identity=log.identity, start=0, end=size, bundled=False, marks=marks)


async def test_an_attempt_that_is_over_is_read_since_a_time_from_the_store_and_from_the_disk(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reads, "STORED_BYTES", 400)
    part, store = timed_part(tmp_path, clock), Store(files={}, failures=0)
    place = "studies/s-u/trials/0"
    stored = log_reads._shortened(part)
    store.files[place, log_name(1)] = stored
    marks = log_reads._marks_of(part, len(stored))
    store.files[place, times_name(1)] = log_times.pack(marks)
    reads = LogReads(store, OrderedDict(), tmp_path)  # type: ignore[arg-type]  # a store's methods that are needed
    chunk = await reads.read(asked(1, 20), None)
    lines = chunk.data.split()
    assert chunk.timed
    assert chunk.next_offset == len(stored)
    assert 20 <= len(lines) <= 26
    assert lines[-20:] == [str(second).encode() for second in range(1080, 1100)]
    older = await reads.read(asked(1, 70), None)  # in the omitted middle
    assert older.timed
    assert older.data == stored[200 - 200 % 5 :] or older.data in stored
    del store.files[place, times_name(1)]
    unknown = await reads.read(asked(1, 20), None)
    assert (unknown.data, unknown.timed) == (stored, False)
    pending = LogReads(store, OrderedDict(l1=part), tmp_path)  # type: ignore[arg-type]  # as above
    assert (await pending.read(asked(1, 20), None)).data.split() == lines


async def test_a_member_of_a_bundle_is_read_since_a_time_while_it_runs(tmp_path: Path, clock: Clock) -> None:
    bundle, own = clock.log(tmp_path / "bundle-g1.log", "bundle g1"), clock.log(tmp_path / "0.log")
    own.add(aboard(bundle.path.name, bundle.path.stat().st_size))
    for log, word in ((bundle, "early\n"), (bundle, "late\n")):
        clock.now_s += 100
        log.add(word)
        for one in (own, bundle):
            one.shorten()
    reads = LogReads(Store(files={}, failures=0), OrderedDict(), tmp_path)  # type: ignore[arg-type]  # as above
    member: Any = SimpleNamespace(log=own, in_bundle=True)
    first = await reads.read(asked(1, 0), member)
    assert (first.data, first.timed) == (b"", True)
    late = await reads.read(asked(1, 50), member)
    assert (late.data, late.timed, late.live) == (b"late\n", True, True)
    plain = worker_pb2.ReadLog(lease=asked(1, 0).lease, study_uid="u")
    assert (await reads.read(plain, member)).data == HEADER + b"early\nlate\n"
    bundle.add("news\n")
    plain.offset = late.next_offset
    assert (await reads.read(plain, member)).data == b"news\n"


async def test_an_attempt_that_a_killed_daemon_left_behind_is_read_since_a_time(
    tmp_path: Path, clock: Clock
) -> None:
    header = "2026-01-01T00:00:00+00:00 studies/s/trials/0 attempt {} on slot 0 from the start"
    path = tmp_path / "s-u/0.log"
    for attempt in (1, 2):
        log = clock.log(path, header.format(attempt))
        for word in (b"early\n", b"late\n"):
            clock.now_s += 100
            log.file.write(word)
            log.shorten()
    reads = LogReads(Store(files={}, failures=0), OrderedDict(), tmp_path)  # type: ignore[arg-type]  # as above
    for attempt, within in ((1, 250), (2, 50)):
        chunk = await reads.read(asked(attempt, within), None)
        assert (chunk.data, chunk.timed) == (b"late\n", True)
    assert (await reads.read(asked(2, 1000), None)).data.startswith(b"==== ")


async def test_the_marks_go_to_the_store_with_the_log_and_leave_with_it(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reads, "LOGS_KEPT", 1)
    store: Any = Store(files={}, failures=0)
    for attempt in (1, 2):
        assign, written = attempt_of(tmp_path / str(attempt), attempt, b"")
        written = grown(written.path, clock, 30)
        written.close()
        async with asyncio.TaskGroup() as tasks:
            log_reads.LogKeeper(store, tasks).keep(assign, written)
    assert {name for _, name in store.files} == {log_name(2), times_name(2)}
    await kept(tmp_path / "short", store, {3: b"nothing within\n"})
    assert {name for _, name in store.files} == {log_name(3)}


async def part_within(stream: Stream, assign: worker_pb2.Assign, within_s: float) -> worker_pb2.LogChunk:
    number = len(stream.all("log_chunk")) + 1
    ask = worker_pb2.ReadLog(id=number, lease=assign.lease, study_uid=assign.study_uid)
    ask.within.FromMilliseconds(int(within_s * 1000))
    stream.send(read_log=ask)
    return await stream.get("log_chunk", number)


async def test_a_running_trial_is_read_since_a_time(
    site: Site, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MARK_EVERY_MS", 100)
    site.start()
    stream = await scheduler.stream()
    body = """
        print("early", flush=True)
        for word in ("late", "end"):
            while not Path(os.environ["MARKS"], word).exists():
                time.sleep(0.01)
            print(word, flush=True)
        """
    assign = site.assign(site.program(body))
    path = site.settings.log_dir / "s/0.log"
    stream.send(assign=assign)
    whole = await has(stream, assign, b"early\n")

    def marked() -> bool:
        return path.stat().st_size == max((mark.offset for mark in log_times.read(path)), default=0)

    await until(marked, "a mark behind the first word")
    began = time.time()
    chunk = await part_within(stream, assign, 0)
    assert (chunk.data, chunk.timed, chunk.live) == (b"", True, True)
    assert chunk.next_offset == whole.next_offset
    (site.marks / "late").touch()
    await until(lambda: b"late\n" in path.read_bytes())
    assert (await part_within(stream, assign, time.time() - began)).data == b"late\n"
    assert (await part_within(stream, assign, 3600)).data == whole.data + b"late\n"
    await until(marked, "a mark behind the second word")
    (site.marks / "end").touch()
    await stream.get("exited")
    store = store_of(site)
    await until(lambda: store.read_file(PLACE, times_name(1), 0, 9) is not None, "the marks in the store")
    path.unlink()
    chunk = await part_within(stream, assign, time.time() - began)
    assert (chunk.data, chunk.timed, chunk.live) == (b"late\nend\n", True, False)
