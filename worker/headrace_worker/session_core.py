"""The worker's half of the session protocol, without a clock, a socket or a disk.

Who is authoritative: the scheduler's database, for every lease. The worker believes what it was told last, and
lists at each connection the leases that it holds. The scheduler answers which of them are still the worker's.

States of the connection: `DISCONNECTED → GREETING` (Hello sent) `→ OPEN` (Welcome received) `→ DRAINING` (Drain
received), and from anywhere back to `DISCONNECTED`.

States of a lease here: accepted (`held`) → told to end (`releasing`) → ended. A lease is held from its Assign
until its `Exited` is in the outbox. It is listed to the scheduler until that `Exited` is acknowledged: otherwise
the scheduler would fence it at a reconnect before it has read the reports that precede the `Exited`.

When a message is lost, or arrives twice:
- A durable message is sent again, in order, after every Welcome until it is acknowledged. A report whose trial
  waits for a decision stays in the outbox until the decision arrives, so that a lost decision is requested again.
- A second Assign of a lease that is held or has ended changes nothing; nor does a second Cancel or Decision.
- A message that the scheduler rejects is kept in a folder and never sent again, and the process of its lease is ended:
  it will get no answer.
- If the two sides can only have missed a message (two running leases on one slot, a report that was acknowledged
  but never decided), `tick` asks for a reconnect after a few heartbeats, and Welcome settles it.
- A scheduler answers every heartbeat. One that is silent is gone, even if the connection does not show it (a
  half-open one, a frozen process). `tick` asks for another session within half a lease time, so that the leases do
  not expire.

Calls take events and return effects, in the order in which they must be carried out.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from headrace.errors import LEASE_GONE
from headrace.grants import WHOLE
from headrace.protocol import SPOKEN, Spoken, why_not
from headrace.v1 import event_pb2, worker_pb2
from headrace_worker.effects import (
    Acked,
    Decide,
    Effect,
    Fence,
    Finish,
    Forget,
    Forgive,
    Kill,
    Leave,
    ReadLog,
    Reject,
    Start,
    Welcomed,
    Withdrawn,
)
from headrace_worker.unsettled import Kept, Message, Unsettled

_REMEMBERED = 4096
_PATIENCE_TICKS = 3
_SILENCE = 0.4
"""The fraction of a lease time for which a scheduler may be silent."""


class SessionProtocolError(Exception):
    """The scheduler sent something that the protocol does not allow here."""


class Phase(Enum):
    """The state of the connection."""

    DISCONNECTED = auto()
    GREETING = auto()
    OPEN = auto()
    DRAINING = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a worker says about itself."""

    worker: str
    incarnation: str
    devices: tuple[worker_pb2.Device, ...]
    labels: Mapping[str, str]
    version: str
    log_dir: str
    cpus: int = 0
    host: str = ""
    home: str = ""
    home_lock: str = ""
    speaks: Spoken = SPOKEN


@dataclass(slots=True)
class _Held:
    ref: event_pb2.LeaseRef
    slots: frozenset[int]
    milli: int = WHOLE
    # The leases of one bundle occupy its slots once; for a single lease, this is its own id.
    grant: str = ""
    releasing: bool = False
    conflict_ticks: int = 0


