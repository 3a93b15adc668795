"""After which reports a check restores: pure.

The restores that tell most come first. One before the end finds a count that ends the script, such as a patience; one
at the end finds a script that trains on; the first finds most of what is not saved. These are made however late the
check is. Those between find what decides in the middle, and are made while there is time.
"""

from collections.abc import Sequence

from headrace.check.snapshot import LEAST

RESTORES = 10
"""At most so many restores are tried where no number of steps is given."""


def pauses(steps: Sequence[int], most: int | None, *, ends_by_itself: bool) -> tuple[int, ...]:
    """The reported steps after which to restore, ascending: the `most` of them that tell most; None: all.

    The last step is one of them only where the script ends there by itself: a trial may be resumed from there. Fewer
    are always a part of more.
    """
    found = tuple(steps if ends_by_itself else steps[:-1])
    if most is None:
        return found
    last = len(found) - 1
    at_ends = [place for place in dict.fromkeys((last, 0, last - 1, 1)) if 0 <= place <= last]
    inner = range(2, last - 1)
    count = min(len(inner), RESTORES - len(at_ends))
    between = [inner[(2 * place + 1) * len(inner) // (2 * count)] for place in range(count)]
    return tuple(found[place] for place in sorted([*at_ends, *_middle_first(between)][:most]))


def needed(steps: Sequence[int], *, ends_by_itself: bool) -> tuple[int, ...]:
    """Those that are made however long they take."""
    return pauses(steps, LEAST, ends_by_itself=ends_by_itself)


def affordable(*, limit_s: float, spent_s: float, train_s: float) -> int:
    """How many restores there is time for after a straight run that took `spent_s`, of which it trained `train_s`.

    Each restore costs the start of a process; the resumed run trains as long as the straight one.
    """
    start_s = max(spent_s - train_s, 0.0)
    left_s = limit_s - spent_s - train_s
    return min(RESTORES, max(LEAST, int(left_s / start_s) if start_s > 0 else RESTORES))


def _middle_first(places: Sequence[int]) -> list[int]:
    """The places in an order of which each beginning is spread over all of them."""
    order: list[int] = []
    parts = [list(places)]
    while parts:
        part = parts.pop(0)
        if part:
            middle = len(part) // 2
            order.append(part[middle])
            parts += [part[:middle], part[middle + 1 :]]
    return order
