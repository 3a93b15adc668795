"""Which checkpoints may go.

A checkpoint may be deleted only when a newer one of the same trial is certain to be the one that the scheduler
would continue from. An `Ack` alone does not make it certain: the scheduler also acknowledges reports of a
lease that is over, and then refers to an older checkpoint still. So a report proves its checkpoint either by
a decision, which only a live lease gets, or by an acknowledgement after which a whole heartbeat went by
without the lease being cancelled. A lease that was fenced proves nothing any more, and deletes nothing; its
leftovers go when the trial's next lease prunes, since names sort by epoch first.

Everything here is a pure value: sequences and events in, orders to prune out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneOrder:
    """Delete the trial's checkpoints that are older than `name`, except the last `keep` up to it.

    `spared` are URIs that stay in any case: other trials stand on them, or may be put there. Where that may be
    (`shared`), only a decision orders to prune, since only the scheduler knows of them.
    """

    trial: str
    name: str
    keep: int
    shared: bool = False
    spared: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Saved:
    lease_id: str
    order: PruneOrder
    acked_at_tick: int | None = None


class Retention:
    """Turns acknowledgements and decisions into orders to prune."""

    def __init__(self) -> None:
        self._saved: dict[int, _Saved] = {}
        self._tick = 0

    def saved(self, lease_id: str, sequence: int, order: PruneOrder) -> None:
        """A report with this checkpoint went into the outbox."""
        self._saved[sequence] = _Saved(lease_id, order)

    def acked(self, sequences: Iterable[int]) -> None:
        """The scheduler acknowledged these messages, whatever it thought of them."""
        for sequence in sequences:
            if (saved := self._saved.get(sequence)) and saved.acked_at_tick is None:
                saved.acked_at_tick = self._tick

    def decided(self, lease_id: str, sequence: int, spared: Iterable[str] = ()) -> PruneOrder | None:
        """A decision came for this report: it, and every report of the lease before it, is committed."""
        proven = [s for s, saved in self._saved.items() if saved.lease_id == lease_id and s <= sequence]
        order = self._prove(proven)
        return replace(order, spared=frozenset(spared)) if order else None

    def tick(self) -> list[PruneOrder]:
        """A heartbeat went by: what was acknowledged before the last one is proven."""
        self._tick += 1
        proven: dict[str, list[int]] = {}
        for sequence, saved in self._saved.items():
            if saved.order.shared or saved.acked_at_tick is None:
                continue
            if saved.acked_at_tick < self._tick - 1:
                proven.setdefault(saved.lease_id, []).append(sequence)
        return [order for sequences in proven.values() if (order := self._prove(sequences))]

    def over(self, lease_id: str) -> None:
        """The lease was fenced or has ended: what is not proven by now stays unproven."""
        for sequence in [s for s, saved in self._saved.items() if saved.lease_id == lease_id]:
            del self._saved[sequence]

    def _prove(self, sequences: Sequence[int]) -> PruneOrder | None:
        newest = max(sequences, default=None)
        order = self._saved[newest].order if newest is not None else None
        for sequence in sequences:
            del self._saved[sequence]
        return order


def superseded(names: Sequence[str], order: PruneOrder) -> list[str]:
    """Picks what an order deletes from a trial's listing: never `order.name` itself, nor anything newer."""
    older = sorted(name for name in names if name < order.name)
    keep_older = max(order.keep - 1, 0)
    return older[: len(older) - keep_older] if keep_older else older


def checkpoint_name(*, epoch: int, report: int, step: int, lease_id: str) -> str:
    """Names a checkpoint so that names sort by age: by placement, then by report.

    The lease's own digits keep a study that was deleted and created again from meeting its predecessor's files.
    """
    import hashlib

    tail = hashlib.sha256(lease_id.encode()).hexdigest()[:8]
    return f"{epoch:06d}-{report:06d}-step{step}-{tail}"
