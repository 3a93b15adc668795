"""Median stopping: the choice between two rules, and Vizier's rule (Golovin et al., KDD 2017, section 3.2.2).

The default compares running averages with each other (`running_median`). The variant `vizier` is this one:

A trial is stopped at step t if its best value so far is strictly worse than the median of the other trials'
running averages up to t. A running average is the mean of the finite values at the looks up to t. The others are
all trials that were recorded at t, including those stopped there, or only those that completed (`completed_only`).

A trial without a finite value up to t has the worst average. The median of an even number of averages is the mean
of the middle two. Averages are computed from exact sums, rounded once, so that equal curves are equal.

Averages at each look are kept sorted: a look costs O(log n), and a trial that completes L·O(log n) for L looks.
"""

import math
from fractions import Fraction

from sortedcontainers import SortedList

from headrace.spec import MedianPolicy, MedianVariant, StudySpec
from headrace_services.scheduler.core.policies.protocol import Action, RungResult, Verdict
from headrace_services.scheduler.core.policies.running_median import RunningMedian
from headrace_services.scheduler.core.policies.sentences import figures
from headrace_services.scheduler.core.policies.stopping import StoppingRule


def make_median(spec: StudySpec, policy: MedianPolicy) -> StoppingRule:
    """The rule that the spec describes."""
    ladder, grace = spec.rungs(), policy.grace(spec.budgets[0])
    if policy.variant is MedianVariant.AVERAGE:
        return RunningMedian(ladder=ladder, grace=grace, maximize=spec.maximizes(), min_peers=policy.peers)
    return VizierMedian(
        ladder=ladder,
        grace=grace,
        maximize=spec.maximizes(),
        completed_only=policy.completed_only,
        min_peers=policy.peers,
    )


class _Course:
    """A trial's course so far, with signs such that smaller is better: its best value, and its average at each
    look."""

    __slots__ = ("averages", "best", "count", "total")

    def __init__(self) -> None:
        self.best = math.inf
        self.total = Fraction(0)
        self.count = 0
        self.averages: list[tuple[int, float]] = []


class VizierMedian(StoppingRule):
    """The best value so far against the median of the others' running averages."""

    rule = "median"

    def __init__(
        self, *, ladder: tuple[int, ...], grace: int, maximize: bool, completed_only: bool, min_peers: int
    ) -> None:
        super().__init__(ladder=ladder, grace=grace, maximize=maximize)
        self._completed_only = completed_only
        self._min_peers = min_peers
        self._courses: dict[int, _Course] = {}
        self._averages: list[SortedList] = [SortedList() for _ in ladder]
        """The averages that count, at each look."""
        self._own: list[dict[int, float]] = [{} for _ in ladder]
        """Those of each trial, among these."""

    def _fold(self, result: RungResult) -> None:
        course = self._courses.setdefault(result.trial, _Course())
        if result.value is not None and result.finite:
            course.best = min(course.best, self._sign * result.value)
            course.total += Fraction(self._sign * result.value)
            course.count += 1
        average = float(course.total / course.count) if course.count else math.inf
        course.averages.append((result.rung, average))
        if not self._completed_only:
            self._count(result.trial, result.rung, average)
        elif result.rung == len(self._ladder) - 1:
            for rung, earlier in course.averages:
                self._count(result.trial, rung, earlier)

    def _count(self, trial: int, rung: int, average: float) -> None:
        self._averages[rung].add(average)
        self._own[rung][trial] = average

    def _lack(self, result: RungResult) -> str | None:
        peers = len(self._averages[result.rung]) - (result.trial in self._own[result.rung])
        if peers >= self._min_peers:
            return None
        who = "completed trials" if self._completed_only else "other trials"
        return f"{peers} of {self._min_peers} {who} are available for comparison"

    def _judge(self, result: RungResult) -> Verdict:
        median = self._median_of_others(result)
        best = self._courses[result.trial].best
        stops = best > median
        who = "completed trials'" if self._completed_only else "others'"
        if math.isinf(median):
            said = f"half of the {who} running averages are not finite numbers: it continues"
            return self._verdict(result, Action.CONTINUE, said)
        first, second = figures(self._sign * best, self._sign * median)
        word = "worse than" if stops else "at least as good as"
        outcome = "it stops" if stops else "it continues"
        said = (
            f"its best value {first} is {word} {second}, the median of the {who} running averages: {outcome}"
        )
        return self._verdict(
            result,
            Action.STOP if stops else Action.CONTINUE,
            said,
            kept=self._rankings[result.rung].count_within(median),
            cutoff=self._sign * median,
        )

    def _median_of_others(self, result: RungResult) -> float:
        """The median of the averages at the look, without the trial's own."""
        ordered = self._averages[result.rung]
        own = self._own[result.rung].get(result.trial)
        gap = len(ordered) if own is None else ordered.index(own)
        count = len(ordered) - (own is not None)

        def other(place: int) -> float:
            return float(ordered[place if place < gap else place + 1])

        upper = other(count // 2)
        if count % 2:
            return upper
        lower = other(count // 2 - 1)
        return math.inf if math.isinf(upper) else float((Fraction(lower) + Fraction(upper)) / 2)
