"""The common part of rules that stop a trial on its way: one bracket, a ladder of rungs, and no trial ever waits.

A rung is called a look here: a trial is checked and never paused. At each look a trial continues or is stopped for
good. A rule applies at a look once the grace period is over and there is enough to compare with. Until then every
trial continues. From then on a result without a finite value, which ranks last, is stopped. At the full budget
there is nothing left to stop.
"""

from abc import abstractmethod

from headrace_services.scheduler.core.policies.protocol import (
    Action,
    Explanation,
    Policy,
    Promotion,
    RungResult,
    Verdict,
)
from headrace_services.scheduler.core.policies.ranking import Ranking
from headrace_services.scheduler.core.policies.sentences import figure, no_value_sentence, place_sentence


class StoppingRule(Policy):
    """A ranking at each look, and the questions that every rule asks, in order."""

    rule = ""

    def __init__(self, *, ladder: tuple[int, ...], grace: int, maximize: bool) -> None:
        self._ladder = ladder
        self._grace = grace
        self._sign = -1.0 if maximize else 1.0
        self._rankings = [Ranking(maximize=maximize) for _ in ladder]
        self._top: dict[int, int] = {}

    def ladder(self, bracket: int) -> tuple[int, ...]:
        if bracket != 0:
            raise IndexError(f"there is no bracket {bracket}: {self.rule} has one")
        return self._ladder

    def record(self, result: RungResult) -> None:
        ranking = self._ranking(result.bracket, result.rung)
        if self._top.get(result.trial, -1) >= result.rung:
            raise ValueError(f"trial {result.trial} is at rung {self._top[result.trial]} already")
        ranking.add(result, waits=False)
        self._top[result.trial] = result.rung
        self._fold(result)

    def promoted(self, trial: int, bracket: int, rung: int) -> None:
        self._ranking(bracket, rung).result(trial)

    def withdraw(self, trial: int) -> None:
        """Nothing to do: no trial waits, and the results of a trial that has ended still count."""

    def verdict(self, trial: int, bracket: int, rung: int, *, more: bool = True) -> Verdict:
        del more
        result = self._ranking(bracket, rung).result(trial)
        if rung == len(self._ladder) - 1:
            return self._verdict(result, Action.CONTINUE, "it has reached the full budget")
        lack = self._lack(result)
        if result.milestone < self._grace:
            lack = f"no trial is stopped before {self._grace} steps"
        if lack is not None:
            missing = "" if result.finite else f"{no_value_sentence(result)}, but "
            return self._verdict(result, Action.CONTINUE, f"{missing}{lack}: it continues")
        if not result.finite:
            return self._verdict(result, Action.STOP, f"{no_value_sentence(result)}, so it stops")
        return self._judge(result)

    def next_promotion(self, *, more: bool = True) -> Promotion | None:
        del more
        return None

    @abstractmethod
    def _fold(self, result: RungResult) -> None:
        """Record what the rule itself needs from a result; the ranking at its rung already has the result."""

    def _lack(self, result: RungResult) -> str | None:  # noqa: ARG002  # most rules look at the result
        """What there is too little of to judge a trial, as a clause; None if the rule applies."""
        return None

    @abstractmethod
    def _judge(self, result: RungResult) -> Verdict:
        """Judge a finite result when the rule applies."""

    def _ranking(self, bracket: int, rung: int) -> Ranking:
        if bracket != 0 or not 0 <= rung < len(self._ladder):
            raise ValueError(f"there is no rung {rung} in bracket {bracket}")
        return self._rankings[rung]

    def _verdict(
        self,
        result: RungResult,
        action: Action,
        said: str,
        *,
        kept: int | None = None,
        cutoff: float | None = None,
    ) -> Verdict:
        """A verdict. `kept` counts the results on the good side of `cutoff`; it means nothing without a cutoff."""
        place = self._rankings[result.rung].place(result.trial)
        explanation = Explanation(
            rule=self.rule,
            bracket=0,
            rung=result.rung,
            milestone=result.milestone,
            value=result.value,
            rank=place.rank,
            results=place.results,
            kept=place.results if kept is None else kept,
            cutoff_value=cutoff,
            sentence=f"{said}; {place_sentence(result, place.rank, place.results)}",
        )
        return Verdict(action=action, explanation=explanation)


def percent(share: float) -> str:
    """A share as a percentage with no more digits than it has."""
    return f"{figure(100 * share)}%"
