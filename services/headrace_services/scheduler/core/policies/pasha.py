"""PASHA: asynchronous promotion under a ceiling that rises only while rankings are unsettled.

Bohdal et al., arXiv 2207.06940, algorithm 1. Trials are promoted as in ASHA, but only up to a top rung, at first
the second one. Whenever a trial arrives there, the top rung and the one below are compared, see `rung_pair`. While
they rank trials alike, more training gives no new information and the ceiling stays. When they differ, it rises by
one rung, and the new pair is compared.

A study whose rankings settle early completes without a trial at the full budget: the best trial is the best one at
the top rung. At the end of a study ASHA makes sure that at least one trial has the full budget. Here that goes
only up to the top rung.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from headrace.spec import PashaPolicy, StudySpec
from headrace_services.scheduler.core.policies.asha import AshaPromotion
from headrace_services.scheduler.core.policies.protocol import RungResult, Verdict
from headrace_services.scheduler.core.policies.ranking import Ranking
from headrace_services.scheduler.core.policies.sentences import place_sentence

if TYPE_CHECKING:
    from headrace_services.scheduler.core.policies.rung_pair import RungPair

FIRST_TOP = 1


def make_pasha(spec: StudySpec, policy: PashaPolicy) -> "Pasha":
    """The policy of a study."""
    return Pasha(
        ladder=spec.rungs(),
        eta=policy.eta,
        maximize=spec.maximizes(),
        epsilon=policy.epsilon,
    )


class Pasha(AshaPromotion):
    """ASHA's promotion below a top rung that rises. ε is estimated if it is None."""

    rule = "pasha"

    def __init__(self, *, ladder: tuple[int, ...], eta: int, maximize: bool, epsilon: float | None) -> None:
        super().__init__(ladders=(ladder,), eta=eta, maximize=maximize)
        self._estimate = epsilon is None
        self._ceiling = 0
        self._pair: RungPair | None = None
        self._raise_ceiling(min(FIRST_TOP, len(ladder) - 1), epsilon or 0.0)

    def record(self, result: RungResult) -> None:
        super().record(result)
        if self._pair is None or result.rung != self._ceiling:
            return
        self._pair.add(result.trial)
        while self._pair is not None and not self._pair.agree:
            self._raise_ceiling(self._ceiling + 1, self._pair.epsilon)

    def verdict(self, trial: int, bracket: int, rung: int, *, more: bool = True) -> Verdict:
        verdict = super().verdict(trial, bracket, rung, more=more)
        result = self._rungs[bracket, rung].result(trial)
        if self._pair is None or rung != self._ceiling or not result.finite:
            return verdict
        explanation = verdict.explanation
        below, here = self._ladders[bracket][rung - 1 : rung + 1]
        settled = (
            f"no trial is promoted while the rungs at steps {below} and {here} rank alike "
            f"(ε = {self._pair.epsilon:.4g})"
        )
        sentence = f"{settled}; {place_sentence(result, explanation.rank, explanation.results)}"
        return replace(verdict, explanation=replace(explanation, sentence=sentence))

    def _finished(self) -> bool:
        return self._rungs[0, self._ceiling].value_at(1) is not None

    def _raise_ceiling(self, rung: int, epsilon: float) -> None:
        """Let trials continue up to a rung. Once that is the full budget there is nothing left to compare."""
        self._ceiling = rung
        self._promotable_from = [(0, lower) for lower in range(rung - 1, -1, -1)]
        last = rung == len(self._ladders[0]) - 1
        rankings = [self._rungs[0, lower] for lower in range(rung + 1)]
        self._pair = None if last else _paired(rankings, epsilon, estimate=self._estimate)


def _paired(rankings: Sequence[Ranking], epsilon: float, *, estimate: bool) -> "RungPair":
    from headrace_services.scheduler.core.policies.rung_pair import RungPair  # numpy, only for such studies

    return RungPair(rankings, epsilon, estimate=estimate)
