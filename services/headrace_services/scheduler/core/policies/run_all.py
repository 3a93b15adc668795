"""No policy: every trial runs to the full budget. The ranks are kept only for explanations."""

from headrace_services.scheduler.core.policies.protocol import (
    Action,
    Explanation,
    Policy,
    Promotion,
    RungResult,
    Verdict,
)
from headrace_services.scheduler.core.policies.ranking import Ranking
from headrace_services.scheduler.core.policies.sentences import no_value_sentence


class RunAll(Policy):
    """One bracket whose only rung is the full budget. An extension adds the new full budget as a rung."""

    rule = "run_all"

    def __init__(self, *, ladder: tuple[int, ...], maximize: bool) -> None:
        self._ladder = ladder
        self._rankings = [Ranking(maximize=maximize) for _ in ladder]

    def ladder(self, bracket: int) -> tuple[int, ...]:
        if bracket != 0:
            raise IndexError(f"there is no bracket {bracket}: run_all has one")
        return self._ladder

    def record(self, result: RungResult) -> None:
        self._ranking(result.bracket, result.rung).add(result, waits=False)

    def promoted(self, trial: int, bracket: int, rung: int) -> None:
        self._ranking(bracket, rung).result(trial)

    def withdraw(self, trial: int) -> None:
        """Nothing to do: no trial is ever promoted."""

    def verdict(self, trial: int, bracket: int, rung: int, *, more: bool = True) -> Verdict:
        del more
        ranking, milestone = self._ranking(bracket, rung), self._ladder[rung]
        result, place = ranking.result(trial), ranking.place(trial)
        said = "" if result.finite else f"{no_value_sentence(result)}; "
        which = "the full budget" if milestone == self._ladder[-1] else "an earlier full budget"
        sentence = (
            f"{said}every trial runs to the end; "
            f"rank {place.rank} of {place.results} at {which}, step {milestone}"
        )
        explanation = Explanation(
            rule=self.rule,
            bracket=0,
            rung=rung,
            milestone=milestone,
            value=result.value,
            rank=place.rank,
            results=place.results,
            kept=place.results,
            cutoff_value=None,
            sentence=sentence,
        )
        return Verdict(action=Action.CONTINUE, explanation=explanation)

    def next_promotion(self, *, more: bool = True) -> Promotion | None:
        del more
        return None

    def _ranking(self, bracket: int, rung: int) -> Ranking:
        if bracket != 0 or not 0 <= rung < len(self._ladder):
            raise ValueError(f"there is no rung {rung} in bracket {bracket}")
        return self._rankings[rung]
