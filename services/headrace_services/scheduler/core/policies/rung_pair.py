"""Whether the top two rungs rank trials alike (PASHA, Bohdal et al., arXiv 2207.06940, section 4).

**Soft ranking** (section 4.1). The trials at the upper rung are ranked by their values there, and by their values
one rung below. The rankings agree iff at every place the trial of the upper ranking differs from that of the lower
one by at most ε in its lower value. ε = 0 allows only ties.

**ε** (section 4.2) is estimated from the values at the rungs. It considers the pairs of trials whose order was the
opposite at some rung below and the same again at one below that. ε is the 90th percentile of their distances at
the upper rung, with linear interpolation. While there is no such pair it keeps its value.

A value that is not finite has no distance: it ranks last, and agrees only with another such value.
"""

import math
from collections.abc import Sequence

import numpy as np
from sortedcontainers import SortedList

from headrace_services.scheduler.core.policies.ranking import Entry, Ranking

QUANTILE = 0.9


class RungPair:
    """The trials at an upper rung, ranked there and one rung below. Ties go by arrival at the rung."""

    def __init__(self, rankings: Sequence[Ranking], epsilon: float, *, estimate: bool) -> None:
        """Compare the last two of `rankings`, which are ordered from the lowest rung up."""
        self._rankings = rankings
        self._upper: SortedList = SortedList()
        self._lower: SortedList = SortedList()
        self._estimate = estimate and len(rankings) >= 3
        self._values = np.empty((0, len(rankings)))
        self._size = 0
        self._distances: SortedList = SortedList()
        self.epsilon = epsilon
        self._agree = True
        for trial in rankings[-1].trials:
            self._insert(trial)
        self._agree = self._all_agree(0, self._size)

    @property
    def agree(self) -> bool:
        """Whether the rankings agree."""
        return self._agree

    def add(self, trial: int) -> None:
        """Add a trial that was recorded at the upper rung: O(trials) for ε, O(places moved) for the ranks."""
        before = self.epsilon
        above, below = self._insert(trial)
        if not self._agree or self.epsilon < before:
            self._agree = self._all_agree(0, self._size)
        else:
            # The others did not move relative to each other: only the places in between changed.
            self._agree = self._all_agree(min(above, below), max(above, below) + 1)

    def _insert(self, trial: int) -> tuple[int, int]:
        upper, lower = self._rankings[-1].entry(trial), self._rankings[-2].entry(trial)
        self._upper.add(upper)
        self._lower.add(lower)
        if self._estimate:
            self._take_distances(trial)
        self._size += 1
        return self._upper.index(upper), self._lower.index(lower)

    def _take_distances(self, trial: int) -> None:
        row = np.array([_number(ranking.entry(trial)) for ranking in self._rankings])
        if self._size == len(self._values):
            grown = np.full((2 * self._size + 8, len(row)), np.nan)
            grown[: self._size] = self._values[: self._size]
            self._values = grown
        others = self._values[: self._size]
        with np.errstate(over="ignore", invalid="ignore"):
            # NaN, from a value that is not finite, is neither less nor greater.
            order = np.sign(row - others)
            distances = np.abs(row[-1] - others[:, -1])
        now = order[:, -1]
        opposite = np.zeros(self._size, dtype=bool)
        back = np.zeros(self._size, dtype=bool)
        for rung in range(len(row) - 2, -1, -1):
            back |= opposite & (order[:, rung] * now > 0)
            opposite |= order[:, rung] * now < 0
        self._distances.update(distances[back & np.isfinite(distances)].tolist())
        self._values[self._size] = row
        if self._distances:
            self.epsilon = _quantile(self._distances, QUANTILE)

    def _all_agree(self, first: int, end: int) -> bool:
        places = zip(self._upper[first:end], self._lower[first:end], strict=True)
        return all(self._near(self._rankings[-2].entry(upper[3]), lower) for upper, lower in places)

    def _near(self, one: Entry, other: Entry) -> bool:
        if one[0] or other[0]:
            return one[0] == other[0]
        return abs(one[1] - other[1]) <= self.epsilon


def _number(entry: Entry) -> float:
    return math.nan if entry[0] else entry[1]


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of sorted numbers, with linear interpolation; rounded as numpy does."""
    place = (len(ordered) - 1) * share
    at = int(place)
    low, high, part = ordered[at], ordered[min(at + 1, len(ordered) - 1)], place - int(place)
    return high - (high - low) * (1 - part) if part >= 0.5 else low + (high - low) * part
