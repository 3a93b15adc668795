"""Refused messages: kept with their reason, named in the heartbeats, and never sent again."""

import time
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from scripted_scheduler import ScriptedScheduler, until
from worker_site import Site

from headrace.v1 import event_pb2, worker_pb2
from headrace_worker.effects import Reject
from headrace_worker.outbox import Outbox
from headrace_worker.rejected import MAX_FILES, RejectedMessages
from headrace_worker.session import MAX_MESSAGE_BYTES
from headrace_worker.session_core import Identity, SessionCore

RELEASED = worker_pb2.EXIT_OUTCOME_RELEASED
IDENTITY = Identity(worker="w", incarnation="1", devices=(), labels={}, version="", log_dir="/")
LEASE = event_pb2.LeaseRef(lease_id="lease-1", trial="studies/s/trials/1", attempt=1)


def _report(**fields: object) -> worker_pb2.SessionRequest:
    return worker_pb2.SessionRequest(report=worker_pb2.Report(lease=LEASE, step=1, **fields))


async def test_a_refused_report_is_kept_apart_and_its_trial_does_not_wait_forever(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    scheduler.acks = False
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program("report(1)"), milestone=1))
    stream.send(assign=site.assign(site.program("report(1); mark('done')"), slots=(1,), number=1))
    refused = await stream.get("report", 2)
    waits = next(r for r in stream.all("report") if r.lease.trial.endswith("/0"))
    other = next(r for r in stream.all("report") if r is not waits)
    stream.send(refused=worker_pb2.Refused(sequence=waits.sequence, reason="train_time: is out\nof bounds"))
    stream.send(ack=worker_pb2.Ack(sequences=[waits.sequence, other.sequence]))
    assert refused
    await stream.get("exited", 2)
    ended = {e.lease.trial: e.outcome for e in stream.all("exited")}
    assert ended["studies/s/trials/0"] == RELEASED
    rejected = site.root / "home/rejected"
    kept = (rejected / f"{waits.sequence:012d}.txt").read_text()
    assert kept.startswith("# train_time: is out of bounds\n")
    assert "studies/s/trials/0" in kept

    def named() -> bool:
        return any("1 message in" in beat.rejected for beat in stream.all("heartbeat"))

    await until(named, "the heartbeat names the folder")
    stream.close()
    again = await scheduler.stream(2)
    await again.get("exited", 2)
    assert not again.all("report"), "what was refused is not sent again, nor what was acknowledged"
    for path in rejected.iterdir():
        path.unlink()
    await until(lambda: not again.all("heartbeat")[-1].rejected, "an empty folder is not named")


async def test_a_message_too_large_for_the_stream_is_found_before_it_is_sent(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    """An earlier version of the worker let such a report into the outbox."""
    site.settings.home.mkdir(parents=True)
    outbox = Outbox(site.settings.outbox_path)
    huge = {f"{n:0200d}": 1.0 for n in range(25_000)}
    outbox.append("lease-1", _report(metrics=huge))
    outbox.append("lease-1", _report(metrics={"loss": 0.5}))
    outbox.close()
    site.start()
    stream = await scheduler.stream()
    report = await stream.get("report")
    assert dict(report.metrics) == {"loss": 0.5}
    await until(lambda: list((site.root / "home/rejected").glob("*.txt")), "it is rejected")
    assert (
        str(MAX_MESSAGE_BYTES) in (site.root / "home/rejected/000000000001.txt").read_text().splitlines()[0]
    )


async def test_a_message_that_cannot_be_read_stops_nobody(site: Site, scheduler: ScriptedScheduler) -> None:
    site.settings.home.mkdir(parents=True)
    outbox = Outbox(site.settings.outbox_path)
    outbox.append("lease-1", _report(train_time=Duration(seconds=1)))
    outbox.append("lease-1", _report(train_time=Duration(seconds=2)))
    outbox._db.execute("UPDATE messages SET body = x'ffffff' WHERE sequence = 1")
    outbox.close()
    site.start()
    stream = await scheduler.stream()
    assert (await stream.get("report")).train_time.seconds == 2
    assert (site.root / "home/rejected/000000000001.txt").exists()


def test_a_refusal_that_comes_twice_or_for_nothing_known_changes_nothing() -> None:
    core = SessionCore(IDENTITY)
    core.appended(1, LEASE)
    core.connect()
    core.receive(worker_pb2.SessionResponse(welcome=worker_pb2.Welcome(protocol=1)))
    refused = worker_pb2.SessionResponse(refused=worker_pb2.Refused(sequence=1, reason="no"))
    assert core.receive(refused) == [Reject(sequence=1, reason="no")]
    assert core.receive(refused) == []
    assert core.receive(worker_pb2.SessionResponse(ack=worker_pb2.Ack(sequences=[1]))) == []
    assert core.unacknowledged == 0


def test_the_folder_is_bounded(tmp_path: Path) -> None:
    rejected = RejectedMessages(tmp_path / "rejected")
    assert rejected.summary() == ""
    for sequence in range(1, MAX_FILES + 11):
        rejected.keep(sequence, _report().SerializeToString(), f"reason {sequence}")
    rejected.keep(MAX_FILES + 10, b"\xff", "reason")
    names = sorted(path.name for path in (tmp_path / "rejected").iterdir())
    assert len(names) == MAX_FILES
    assert names[-1] == f"{MAX_FILES + 10:012d}.txt"
    assert rejected.summary() == f"{MAX_FILES} messages in {tmp_path / 'rejected'}; the last one: reason"


def _drained_s(messages: int) -> float:
    """The time in seconds that the core takes to process that many acknowledgements, one by one."""
    core = SessionCore(IDENTITY)
    for sequence in range(1, messages + 1):
        core.appended(sequence, LEASE)
    core.connect()
    core.receive(worker_pb2.SessionResponse(welcome=worker_pb2.Welcome(protocol=1)))
    acks = [worker_pb2.SessionResponse(ack=worker_pb2.Ack(sequences=[n])) for n in range(1, messages + 1)]
    began = time.perf_counter()
    for ack in acks:
        core.receive(ack)
    took_s = time.perf_counter() - began
    assert core.unacknowledged == 0
    return took_s


@pytest.mark.full
def test_an_acknowledgement_costs_the_same_however_many_messages_wait() -> None:
    small = min(_drained_s(1000) for _ in range(5)) / 1000
    large = min(_drained_s(16_000) for _ in range(3)) / 16_000
    print(f"{1e6 * small:.1f} µs of 1,000, {1e6 * large:.1f} µs of 16,000")
    assert large < 8 * small, "16 times as many would take 16 times as long each if all were looked at"
