"""Baseline B of the paper: an expert's greedy search, one degree after another.

"An expert uses a greedy search to sequentially tune data, tensor, pipeline, and optimizer degree, as well as
micro-batch size and recomputation" (H²O, section 3). The paper says no more. This expert starts with the largest
possible tensor groups, one sequence per micro-batch, no optimizer sharding and every layer recomputed. For each
degree in turn it takes the value that is fastest (or nearest to fitting, while nothing fits), and it never goes
back.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import attrgetter

from headrace_services.planner.degrees import Degrees

Score = Callable[[Degrees], tuple[float, float]]
"""(bytes that do not fit, seconds) of a tuple."""


def greedy(tuples: Iterable[Degrees], score: Score) -> Degrees | None:
    """The expert's tuple among the available ones; None if there are none."""
    known = sorted(set(tuples), key=attrgetter("d", "m", "o", "s", "mu", "e"))
    if not known:
        return None

    def start(options: Iterable[Degrees]) -> Degrees:
        return max(options, key=lambda one: (one.m, one.e, one.mu, -one.o))

    def tuned(options: Iterable[Degrees]) -> Degrees:
        return min(options, key=lambda one: (*score(one), one))

    # The data, tensor and pipeline degrees multiply to the devices: each is tuned with what remains for the next.
    now = tuned(start(one for one in known if one.d == d) for d in sorted({one.d for one in known}))
    for fixed, free in (("d", "m"), ("m", "s")):
        alike = [one for one in known if getattr(one, fixed) == getattr(now, fixed)]
        values = sorted({getattr(one, free) for one in alike})
        now = tuned(start(one for one in alike if getattr(one, free) == value) for value in values)
    present = set(known)
    for axis in ("o", "e", "mu"):
        values = sorted({getattr(one, axis) for one in known})
        now = tuned(other for v in values if (other := replace(now, **{axis: v})) in present)
    return now
