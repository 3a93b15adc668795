"""Messages of many senders are written together: one wait for the disk, and an error affects only its own message."""

import asyncio
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from headrace.durable import rename
from headrace.v1 import event_pb2, worker_pb2
from headrace_worker.courier import Courier
from headrace_worker.outbox import DurableOutbox, Outbox
from headrace_worker.session_core import Identity, SessionCore


def report(step: int) -> worker_pb2.SessionRequest:
    lease = event_pb2.LeaseRef(lease_id=f"a.{step}.1", trial=f"studies/a/trials/{step}", attempt=1)
    return worker_pb2.SessionRequest(report=worker_pb2.Report(lease=lease, step=step))


async def test_messages_that_come_together_wait_for_the_disk_once(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.sqlite")
    statements: list[str] = []
    outbox._db.set_trace_callback(statements.append)
    durable = DurableOutbox(outbox)
    held = threading.Event()
    durable._thread.submit(held.wait)  # the disk is busy
    sent = [asyncio.create_task(durable.append(f"a.{step}.1", report(step))) for step in range(32)]
    await asyncio.sleep(0)
    held.set()
    sequences = await asyncio.gather(*sent)
    assert sequences == sorted(set(sequences)), "in the order of the calls"
    assert statements.count("COMMIT") == 1
    assert [entry.request.report.step for entry in await durable.after(0, 100)] == list(range(32))
    durable.close()


async def test_a_call_that_fails_among_others_fails_alone(tmp_path: Path) -> None:
    durable = DurableOutbox(Outbox(tmp_path / "outbox.sqlite"))
    held = threading.Event()
    durable._thread.submit(held.wait)

    def fails() -> None:
        raise sqlite3.IntegrityError("no")

    sound = [asyncio.create_task(durable.append(f"a.{step}.1", report(step))) for step in range(3)]
    await asyncio.sleep(0)
    failing = asyncio.create_task(durable._durably(fails))
    await asyncio.sleep(0)
    held.set()
    assert len(set(await asyncio.gather(*sound))) == 3
    with pytest.raises(sqlite3.IntegrityError):
        await failing
    assert len(await durable.after(0, 100)) == 3, "none is written twice"
    durable.close()


class BusyOutbox(Outbox):
    """An outbox that holds its first message until a test releases it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.begun, self.held = threading.Event(), threading.Event()

    def append(self, lease_id: str, request: worker_pb2.SessionRequest, *, upload: str = "") -> int:
        self.begun.set()
        self.held.wait()
        return super().append(lease_id, request, upload=upload)


async def test_a_report_whose_trial_ends_while_it_is_written_is_sent_anyway(tmp_path: Path) -> None:
    """The same applies to what was written after it."""
    outbox = BusyOutbox(tmp_path / "outbox.sqlite")
    durable = DurableOutbox(outbox)
    identity = Identity(worker="w", incarnation="i", devices=(), labels={}, version="", log_dir="/l")
    courier = Courier(durable, SessionCore(identity))
    given_up = asyncio.create_task(courier.post(report(1).report.lease, report(1)))
    await asyncio.to_thread(outbox.begun.wait)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    outbox.held.set()
    await courier.post(report(2).report.lease, report(2))
    ready, _ = await courier.unsent(10)
    assert [entry.request.report.step for entry in ready] == [1, 2]
    durable.close()


async def test_a_deleted_file_is_written_again_while_messages_wait(tmp_path: Path) -> None:
    path = tmp_path / "outbox.sqlite"
    durable = DurableOutbox(Outbox(path))
    await durable.append("a.1.1", report(1))
    held = threading.Event()
    durable._thread.submit(held.wait)
    path.unlink()
    sent = [asyncio.create_task(durable.append("a.1.1", report(step))) for step in (2, 3)]
    again = asyncio.create_task(durable.write_again())
    await asyncio.sleep(0)
    held.set()
    async with asyncio.timeout(60):
        await asyncio.gather(again, *sent)
    assert durable.is_there
    durable.close()
    kept = Outbox(path)
    assert sorted(entry.request.report.step for entry in kept.after(0, 10)) == [1, 2, 3]
    kept.close()


@pytest.mark.parametrize("meanwhile", ["deleted", "replaced"])
async def test_a_file_that_is_deleted_while_it_is_written_again_loses_nothing(
    meanwhile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "home" / "outbox.sqlite"
    outbox = Outbox(path)
    outbox.append("a.1.1", report(1))
    shutil.rmtree(path.parent)

    def rename_and_delete(source: Path, target: Path) -> None:
        rename(source, target)
        shutil.rmtree(path.parent)
        if meanwhile == "replaced":
            path.parent.mkdir()
            path.touch()

    with monkeypatch.context() as patched:
        patched.setattr("headrace_worker.outbox.rename", rename_and_delete)
        with pytest.raises((OSError, sqlite3.OperationalError)):
            outbox.write_again()
    assert not outbox.is_there
    outbox.write_again()
    assert [entry.request.report.step for entry in outbox.after(0, 10)] == [1]
    outbox.close()