class SessionCore:
    """The worker's knowledge, and what follows from what it hears."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self.phase = Phase.DISCONNECTED
        self.sent_through = 0
        self.appended_through = 0
        self._held: dict[str, _Held] = {}
        self._messages = Unsettled()
        # Leases whose Exited waits for its acknowledgement, and those that ended recently.
        self._leaving: dict[str, event_pb2.LeaseRef] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._heartbeats = 0
        self.leaving_for_good = False
        """Whether the next session is the last one, which offers no slots."""
        self._patience_ticks = _PATIENCE_TICKS
        self._silent_ticks = 0
        self._silence_ticks = 0
        self.defects: Mapping[int, str] = {}
        # Slots in the bubbles of large jobs; for now, the devices that such jobs own are not ordinary slots.
        self.ephemeral: tuple[worker_pb2.Device, ...] = ()
        self.owned: frozenset[str] = frozenset()
        # Why the daemon leaves.
        self.leaving = ""
        self._withdrawn = False
        # The worker's store, as it is now.
        self.store: worker_pb2.Store | None = None

    # What the daemon reports.

    def appended(
        self,
        sequence: int,
        lease: event_pb2.LeaseRef,
        *,
        exited: bool = False,
        awaits_decision: bool = False,
        size_bytes: int = 0,
    ) -> list[Effect]:
        """A durable message is in the outbox; an `Exited` ends its lease."""
        # A report that reached the disk after its lease's end is only history.
        awaits_decision = awaits_decision and lease.lease_id in self._held
        self.appended_through = max(self.appended_through, sequence)
        self._messages.add(sequence, Message(lease.lease_id, exited, awaits_decision, size_bytes))
        if not exited:
            return []
        self._leaving[lease.lease_id] = lease
        return self._end(lease.lease_id)

    def inherit(self, leases: Iterable[event_pb2.LeaseRef]) -> None:
        """An earlier daemon held these leases, and their ends will be appended. Until the scheduler has read
        those, it must not end the leases by itself: reports may precede them."""
        self._leaving.update({lease.lease_id: lease for lease in leases})

    def locked_again(self, home_lock: str) -> None:
        """The home has another lock from now on."""
        self._identity = replace(self._identity, home_lock=home_lock)

    def releasing(self, lease_id: str) -> None:
        """The lease's process was told to end, by anyone."""
        if held := self._held.get(lease_id):
            held.releasing = True

    def leave(self) -> None:
        """The worker is about to stop: from the next session on it offers no slots."""
        self.leaving_for_good = True

    def sent(self, sequence: int) -> None:
        """A durable message was written to the stream."""
        self.sent_through = max(self.sent_through, sequence)

    def knows(self, sequence: int) -> bool:
        """Whether `appended` was called for the message: before that it must not be sent."""
        return sequence in self._messages

    @property
    def unacknowledged(self) -> int:
        """How many durable messages the scheduler has not acknowledged."""
        return self._messages.unacknowledged

    @property
    def unsettled(self) -> int:
        """How many durable messages are not acknowledged, or not decided: a new session sends them again."""
        return self._messages.count

    def kept(self, lease_id: str) -> Kept:
        """How many durable messages of a lease are not settled yet."""
        return self._messages.kept(lease_id)

    # The connection.

    def connect(self) -> worker_pb2.Hello:
        """Starts a session: returns what to say first."""
        self.phase = Phase.GREETING
        return worker_pb2.Hello(
            worker=self._identity.worker,
            incarnation=self._identity.incarnation,
            devices=() if self.leaving_for_good else self._devices(),
            labels=self._identity.labels,
            held=self._named(),
            version=self._identity.version,
            log_dir=self._identity.log_dir,
            cpus=self._identity.cpus,
            host=self._identity.host,
            home=self._identity.home,
            home_lock=self._identity.home_lock,
            leaving=self.leaving,
            withdrawn=self._withdrawn,
            protocol=self._identity.speaks.newest,
            oldest_protocol=self._identity.speaks.oldest,
            store=self.store,
        )

    def _devices(self) -> list[worker_pb2.Device]:
        devices = []
        ordinary = [device for device in self._identity.devices if device.uuid not in self.owned]
        for device in (*ordinary, *self.ephemeral):
            devices.append(worker_pb2.Device())
            devices[-1].CopyFrom(device)
            devices[-1].defect = self.defects.get(device.index, "")
        return devices

    def disconnect(self) -> None:
        """The stream is over; nothing that was sent on it counts as received."""
        self.phase = Phase.DISCONNECTED

    def heartbeat(
        self,
        telemetry: Sequence[worker_pb2.DeviceTelemetry],
        trouble: str = "",
        rejected: str = "",
        reused: str = "",
        mps: str = "",
    ) -> worker_pb2.Heartbeat:
        """Makes the next heartbeat."""
        self._heartbeats += 1
        return worker_pb2.Heartbeat(
            sequence=self._heartbeats,
            telemetry=telemetry,
            held=self._named(),
            trouble=trouble,
            rejected=rejected,
            reused=reused,
            mps=mps,
            defects=[
                worker_pb2.DeviceDefect(index=index, reason=why)
                for index, why in sorted(self.defects.items())
            ],
            leaving=self.leaving,
            unacknowledged=self.unacknowledged,
            store_id=self.store.id if self.store else "",
        )

    def tick(self) -> str:
        """A heartbeat interval passed. Returns why the session must be opened again, or nothing."""
        if self.phase is not Phase.OPEN:
            return ""
        self._silent_ticks += 1
        if self._silent_ticks > self._silence_ticks:
            return f"the scheduler left {self._silent_ticks - 1} heartbeats unanswered"
        running: Counter[int] = Counter()
        counted: set[str] = set()
        worst = 0
        reason = ""
        for lease_id, held in self._held.items():
            if held.releasing or held.grant in counted:
                continue
            counted.add(held.grant)
            crowded = any(running[slot] + held.milli > WHOLE for slot in held.slots)
            held.conflict_ticks = held.conflict_ticks + 1 if crowded else 0
            if held.conflict_ticks > worst:
                worst, reason = (
                    held.conflict_ticks,
                    f"lease {lease_id} waits for a slot that another lease holds",
                )
            running.update(dict.fromkeys(held.slots, held.milli))
        for sequence, message in self._messages.undecided():
            message.undecided_ticks += 1
            if message.undecided_ticks > worst:
                worst, reason = (
                    message.undecided_ticks,
                    f"report {sequence} was acknowledged but not decided",
                )
        if worst < self._patience_ticks:
            self._patience_ticks = self._patience_ticks if worst else _PATIENCE_TICKS
            return ""
        # If a new session does not settle it, ask less and less often.
        self._patience_ticks = min(self._patience_ticks * 2, 100)
        for held in self._held.values():
            held.conflict_ticks = 0
        for _, message in self._messages.undecided():
            message.undecided_ticks = 0
        return reason

    def receive(self, response: worker_pb2.SessionResponse) -> list[Effect]:
        """Handles one message from the scheduler, and the acknowledgements that came with it."""
        effects = self._receive(response)
        return [*effects, *self._ack(response.acknowledged)] if response.acknowledged else effects

    def _receive(self, response: worker_pb2.SessionResponse) -> list[Effect]:
        kind = response.WhichOneof("message")
        self._silent_ticks = 0
        if self.phase is Phase.DISCONNECTED:
            raise SessionProtocolError(f"{kind} outside a session")
        if self.phase is Phase.GREETING and kind not in {"welcome", "drain"}:
            raise SessionProtocolError(f"{kind} before Welcome")
        match kind:
            case "welcome":
                return self._welcome(response.welcome)
            case "assign":
                return self._assign(response.assign)
            case "decision":
                return self._decide(response.decision)
            case "decisions":
                return [effect for one in response.decisions.decisions for effect in self._decide(one)]
            case "cancel":
                return self._cancel(response.cancel)
            case "vacate":
                return self._vacate(response.vacate)
            case "withdraw":
                return self._withdraw(response.withdraw)
            case "uncordon":
                return [Forgive(devices=tuple(response.uncordon.devices))]
            case "refused":
                return self.refuse(response.refused.sequence, response.refused.reason)
            case "read_log":
                return [ReadLog(ask=response.read_log)]
            case "drain":
                self.phase = Phase.DRAINING
                return [Finish(grace_s=response.drain.grace.ToTimedelta().total_seconds())]
            case "ack":
                return self._ack(response.ack.sequences)
            case _:
                return []  # a later version's message

    # What follows from each message.

    def _welcome(self, welcome: worker_pb2.Welcome) -> list[Effect]:
        if self.phase is not Phase.GREETING:
            raise SessionProtocolError("a second Welcome")
        theirs = Spoken(newest=welcome.protocol, oldest=welcome.oldest_protocol, release=welcome.version)
        if reason := why_not(self._identity.speaks, theirs, we="this worker", they="the scheduler"):
            raise SessionProtocolError(reason)
        self.phase = Phase.OPEN
        self.sent_through = 0
        interval_s = welcome.heartbeat_interval.ToTimedelta().total_seconds()
        lease_ttl_s = welcome.lease_ttl.ToTimedelta().total_seconds()
        self._silence_ticks = max(2, math.ceil(_SILENCE * lease_ttl_s / interval_s)) if interval_s else 2
        still_ours = {ref.lease_id for ref in welcome.held}
        effects: list[Effect] = [
            Welcomed(
                heartbeat_interval_s=interval_s,
                lease_ttl_s=lease_ttl_s,
                scheduler=welcome.scheduler,
                store=welcome.store,
            )
        ]
        for lease_id, held in self._held.items():
            if lease_id not in still_ours:
                # Its decision will not arrive any more.
                effects += self._settle(self._messages.of_lease(lease_id))
                effects.append(self._fence(held, f"this worker no longer holds it: {LEASE_GONE}"))
        return effects

    def _assign(self, assign: worker_pb2.Assign) -> list[Effect]:
        lease_id = assign.lease.lease_id
        if lease_id in self._held or lease_id in self._leaving or lease_id in self._ended:
            return []
        milli = assign.grant.milli or WHOLE
        grant = assign.grant.id if assign.grant.seats > 1 else lease_id
        self._held[lease_id] = _Held(assign.lease, frozenset(assign.grant.slots), milli, grant)
        return [Start(assign=assign)]

    def _decide(self, said: worker_pb2.LeaseDecision) -> list[Effect]:
        held = self._held.get(said.lease.lease_id)
        if held is None:
            return []
        forget = self._settle([said.report_sequence])
        if said.decision.action != event_pb2.DECISION_ACTION_CONTINUE:
            held.releasing = True
        return [
            Decide(
                lease_id=said.lease.lease_id, report_sequence=said.report_sequence, decision=said.decision
            ),
            *forget,
        ]

    def _cancel(self, cancel: worker_pb2.Cancel) -> list[Effect]:
        lease_id = cancel.lease.lease_id
        held = self._held.get(lease_id)
        if held is None:
            return []
        settled = self._settle(self._messages.of_lease(lease_id))
        return [self._fence(held, cancel.reason or "cancelled"), *settled]

    def _fence(self, held: _Held, reason: str) -> Effect:
        """The lease is no longer ours. A process that is already exiting keeps the grace that it was given."""
        lease_id = held.ref.lease_id
        if held.releasing:
            return Fence(lease_id=lease_id)
        held.releasing = True
        return Kill(lease_id=lease_id, reason=reason, fenced=True)

    def _vacate(self, vacate: worker_pb2.Vacate) -> list[Effect]:
        held = self._held.get(vacate.lease.lease_id)
        if held is None or held.releasing:
            return []
        return [Leave(lease_id=vacate.lease.lease_id, reason=vacate.reason)]

    def _withdraw(self, withdraw: worker_pb2.Withdraw) -> list[Effect]:
        self._withdrawn = bool(withdraw.reason)
        grace_s = withdraw.grace.ToTimedelta().total_seconds() if withdraw.HasField("grace") else None
        return [Withdrawn(reason=withdraw.reason, grace_s=grace_s, leave=withdraw.leave)]

    def _ack(self, sequences: Iterable[int]) -> list[Effect]:
        acked = [s for s in sequences if s in self._messages]
        for sequence in acked:
            message = self._messages.acknowledge(sequence)
            if message.exited:
                self._leaving.pop(message.lease_id, None)
        if not acked:
            return []
        return [Acked(sequences=tuple(acked)), *self._forget(acked)]

    def refuse(self, sequence: int, reason: str) -> list[Effect]:
        """A durable message will never be accepted: it is rejected, and its lease's process is ended."""
        message = self._messages.drop(sequence)
        if message is None:
            return []
        if message.exited:
            self._leaving.pop(message.lease_id, None)
        rejected = Reject(sequence=sequence, reason=reason)
        held = self._held.get(message.lease_id)
        if held is None:
            return [rejected]
        settled = self._settle(self._messages.of_lease(message.lease_id))
        return [rejected, self._fence(held, reason), *settled]

    def _end(self, lease_id: str) -> list[Effect]:
        self._held.pop(lease_id, None)
        self._ended[lease_id] = None
        self._ended.move_to_end(lease_id)
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        return self._settle(self._messages.of_lease(lease_id))

    def _settle(self, sequences: Iterable[int]) -> list[Effect]:
        """No decision on these messages is expected any more."""
        return self._forget(self._messages.decide(sequences))

    def _forget(self, sequences: Iterable[int]) -> list[Effect]:
        done = self._messages.take_settled(sequences)
        return [Forget(sequences=done)] if done else []

    def _named(self) -> list[event_pb2.LeaseRef]:
        return [*(held.ref for held in self._held.values()), *self._leaving.values()]
