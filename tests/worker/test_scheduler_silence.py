"""A worker leaves a scheduler that falls silent before its leases end."""

import pytest

from headrace.v1 import worker_pb2
from headrace_worker.session_core import Identity, Phase, SessionCore

INTERVAL_MS, TTL_MS = 3_000, 15_000
HEARTBEATS_IN_A_LEASE = TTL_MS // INTERVAL_MS


def opened() -> SessionCore:
    """A core in an open session."""
    core = SessionCore(Identity(worker="w", incarnation="1", devices=(), labels={}, version="", log_dir="/l"))
    core.connect()
    welcome(core)
    return core


def welcome(core: SessionCore) -> None:
    """Open the session."""
    message = worker_pb2.Welcome(protocol=1)
    message.heartbeat_interval.FromMilliseconds(INTERVAL_MS)
    message.lease_ttl.FromMilliseconds(TTL_MS)
    core.receive(worker_pb2.SessionResponse(welcome=message))
    assert core.phase is Phase.OPEN


def answer(core: SessionCore, heartbeat: worker_pb2.Heartbeat) -> None:
    """A scheduler's answer to a heartbeat."""
    core.receive(worker_pb2.SessionResponse(ack=worker_pb2.Ack(heartbeat=heartbeat.sequence)))


@pytest.mark.parametrize("answers", [0, 1])
def test_a_silent_scheduler_is_left_in_time(answers: int) -> None:
    core = opened()
    for _ in range(answers):
        answer(core, core.heartbeat(()))
    ticks = 0
    while not (reason := core.tick()):
        core.heartbeat(())
        ticks += 1
    assert "unanswered" in reason
    assert 2 <= ticks <= HEARTBEATS_IN_A_LEASE // 2, "with half of the lease time left for another one"


def test_one_that_answers_is_not_left() -> None:
    core = opened()
    for _ in range(50):
        answer(core, core.heartbeat(()))
        assert core.tick() == ""


def test_anything_heard_counts() -> None:
    core = opened()
    answer(core, core.heartbeat(()))
    for _ in range(50):
        core.receive(worker_pb2.SessionResponse(ack=worker_pb2.Ack(sequences=[7])))
        assert core.tick() == ""


def test_a_new_session_starts_the_count_again() -> None:
    core = opened()
    answer(core, core.heartbeat(()))
    core.tick()
    core.tick()
    core.disconnect()
    core.connect()
    welcome(core)
    assert [core.tick(), core.tick()] == ["", ""]
    assert "2 heartbeats unanswered" in core.tick()
