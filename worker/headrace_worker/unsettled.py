"""The durable messages that are not settled: not yet acknowledged, or without the decision that their trial waits
for.

The cost of a call depends only on the messages that it names, however many others there are. A worker that comes
back after an outage has tens of thousands, and each of them is acknowledged separately.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Message:
    """What the session must know about a durable message."""

    lease_id: str
    exited: bool
    awaits_decision: bool
    size_bytes: int = 0
    acked: bool = False
    undecided_ticks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How much of a lease is not settled."""

    messages: int
    size_bytes: int


class Unsettled:
    """Messages by their sequence, and by what is still missing."""

    def __init__(self) -> None:
        self._messages: dict[int, Message] = {}
        self._of_lease: dict[str, set[int]] = {}
        self._bytes_of_lease: Counter[str] = Counter()
        self._unacknowledged: set[int] = set()
        # Messages that are acknowledged, but whose decision is still to come.
        self._undecided: set[int] = set()

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._messages

    @property
    def count(self) -> int:
        """How many messages there are."""
        return len(self._messages)

    @property
    def unacknowledged(self) -> int:
        """How many messages the scheduler has not acknowledged."""
        return len(self._unacknowledged)

    def of_lease(self, lease_id: str) -> Collection[int]:
        """The sequences of a lease's messages."""
        return self._of_lease.get(lease_id, frozenset())

    def kept(self, lease_id: str) -> Kept:
        """How much of a lease is not settled."""
        return Kept(messages=len(self.of_lease(lease_id)), size_bytes=self._bytes_of_lease[lease_id])

    def undecided(self) -> Iterable[tuple[int, Message]]:
        """The messages that are acknowledged and whose decision has not arrived."""
        return ((sequence, self._messages[sequence]) for sequence in self._undecided)

    def add(self, sequence: int, message: Message) -> None:
        """A message is on disk."""
        self._messages[sequence] = message
        self._of_lease.setdefault(message.lease_id, set()).add(sequence)
        self._bytes_of_lease[message.lease_id] += message.size_bytes
        self._unacknowledged.add(sequence)

    def acknowledge(self, sequence: int) -> Message:
        """The scheduler has committed a known message."""
        message = self._messages[sequence]
        message.acked = True
        self._unacknowledged.discard(sequence)
        if message.awaits_decision:
            self._undecided.add(sequence)
        return message

    def decide(self, sequences: Iterable[int]) -> list[int]:
        """No decision on these messages is expected any more. Returns those that are known."""
        known = [s for s in sequences if s in self._messages]
        for sequence in known:
            self._messages[sequence].awaits_decision = False
            self._undecided.discard(sequence)
        return known

    def take_settled(self, sequences: Iterable[int]) -> tuple[int, ...]:
        """Removes the settled ones among these known messages; returns them in order."""
        settled = {s for s in sequences if (m := self._messages[s]).acked and not m.awaits_decision}
        for sequence in settled:
            self.drop(sequence)
        return tuple(sorted(settled))

    def drop(self, sequence: int) -> Message | None:
        """Removes a message, settled or not; returns it if it was known."""
        message = self._messages.pop(sequence, None)
        if message is None:
            return None
        self._unacknowledged.discard(sequence)
        self._undecided.discard(sequence)
        theirs = self._of_lease[message.lease_id]
        theirs.discard(sequence)
        self._bytes_of_lease[message.lease_id] -= message.size_bytes
        if not theirs:
            del self._of_lease[message.lease_id]
            del self._bytes_of_lease[message.lease_id]
        return message
