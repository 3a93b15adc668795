"""No policy at all: every trial runs to the full budget. The ranks are kept for explanations alone."""

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
    """One bracket whose only rung is the full budget."""

    rule = "run_all"

    def __init__(self, *, max_steps: int, maximize: bool) -> None:
        self._max_steps = max_steps
        self._ranking = Ranking(maximize=maximize)

    def ladder(self, bracket: int) -> tuple[int, ...]:
        if bracket != 0:
            raise IndexError(f"there is no bracket {bracket}: run_all has one")
        return (self._max_steps,)

    def record(self, result: RungResult) -> None:
        if (result.bracket, result.rung) != (0, 0):
            raise ValueError(f"there is no rung {result.rung} in bracket {result.bracket}")
        self._ranking.add(result, waits=False)

    def promoted(self, trial: int, bracket: int, rung: int) -> None:
        if (bracket, rung) != (0, 0):
            raise ValueError(f"there is no rung {rung} in bracket {bracket}")
        self._ranking.result(trial)

    def withdraw(self, trial: int) -> None:
        """Nothing to do: no trial is ever promoted."""

    def verdict(self, trial: int, bracket: int, rung: int, *, more: bool = True) -> Verdict:
        del more
        if (bracket, rung) != (0, 0):
            raise ValueError(f"there is no rung {rung} in bracket {bracket}")
        result = self._ranking.result(trial)
        place = self._ranking.place(trial)
        said = "" if result.finite else f"{no_value_sentence(result)}; "
        sentence = (
            f"{said}every trial runs to the end; "
            f"rank {place.rank} of {place.results} at the full budget, step {self._max_steps}"
        )
        explanation = Explanation(
            rule=self.rule,
            bracket=0,
            rung=0,
            milestone=self._max_steps,
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
