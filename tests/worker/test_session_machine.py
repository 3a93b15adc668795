"""The session core and the outbox against a scheduler that loses, doubles, delays and refuses messages, by
Hypothesis.

The machine is the network and the scheduler; the core and the SQLite outbox are the real ones. Streams break at
any point, the daemon is killed and started again, and leases are fenced without its knowledge. A stream must carry
durable messages in order and without gaps. Nothing may leave the outbox unacknowledged, and no lease may start
twice. When the network has calmed down, every report must have been received before its lease's end.
"""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.v1 import event_pb2, worker_pb2
from headrace_worker.effects import (
    Acked,
    Decide,
    Effect,
    Fence,
    Finish,
    Forget,
    Kill,
    Reject,
    Start,
    Welcomed,
)
from headrace_worker.outbox import Outbox
from headrace_worker.session_core import Identity, Phase, SessionCore

CONTINUE = event_pb2.DECISION_ACTION_CONTINUE
STOP = event_pb2.DECISION_ACTION_STOP
IDENTITY = Identity(worker="w", incarnation="1", devices=(), labels={}, version="", log_dir="/")


def _lease(number: int) -> event_pb2.LeaseRef:
    return event_pb2.LeaseRef(lease_id=f"lease-{number}", trial=f"studies/s/trials/{number}", attempt=1)


