"""The proof that a lease was issued outlasts the daemon: its successor names the lease with it."""

from pathlib import Path

from headrace.v1 import event_pb2, worker_pb2
from headrace_worker.courier import Courier
from headrace_worker.home import bury_predecessor, recall
from headrace_worker.outbox import DurableOutbox, Outbox
from headrace_worker.session_core import Identity, SessionCore

LEASE = event_pb2.LeaseRef(lease_id="u.0.1", trial="studies/s/trials/0", attempt=1, proof="ab" * 16)


def core() -> SessionCore:
    return SessionCore(Identity(worker="w", incarnation="i", devices=(), labels={}, version="", log_dir="/"))


def test_a_worker_names_what_it_holds_with_its_proof() -> None:
    one = core()
    one.connect()
    one.receive(worker_pb2.SessionResponse(welcome=worker_pb2.Welcome(protocol=1)))
    one.receive(worker_pb2.SessionResponse(assign=worker_pb2.Assign(lease=LEASE)))
    one.disconnect()
    assert list(one.connect().held) == [LEASE]


async def test_so_does_its_successor_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "outbox.sqlite"
    killed = Outbox(path)
    killed.hold(LEASE)
    killed.close()
    outbox = Outbox(path)
    recorded, durable, successor = outbox.leases(), DurableOutbox(outbox), core()
    successor.inherit([one.lease for one in recorded])
    await recall(successor, durable)
    assert list(successor.connect().held) == [LEASE], "before a scheduler has taken it"
    await bury_predecessor(Courier(durable, successor), tmp_path, recorded, copied=False)
    successor.disconnect()
    assert list(successor.connect().held) == [LEASE], "until the scheduler has read its end"
    successor = core()
    await recall(successor, durable)
    assert list(successor.connect().held) == [LEASE]
    durable.close()
