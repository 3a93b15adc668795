"""What a torch DataLoader holds at a report and no checkpoint saves, read from its live iterator.

Without `persistent_workers` an iterator lives for one epoch. Between two epochs there is none, and nothing to
lose: the next one draws its workers' seed from a generator that is saved. A persistent iterator draws that seed
only once, so a pause also advances that generator; and its workers, which draw from their own generators,
outlive the epoch.
"""

from collections.abc import Container, Iterable
from enum import StrEnum
from typing import Any


class LoaderState(StrEnum):
    """One part of a loader's state that a pause loses."""

    # Its workers have fetched batches that the loop has not used yet.
    AHEAD = "ahead"
    # Its workers, their generators and their copies of the dataset outlive the epoch.
    PERSISTENT = "persistent"
    # The loop has used some of the epoch's batches, in an order that is not saved.
    WITHIN = "within"


def states(loader: Any, iterators: Iterable[Any], saved: Container[int]) -> tuple[LoaderState, ...]:
    """What a pause at this point loses of the loader. `iterators` are all live ones; `saved` has the ids of
    tracked objects.
    """
    order = getattr(loader, "_index_sampler", None)
    found: dict[LoaderState, None] = {}
    for iterator in iterators:
        if order is None or getattr(iterator, "_index_sampler", None) is not order:
            continue
        if getattr(loader, "num_workers", 0) == 0:
            if id(order) not in saved and _is_within(iterator, order):
                found[LoaderState.WITHIN] = None
            continue
        if getattr(iterator, "_rcvd_idx", 0) < getattr(iterator, "_send_idx", 0):
            found[LoaderState.AHEAD] = None
        if getattr(loader, "persistent_workers", False):
            found[LoaderState.PERSISTENT] = None
    return tuple(found)


def _is_within(iterator: Any, order: Any) -> bool:
    yielded = getattr(iterator, "_num_yielded", 0)
    try:
        return bool(0 < yielded < len(order))
    except TypeError:  # an order without a length
        return bool(yielded)
