"""Stop trials that are worse than the median at their rung by more than a tolerance.

This is the rule of the simulation in "A Trial That Outlived Its Usefulness". The values at the rung so far,
including the trial's own, are sorted from the best. The median is the one at place ⌊n/2⌋ from 0 (of an even
number, the worse of the middle two). A trial is stopped if it is worse than the median by more than `tolerance`
times the median's absolute value.

Values that are not finite are the worst ones; if the median is one of them, no trial is worse.
"""

import math

from headrace.spec import RungMedianPolicy, StudySpec
from headrace_services.scheduler.core.policies.protocol import Action, RungResult, Verdict
from headrace_services.scheduler.core.policies.sentences import figures
from headrace_services.scheduler.core.policies.stopping import StoppingRule, percent


def make_rung_median(spec: StudySpec, policy: RungMedianPolicy) -> "RungMedian":
    """The rule that the spec describes."""
    return RungMedian(
        ladder=spec.rungs(),
        grace=policy.grace(spec.budgets[0]),
        maximize=spec.maximizes(),
        tolerance=policy.tolerance,
        min_results=policy.min_results,
    )


class RungMedian(StoppingRule):
    """The value at a rung against the median there."""

    rule = "rung_median"

    def __init__(
        self, *, ladder: tuple[int, ...], grace: int, maximize: bool, tolerance: float, min_results: int
    ) -> None:
        super().__init__(ladder=ladder, grace=grace, maximize=maximize)
        self._tolerance = tolerance
        self._min_results = min_results

    def _fold(self, result: RungResult) -> None:
        """Do nothing: the ranking is all that the rule needs."""

    def _lack(self, result: RungResult) -> str | None:
        results = len(self._rankings[result.rung])
        if results < self._min_results:
            return f"{results} of {self._min_results} results are available for comparison"
        return None

    def _judge(self, result: RungResult) -> Verdict:
        ranking = self._rankings[result.rung]
        median = ranking.value_at(len(ranking) // 2 + 1)
        if median is None:
            return self._verdict(
                result, Action.CONTINUE, "the median there is not a finite number: it continues"
            )
        signed = self._sign * median
        # In this order exactly, so that 1.05·median is what the rule's own listing computes.
        bound = signed * (1 + self._tolerance) if signed >= 0 else signed * (1 - self._tolerance)
        value = result.value
        assert value is not None
        stops = self._sign * value > bound
        limit = self._sign * bound
        first, second = figures(value, limit)
        word = "worse than" if stops else "at least as good as"
        outcome = "it stops" if stops else "it continues"
        said = (
            f"value {first} is {word} {second}, the median {figures(median, limit)[0]}"
            f" with a tolerance of {percent(self._tolerance)}: {outcome}"
        )
        return self._verdict(
            result,
            Action.STOP if stops else Action.CONTINUE,
            said,
            kept=ranking.count_within(bound),
            cutoff=limit if math.isfinite(limit) else None,
        )