class SessionMachine(RuleBasedStateMachine):
    """The rules are what a network, a scheduler, trials and a hard kill can do."""

    @initialize()
    def begin(self) -> None:
        # In memory if possible: the test simulates hard kills, not power cuts, so fsync would only be slow.
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.path = Path(self.folder.name) / "outbox.sqlite"
        self.outbox = Outbox(self.path)
        self.core = SessionCore(IDENTITY)
        self.leases = 0
        self.running: set[str] = set()
        self.waiting: dict[int, str] = {}  # sequence in the outbox → the lease whose trial waits
        self.ever_started: list[str] = []
        self.known: set[str] = set()  # started by this incarnation
        self.written: dict[int, str] = {}
        # The scheduler: what it committed, in the order of arrival, and which leases are live.
        self.live: dict[str, event_pb2.LeaseRef] = {}
        self.committed: dict[int, str] = {}
        self.acknowledged: set[int] = set()
        self.refused: set[int] = set()
        self.decisions: dict[int, worker_pb2.LeaseDecision] = {}
        # What the scheduler has sent on this stream and the worker has not read yet.
        self.inbox: list[worker_pb2.SessionResponse] = []
        self.riding: list[int] = []
        self.last_on_stream = 0

    def teardown(self) -> None:
        if hasattr(self, "outbox"):
            try:
                self.calm_down()
            finally:
                self.outbox.close()
                self.folder.cleanup()

    # The worker's shell, like the daemon's.

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start():
                    lease_id = effect.assign.lease.lease_id
                    assert lease_id not in self.ever_started, "a lease runs once"
                    self.outbox.hold(effect.assign.lease)
                    self.ever_started.append(lease_id)
                    self.known.add(lease_id)
                    self.running.add(lease_id)
                case Kill():
                    self.exit(effect.lease_id)
                case Fence():
                    assert effect.lease_id not in self.live
                case Decide():
                    self.waiting.pop(effect.report_sequence, None)
                    if effect.decision.action == STOP:
                        self.exit(effect.lease_id)
                case Forget():
                    assert set(effect.sequences) <= self.acknowledged, (
                        "nothing goes before it is acknowledged"
                    )
                    self.outbox.delete(effect.sequences)
                case Reject():
                    assert effect.sequence in self.refused
                    self.outbox.reject(effect.sequence, effect.reason)
                case Welcomed() | Acked() | Finish():
                    pass

    def exit(self, lease_id: str) -> None:
        if lease_id not in self.running:
            return
        self.running.discard(lease_id)
        self.waiting = {s: lease for s, lease in self.waiting.items() if lease != lease_id}
        ref = _lease(int(lease_id.rpartition("-")[2]))
        exited = worker_pb2.Exited(lease=ref, outcome=worker_pb2.EXIT_OUTCOME_FINISHED)
        sequence = self.outbox.append_exit(lease_id, worker_pb2.SessionRequest(exited=exited))
        self.written[sequence] = lease_id
        self.carry_out(self.core.appended(sequence, ref, exited=True))

    def send(self, limit: int) -> None:
        for entry in self.outbox.after(self.core.sent_through, limit):
            if not self.core.knows(entry.sequence):
                continue
            assert entry.sequence > self.last_on_stream, "in order on one stream"
            self.last_on_stream = entry.sequence
            self.core.sent(entry.sequence)
            self.arrive(entry.sequence, entry.request)

    # The scheduler.

    def arrive(self, sequence: int, request: worker_pb2.SessionRequest) -> None:
        lease_id = self.written[sequence]
        kind = request.WhichOneof("message")
        live = lease_id in self.live
        if sequence not in self.committed:
            later = [s for s, lease in self.committed.items() if lease == lease_id and s > sequence]
            assert not later, "a message comes before the ones after it"
            self.committed[sequence] = kind if live else "stale"
            if live and sequence % 7 == 0:  # it can never be accepted; its lease ends with it
                self.committed[sequence] = "refused"
                del self.live[lease_id]
            if live and kind == "exited":
                self.live.pop(lease_id, None)
        if self.committed[sequence] == "refused":
            self.say(refused=worker_pb2.Refused(sequence=sequence, reason="never"))
        if sequence % 2:
            self.riding.append(sequence)  # attached to the next message
        else:
            self.say(ack=worker_pb2.Ack(sequences=[sequence]))
        if sequence in self.decisions:
            decided = self.decisions[sequence]
            self.say(decision=decided)
        elif kind == "report" and lease_id in self.live:
            action = STOP if sequence % 3 == 0 else CONTINUE
            decision = event_pb2.Decision(action=action, next_milestone=sequence)
            said = worker_pb2.LeaseDecision(
                lease=request.report.lease, report_sequence=sequence, decision=decision
            )
            self.decisions[sequence] = said
            if action == STOP:
                del self.live[lease_id]
            self.say(decision=said)
        elif kind == "report":
            cancel = worker_pb2.Cancel(lease=request.report.lease)
            self.say(cancel=cancel)

    def say(self, **message: Any) -> None:
        """Send a message, with the pending acknowledgements attached."""
        self.inbox.append(worker_pb2.SessionResponse(**message, acknowledged=self.riding))
        self.riding = []

    def read(self, response: worker_pb2.SessionResponse) -> None:
        self.acknowledged.update(response.acknowledged)
        if response.WhichOneof("message") == "refused":
            self.refused.add(response.refused.sequence)
        if response.WhichOneof("message") == "ack":
            self.acknowledged.update(response.ack.sequences)
        self.carry_out(self.core.receive(response))
        if response.WhichOneof("message") == "welcome":
            assert self.running <= {ref.lease_id for ref in response.welcome.held}, "fenced trials are killed"

    # What can happen.

    @precondition(lambda self: self.core.phase is Phase.DISCONNECTED)
    @rule()
    def connect(self) -> None:
        self.inbox, self.riding = [], []
        self.last_on_stream = 0
        hello = self.core.connect()
        named = {ref.lease_id for ref in hello.held}
        assert set(self.live) & set(self.ever_started) <= named, "named until its end is committed"
        held = [ref for ref in hello.held if ref.lease_id in self.live]
        self.say(welcome=worker_pb2.Welcome(protocol=1, held=held))
        for lease_id, ref in self.live.items():
            if lease_id not in named:
                self.say(assign=worker_pb2.Assign(lease=ref))

    @rule(rarely=st.integers(0, 2))
    def break_stream(self, rarely: int) -> None:
        if rarely == 0:
            self.disconnect()

    def disconnect(self) -> None:
        self.core.disconnect()
        self.inbox, self.riding = [], []

    @precondition(lambda self: bool(self.inbox) and self.core.phase is not Phase.DISCONNECTED)
    @rule(count=st.integers(1, 6), twice=st.booleans())
    def deliver(self, count: int, twice: bool) -> None:
        for response in self.inbox[:count]:
            self.inbox.remove(response)
            self.read(response)
            if twice and response.WhichOneof("message") != "welcome":
                self.read(response)

    @precondition(lambda self: self.core.phase is Phase.OPEN)
    @rule(limit=st.integers(1, 5))
    def write(self, limit: int) -> None:
        self.send(limit)

    @precondition(lambda self: self.core.phase is Phase.OPEN and bool(self.ever_started))
    @rule(data=st.data())
    def assign_late_again(self, data: st.DataObject) -> None:
        ref = _lease(int(data.draw(st.sampled_from(self.ever_started)).rpartition("-")[2]))
        # After a hard kill the worker has forgotten leases whose end is acknowledged; the scheduler has not.
        if ref.lease_id in self.known:
            self.say(assign=worker_pb2.Assign(lease=ref))

    @precondition(lambda self: self.core.phase is Phase.OPEN)
    @rule(at_once=st.booleans())
    def assign(self, at_once: bool) -> None:
        self.leases += 1
        ref = _lease(self.leases)
        self.live[ref.lease_id] = ref
        self.say(assign=worker_pb2.Assign(lease=ref))
        while at_once and self.inbox:
            self.read(self.inbox.pop(0))

    @rule(data=st.data())
    def fence(self, data: st.DataObject) -> None:
        """The lease expires in the database. The worker learns of it later, or never."""
        if self.live:
            lease_id = data.draw(st.sampled_from(sorted(self.live)))
            ref = self.live.pop(lease_id)
            if self.core.phase is Phase.OPEN and data.draw(st.booleans()):
                self.inbox.append(worker_pb2.SessionResponse(cancel=worker_pb2.Cancel(lease=ref)))

    @rule(data=st.data(), milestone=st.booleans())
    def report(self, data: st.DataObject, milestone: bool) -> None:
        ready = sorted(self.running - set(self.waiting.values()))
        if ready:
            lease_id = data.draw(st.sampled_from(ready))
            ref = _lease(int(lease_id.rpartition("-")[2]))
            request = worker_pb2.SessionRequest(report=worker_pb2.Report(lease=ref, step=1))
            sequence = self.outbox.append(lease_id, request)
            assert sequence > max(self.written, default=0), "the count never goes back"
            self.written[sequence] = lease_id
            if milestone:
                self.waiting[sequence] = lease_id
            self.carry_out(self.core.appended(sequence, ref, awaits_decision=milestone))

    @rule(data=st.data())
    def program_ends(self, data: st.DataObject) -> None:
        if self.running:
            self.exit(data.draw(st.sampled_from(sorted(self.running))))

    @rule(rarely=st.integers(0, 4))
    def kill_9(self, rarely: int) -> None:
        """The daemon dies and a new one takes over its outbox."""
        if rarely:
            return
        self.outbox.close()
        self.outbox = Outbox(self.path)
        self.running.clear()
        self.waiting.clear()
        self.known.clear()
        self.inbox, self.riding = [], []
        for recorded in self.outbox.leases():
            exited = worker_pb2.Exited(lease=recorded.lease, outcome=worker_pb2.EXIT_OUTCOME_LOST)
            lease_id = recorded.lease.lease_id
            sequence = self.outbox.append_exit(lease_id, worker_pb2.SessionRequest(exited=exited))
            self.written[sequence] = lease_id
        self.core = SessionCore(IDENTITY)
        for entry in self.outbox.after(0, 10_000):
            request = entry.request
            exited_now = request.WhichOneof("message") == "exited"
            ref = request.exited.lease if exited_now else request.report.lease
            self.core.appended(entry.sequence, ref, exited=exited_now)

    @rule()
    def tick(self) -> None:
        if self.core.tick():
            self.disconnect()

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "outbox"):
            kept = {entry.sequence for entry in self.outbox.after(0, 10_000)}
            rejected = {int(path.stem) for path in (self.path.parent / "rejected").glob("*.txt")}
            assert set(self.written) - self.acknowledged <= kept | rejected
            assert rejected <= self.refused

    def calm_down(self) -> None:
        """Let the network recover and every trial end."""
        for _ in range(4):
            self.disconnect()
            self.connect()
            while self.inbox or self.riding:
                if not self.inbox:
                    self.say(ack=worker_pb2.Ack(heartbeat=1))  # takes the rest along
                self.read(self.inbox.pop(0))
                if self.core.phase is Phase.OPEN:
                    self.send(1000)
            for lease_id in sorted(self.running):
                if lease_id not in self.waiting.values():
                    self.exit(lease_id)
        assert not self.running
        assert not self.waiting
        assert set(self.committed) == set(self.written)
        assert self.outbox.after(0, 10) == []
        assert self.core.unacknowledged == 0


SessionMachine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=70,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestSession = SessionMachine.TestCase
