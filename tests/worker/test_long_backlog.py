"""A worker that returns after a long outage: an answer costs the same, however many messages are not settled yet."""

import time
from itertools import count

import pytest

from headrace.v1 import event_pb2, worker_pb2
from headrace_worker.retention import PruneOrder, Retention
from headrace_worker.session_core import Identity, SessionCore

LEASES = 16
ANSWERS = 400
CONTINUE = event_pb2.Decision(action=event_pb2.DECISION_ACTION_CONTINUE)


def _answer_s(backlog: int) -> float:
    """The time in seconds for one answer with that many waiting reports, each with a checkpoint; the best of five."""
    core = SessionCore(Identity(worker="w", incarnation="1", devices=(), labels={}, version="", log_dir="/l"))
    retention = Retention()
    leases = [
        event_pb2.LeaseRef(lease_id=f"lease-{n}", trial=f"studies/s/trials/{n}", attempt=1)
        for n in range(LEASES)
    ]
    core.connect()
    core.receive(worker_pb2.SessionResponse(welcome=worker_pb2.Welcome(protocol=1)))
    for n, lease in enumerate(leases):
        assign = worker_pb2.Assign(lease=lease, grant=worker_pb2.Grant(slots=[n]))
        core.receive(worker_pb2.SessionResponse(assign=assign))
    for sequence in range(backlog):
        lease = leases[sequence % LEASES]
        core.appended(sequence, lease, awaits_decision=True)
        order = PruneOrder(trial=lease.trial, name=f"{sequence:012d}", keep=1)
        retention.saved(lease.lease_id, sequence, order)
    took, sequences = [], count()
    for _ in range(5):
        began = time.perf_counter()
        for sequence in (next(sequences) for _ in range(ANSWERS)):
            lease = leases[sequence % LEASES]
            said = worker_pb2.LeaseDecision(lease=lease, report_sequence=sequence, decision=CONTINUE)
            core.receive(worker_pb2.SessionResponse(decision=said, acknowledged=[sequence]))
            retention.acked([sequence])
            order = retention.decided(lease.lease_id, sequence)
            assert order is not None
            assert order.name == f"{sequence:012d}"
        took.append(time.perf_counter() - began)
        retention.tick()
    return min(took) / ANSWERS


@pytest.mark.full
def test_an_answer_costs_no_more_with_a_longer_backlog() -> None:
    _answer_s(2_000)  # warm-up
    short, long = _answer_s(2_500), _answer_s(50_000)
    assert long < 5 * short, f"{long * 1e6:.0f} µs at 50,000 reports, {short * 1e6:.0f} µs at 2,500"
