"""Median stopping by ranks of running averages (the rule of Syne Tune's `MedianStoppingRule`).

A trial is stopped at a look if more than half of the trials recorded there have a strictly better running average
up to it; the trial itself counts among them. A running average is the mean of the finite values at the looks so
far. The rule applies from the fifth trial at a look on, unless the study sets another number.

Unlike Vizier's rule (`median`), this one compares a trial's average with averages, not its best value. If curves
improve steadily, a best value beats nearly every average, and almost nothing is stopped.

Averages are computed from exact sums, rounded once, so that equal curves are equal. A look costs O(log n).
"""

import math
from fractions import Fraction

from sortedcontainers import SortedList

from headrace_services.scheduler.core.policies.protocol import Action, RungResult, Verdict
from headrace_services.scheduler.core.policies.sentences import figure
from headrace_services.scheduler.core.policies.stopping import StoppingRule


class RunningMedian(StoppingRule):
    """A trial's running average among those of all trials at the look."""

    rule = "running_median"

    def __init__(self, *, ladder: tuple[int, ...], grace: int, maximize: bool, min_peers: int) -> None:
        super().__init__(ladder=ladder, grace=grace, maximize=maximize)
        self._min_peers = min_peers
        self._sums: dict[int, tuple[Fraction, int]] = {}
        self._averages: list[SortedList] = [SortedList() for _ in ladder]
        """At each look, those of all trials."""
        self._own: list[dict[int, float]] = [{} for _ in ladder]
        """Those of each trial, among these."""

    def _fold(self, result: RungResult) -> None:
        total, count = self._sums.get(result.trial, (Fraction(0), 0))
        if result.value is not None and result.finite:
            total, count = total + Fraction(self._sign * result.value), count + 1
            self._sums[result.trial] = total, count
        average = float(total / count) if count else math.inf
        self._averages[result.rung].add(average)
        self._own[result.rung][result.trial] = average

    def _lack(self, result: RungResult) -> str | None:
        peers = len(self._averages[result.rung]) - 1
        if peers >= self._min_peers:
            return None
        return f"{peers} of {self._min_peers} other trials are available for comparison"

    def _judge(self, result: RungResult) -> Verdict:
        own, averages = self._own[result.rung][result.trial], self._averages[result.rung]
        better, count = averages.bisect_left(own), len(averages)
        stops = 2 * better > count
        said = (
            f"{better} of {count} trials have a better running average than its {figure(self._sign * own)}: "
            f"{'it stops' if stops else 'it continues'}"
        )
        return self._verdict(result, Action.STOP if stops else Action.CONTINUE, said)
