"""Decides which checkpoints may be deleted.

A checkpoint may be deleted only when the scheduler is certain to resume the same trial from a newer one. An `Ack`
alone does not make that certain: the scheduler also acknowledges reports of a lease that is over, and then still
refers to an older checkpoint. So a report proves its checkpoint in one of two ways: by a decision, which only a
live lease gets, or by an acknowledgement after which a whole heartbeat interval passes without the lease being
cancelled. A lease that was fenced proves nothing any more, and deletes nothing. Its leftovers are deleted when the
trial's next lease prunes, since names sort by attempt first.

Everything here is a pure value: sequences and events in, orders to prune out.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneOrder:
    """Delete the trial's checkpoints that are older than `name`, except the last `keep` up to it.

    `spared` are URIs that stay in any case: other trials start from them or may do so, or one is the best. If
    there may be such (`shared`), only a decision orders pruning, since only the scheduler knows them.
    """

    trial: str
    name: str
    keep: int
    shared: bool = False
    spared: frozenset[str] = frozenset()


class Retention:
    """Turns acknowledgements and decisions into orders to prune.

    The cost of a call depends only on what it names, and that of a tick on what was acknowledged: a long outage
    leaves many thousands of checkpoints.
    """

    def __init__(self) -> None:
        # By lease, oldest first: a plain dict would step over the entries deleted at its front.
        self._saved: dict[str, OrderedDict[int, PruneOrder]] = {}
        self._lease_of: dict[int, str] = {}
        # When the messages that prove something by themselves were acknowledged, oldest first.
        self._acked_at_tick: OrderedDict[int, int] = OrderedDict()
        self._tick = 0

    def saved(self, lease_id: str, sequence: int, order: PruneOrder) -> None:
        """A report with this checkpoint went into the outbox."""
        self._saved.setdefault(lease_id, OrderedDict())[sequence] = order
        self._lease_of[sequence] = lease_id

    def acked(self, sequences: Iterable[int]) -> None:
        """The scheduler acknowledged these messages, whatever it did with them."""
        for sequence in sequences:
            lease_id = self._lease_of.get(sequence)
            if lease_id is not None and not self._saved[lease_id][sequence].shared:
                self._acked_at_tick.setdefault(sequence, self._tick)

    def decided(self, lease_id: str, sequence: int, spared: Iterable[str] = ()) -> PruneOrder | None:
        """A decision on this report arrived: it is committed, and so is every earlier report of the lease."""
        proven = takewhile(lambda saved: saved <= sequence, self._saved.get(lease_id, ()))
        order = self._prove(lease_id, list(proven))
        return replace(order, spared=frozenset(spared)) if order else None

    def tick(self) -> list[PruneOrder]:
        """A heartbeat interval passed: what was acknowledged before the previous one is proven."""
        self._tick += 1
        proven: dict[str, list[int]] = {}
        for sequence, tick in self._acked_at_tick.items():
            if tick >= self._tick - 1:
                break
            proven.setdefault(self._lease_of[sequence], []).append(sequence)
        return [order for lease, found in proven.items() if (order := self._prove(lease, found))]

    def over(self, lease_id: str) -> None:
        """The lease was fenced or has ended: what is not proven by now stays unproven."""
        self._prove(lease_id, list(self._saved.get(lease_id, ())))

    def _prove(self, lease_id: str, sequences: Sequence[int]) -> PruneOrder | None:
        """Drop these reports of a lease; returns the order that follows from the newest of them."""
        theirs = self._saved.get(lease_id, OrderedDict())
        order = theirs[max(sequences)] if sequences else None
        for sequence in sequences:
            del theirs[sequence], self._lease_of[sequence]
            self._acked_at_tick.pop(sequence, None)
        if not theirs:
            self._saved.pop(lease_id, None)
        return order


def superseded(names: Sequence[str], order: PruneOrder) -> list[str]:
    """Picks what an order deletes from a trial's listing: never `order.name` itself, nor anything newer."""
    older = sorted(name for name in names if name < order.name)
    return older[: max(0, len(older) - max(order.keep - 1, 0))]


def checkpoint_name(*, attempt: int, report: int, step: int, lease_id: str) -> str:
    """Names a checkpoint so that names sort by age: by placement, then by report.

    The lease's own digits keep the names apart from those of a study that was deleted and created again.
    """
    import hashlib

    tail = hashlib.sha256(lease_id.encode()).hexdigest()[:8]
    return f"{attempt:06d}-{report:06d}-step{step}-{tail}"
