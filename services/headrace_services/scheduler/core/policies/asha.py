"""Asynchronous successive halving in both variants (Li et al., arXiv 1810.05934, algorithm 2).

**Promotion.** A trial that reaches a rung waits there. Whenever a slot is free, the rungs are scanned from the
highest milestone down (brackets with the same milestone in order of their numbers). The candidates at a rung with
n results are its best ⌊n/η⌋ that were not promoted yet, and the best of them is promoted. No decision is final: a
trial that is not among the best now may be among them after more results.

A study ends with a trial that had the full budget. If no more results can arrive (no further configurations, and
no trial in training), no candidate is left and no trial has reached the last rung, the best one that waits at the
highest rung is promoted anyway. ⌊n/η⌋ is meant for an endless stream: of 150 trials over six rungs with η=3 the
last rung would get ⌊1/3⌋ = 0, and the winner would be known from half of its training. (Decision 0020.) If that
trial fails, is infeasible, is cancelled or has no value at the last rung, the next best one is promoted, until one
has succeeded or none is left. (Decision 0143.) If its program ends by itself before the last rung, no other trial
gets this chance, because all programs may end that way. With effort, many trials continue that are not among the
best. Then no trial gets this chance at or below a rung after which a program that continued has ended by itself.
(Decision 0119.)

**Optimistic arrival** (promotion only). A trial that arrives among the best 1/η of the results so far continues at
once, and so does every trial while there are fewer than η results. The first arrivals run far without being
selected, which hedges against misleading early ranks. Any other trial waits, as usual.

**Effort** (promotion only). If no promotion is left, no configuration is new, and no trial is in training whose
result may lead to a promotion, waiting trials continue until a share of run-all's cost is committed: see `effort`.
(Decision 0087.)

**Stopping.** At a rung a trial continues iff it is among the best max(1, ⌊n/η⌋) of the n results there, including
its own; otherwise it is stopped. A result that equals the last one kept is kept too: the rule stops what is worse
than the cutoff, which a tie is not. (In promotion, which gives out a number of places, ties go by arrival.)

With 243 results arriving in worsening order and η=3, promotion keeps 81 and stopping 1. With 243 equal ones
promotion keeps 81 and stopping 243. That is why promotion is the default.

If a report crosses several milestones, its trial counts as promoted from the rungs below.
"""

from headrace.spec import AshaArrival, AshaPolicy, AshaVariant, StudySpec
from headrace_services.scheduler.core.brackets import draw_bracket
from headrace_services.scheduler.core.policies.effort import Effort
from headrace_services.scheduler.core.policies.protocol import (
    Action,
    Explanation,
    Policy,
    Promotion,
    RungResult,
    Verdict,
)
from headrace_services.scheduler.core.policies.ranking import Place, Ranking
from headrace_services.scheduler.core.policies.sentences import compare_sentence, no_value_sentence, standing
from headrace_services.scheduler.core.records import Params


def make_asha(spec: StudySpec, policy: AshaPolicy) -> Policy:
    """The variant that the spec names."""
    levels = spec.rungs()
    ladders = tuple(levels[bracket:] for bracket in range(policy.brackets))
    drawn_from = len(policy.ladder(spec.budgets[0]))
    maximize = spec.maximizes()
    if policy.variant is AshaVariant.STOPPING:
        return AshaStopping(
            ladders=ladders, eta=policy.eta, maximize=maximize, seed=spec.seed, drawn_from=drawn_from
        )
    return AshaPromotion(
        ladders=ladders,
        eta=policy.eta,
        maximize=maximize,
        seed=spec.seed,
        drawn_from=drawn_from,
        optimistic=policy.arrival is AshaArrival.OPTIMISTIC,
        effort=Effort(share=policy.effort, full=spec.max_steps) if policy.effort else None,
    )


class _Asha(Policy):
    """The common part of the variants: a ranking per rung, and the place of each trial."""

    rule = "asha"

    def __init__(
        self,
        *,
        ladders: tuple[tuple[int, ...], ...],
        eta: int,
        maximize: bool,
        seed: int = 0,
        drawn_from: int | None = None,
    ) -> None:
        """`drawn_from`: the number of levels that brackets are drawn with, if an extension has added levels since."""
        self._ladders = ladders
        self._drawn_from = drawn_from or len(ladders[0])
        self._seed = seed
        self._eta = eta
        self._rungs = {
            (bracket, rung): Ranking(maximize=maximize)
            for bracket, ladder in enumerate(ladders)
            for rung in range(len(ladder))
        }
        self._places = {place: place for place in self._rungs}  # one tuple for all trials of a rung
        # All rungs but the last of each bracket, the highest milestone first.
        self._promotable_from = sorted(
            (place for place in self._rungs if place[1] < len(ladders[place[0]]) - 1),
            key=lambda place: (-ladders[place[0]][place[1]], place[0]),
        )
        self._top: dict[int, tuple[int, int]] = {}
        self._waits_at: dict[int, tuple[int, int]] = {}
        self._withdrawn: set[int] = set()
        self._finished_early: set[int] = set()
        self._in_training: set[int] = set()
        self._last: int | None = None
        """The last trial that continued although it was not among the best ⌊n/η⌋."""

    @property
    def brackets(self) -> int:
        return len(self._ladders)

    def bracket(self, number: int) -> int:
        if self.brackets == 1:
            return 0
        return draw_bracket(self._seed, number, self.brackets, levels=self._drawn_from, eta=self._eta)

    def ladder(self, bracket: int) -> tuple[int, ...]:
        return self._ladders[bracket]

    def joined(self, trial: int, bracket: int, params: Params) -> None:
        del bracket, params
        if trial not in self._withdrawn and trial not in self._top:
            self._in_training.add(trial)

    def record(self, result: RungResult) -> None:
        place = self._places.get((result.bracket, result.rung))
        if place is None:
            raise ValueError(f"there is no rung {result.rung} in bracket {result.bracket}")
        last = self._top.get(result.trial)
        if last is not None and (last[0] != result.bracket or last[1] >= result.rung):
            raise ValueError(f"trial {result.trial} is at rung {last[1]} of bracket {last[0]} already")
        self._rungs[place].add(result, waits=result.trial not in self._withdrawn)
        self._stop_waiting(result.trial)
        self._top[result.trial] = self._waits_at[result.trial] = place
        self._in_training.discard(result.trial)

    def promoted(self, trial: int, bracket: int, rung: int) -> None:
        self._ranking(bracket, rung).result(trial)
        if self._waits_at.get(trial) == (bracket, rung):
            if self._beyond(trial, bracket, rung):
                self._last = trial
            self._stop_waiting(trial)
            if trial not in self._withdrawn:
                self._in_training.add(trial)

    def finished_early(self, trial: int) -> None:
        if trial in self._in_training:
            self._finished_early.add(trial)

    def withdraw(self, trial: int) -> None:
        self._withdrawn.add(trial)
        self._in_training.discard(trial)
        if trial in self._waits_at:
            self._rungs[self._waits_at[trial]].leave(trial)

    def _beyond(self, trial: int, bracket: int, rung: int) -> bool:
        """Whether a trial that continues is not among the best 1/η of its rung."""
        place = self._rungs[bracket, rung].place(trial)
        return place.rank > place.results // self._eta

    def _finished(self) -> bool:
        """Whether a trial has reached the last rung with a value."""
        return any(
            self._rungs[bracket, len(ladder) - 1].value_at(1) is not None
            for bracket, ladder in enumerate(self._ladders)
        )

    def _stop_waiting(self, trial: int) -> None:
        place = self._waits_at.pop(trial, None)
        if place is not None:
            self._rungs[place].leave(trial)

    def _ranking(self, bracket: int, rung: int) -> Ranking:
        try:
            return self._rungs[bracket, rung]
        except KeyError:
            raise ValueError(f"there is no rung {rung} in bracket {bracket}") from None

    def _explain(self, result: RungResult, place: Place, rank: int, kept: int, sentence: str) -> Explanation:
        return Explanation(
            rule=self.rule,
            bracket=result.bracket,
            rung=result.rung,
            milestone=result.milestone,
            value=result.value,
            rank=rank,
            results=place.results,
            kept=kept,
            cutoff_value=self._rungs[result.bracket, result.rung].value_at(kept),
            sentence=sentence,
        )


class AshaPromotion(_Asha):
    """A trial waits at each rung until it is among the best there."""

    rule = "asha_promotion"

    def __init__(
        self,
        *,
        ladders: tuple[tuple[int, ...], ...],
        eta: int,
        maximize: bool,
        seed: int = 0,
        drawn_from: int | None = None,
        optimistic: bool = False,
        effort: Effort | None = None,
    ) -> None:
        super().__init__(ladders=ladders, eta=eta, maximize=maximize, seed=seed, drawn_from=drawn_from)
        self._optimistic = optimistic
        self._effort = effort
        self._ended_beyond = 0
        """The highest milestone after which a program ended by itself on its way to the next."""

    def joined(self, trial: int, bracket: int, params: Params) -> None:
        super().joined(trial, bracket, params)
        if self._effort is not None:
            self._effort.joined(trial)
            if trial in self._in_training:
                self._effort.runs_to(trial, self._ladders[bracket][0])

    def record(self, result: RungResult) -> None:
        super().record(result)
        if self._effort is not None:
            self._effort.runs_to(result.trial, result.milestone)
            self._effort.trains.discard(result.trial)

    def promoted(self, trial: int, bracket: int, rung: int) -> None:
        waits = self._waits_at.get(trial) == (bracket, rung)
        beyond = waits and self._beyond(trial, bracket, rung)
        super().promoted(trial, bracket, rung)
        if self._effort is not None and waits and trial in self._in_training:
            ladder = self._ladders[bracket]
            self._effort.runs_to(trial, ladder[min(rung + 1, len(ladder) - 1)])
            if beyond:
                self._effort.given += 1
                self._effort.trains.add(trial)

    def finished_early(self, trial: int) -> None:
        super().finished_early(trial)
        top = self._top.get(trial)
        if top is not None and trial in self._in_training:
            self._ended_beyond = max(self._ended_beyond, self._ladders[top[0]][top[1]])

    def withdraw(self, trial: int) -> None:
        super().withdraw(trial)
        if self._effort is not None:
            self._effort.trains.discard(trial)

    def verdict(self, trial: int, bracket: int, rung: int, *, more: bool = True) -> Verdict:
        del more
        ranking = self._ranking(bracket, rung)
        result = ranking.result(trial)
        place = ranking.place(trial)
        kept = place.results // self._eta
        head = standing(result, place.rank, place.results, kept)
        if self._waits_at.get(trial) != (bracket, rung):
            sentence = f"the trial is past this rung already; {head}"
            action = Action.CONTINUE
        elif not result.finite:
            sentence = f"{no_value_sentence(result)}, so it is never promoted; {head}"
            action = Action.PAUSE
        elif self._goes_on(place):
            sentence = f"{self._why_at_once(result, ranking, place, kept)}; {head}"
            action = Action.CONTINUE
        else:
            compared = compare_sentence(result.value, ranking.value_at(kept), place.rank, kept)
            turn = ", so it continues when it reaches the front of the queue" if place.rank <= kept else ""
            sentence = f"{compared}{turn}; {head}"
            action = Action.PAUSE
        return Verdict(action=action, explanation=self._explain(result, place, place.rank, kept, sentence))

    def next_promotion(self, *, more: bool = True) -> Promotion | None:
        for bracket, rung in self._promotable_from:
            ranking = self._rungs[bracket, rung]
            kept = len(ranking) // self._eta
            trial = ranking.best_waiting() if kept else None
            if trial is not None and ranking.place(trial).rank <= kept:
                why = "it is the best trial not promoted yet, so it is promoted"
                return self._promotion(trial, bracket, rung, kept, why)
        if more:
            return None
        if self._effort is not None and len(self._in_training) == len(self._effort.trains):
            promotion = self._by_effort(self._effort)
            if promotion is not None:
                return promotion
        if self._in_training or self._finished():
            return None
        return self._last_promotion()

    def _goes_on(self, place: Place) -> bool:
        """Whether a trial continues because of its arrival alone."""
        return self._optimistic and (place.results < self._eta or place.rank <= place.results // self._eta)

    def _why_at_once(self, result: RungResult, ranking: Ranking, place: Place, kept: int) -> str:
        if kept:
            compared = compare_sentence(result.value, ranking.value_at(kept), place.rank, kept)
            return f"{compared} of the results so far, so it continues at once"
        return f"fewer than {self._eta} results to compare with, so it continues at once"

    def _beyond(self, trial: int, bracket: int, rung: int) -> bool:
        place = self._ranking(bracket, rung).place(trial)
        early = self._optimistic and place.results < self._eta
        return super()._beyond(trial, bracket, rung) and not early

    def _by_effort(self, effort: Effort) -> Promotion | None:
        """Take turns: the trial with the best quantile at its rung, then the oldest one."""
        likely = effort.given % 2 == 0
        waiting: list[tuple[float, int, int, int]] = []
        for order, (bracket, rung) in enumerate(self._promotable_from):
            ranking, ladder = self._rungs[bracket, rung], self._ladders[bracket]
            trial = ranking.best_waiting() if likely else ranking.first_waiting()
            if trial is not None and effort.covers(ladder[rung + 1] - ladder[rung]):
                quantile = ranking.place(trial).rank / len(ranking)
                waiting.append((quantile if likely else trial, order, trial, rung))
        if not waiting:
            return None
        _, order, trial, rung = min(waiting)
        which = "the one with the best quantile at its rung" if likely else "the oldest one, a blind pick,"
        bracket = self._promotable_from[order][0]
        why = f"no promotion is left and {effort.sentence()}: {which} continues"
        return self._promotion(trial, bracket, rung, len(self._rungs[bracket, rung]) // self._eta, why)

    def _last_promotion(self) -> Promotion | None:
        """The best trial of the highest rung, once no other one will be compared with it any more."""
        for bracket, rung in self._promotable_from:
            trial = self._rungs[bracket, rung].best_waiting()
            if trial is not None:
                if self._chance_is_over(self._ladders[bracket][rung]):
                    return None
                why = "no more results are expected and no trial reached the full budget, so the best one continues"
                return self._promotion(
                    trial, bracket, rung, len(self._rungs[bracket, rung]) // self._eta, why
                )
        return None

    def _chance_is_over(self, milestone: int) -> bool:
        """Whether the program of a trial that had this chance, or got as far, ended by itself."""
        if self._effort is None:
            return self._last in self._finished_early
        return self._ended_beyond >= milestone

    def _promotion(self, trial: int, bracket: int, rung: int, kept: int, why: str) -> Promotion:
        ranking = self._rungs[bracket, rung]
        result, place = ranking.result(trial), ranking.place(trial)
        to_milestone = self._ladders[bracket][rung + 1]
        sentence = f"{why} to {to_milestone} steps; {standing(result, place.rank, place.results, kept)}"
        return Promotion(
            trial=trial,
            bracket=bracket,
            rung=rung,
            to_milestone=to_milestone,
            explanation=self._explain(result, place, place.rank, kept, sentence),
        )


class AshaStopping(_Asha):
    """A trial continues at once or is stopped for good."""

    rule = "asha_stopping"

    def verdict(self, trial: int, bracket: int, rung: int, *, more: bool = True) -> Verdict:
        del more
        ranking = self._ranking(bracket, rung)
        result = ranking.result(trial)
        place = ranking.place(trial)
        kept = max(1, place.results // self._eta)
        head = standing(result, place.level, place.results, kept)
        if not result.finite:
            action = Action.STOP
            sentence = f"{no_value_sentence(result)}, so it stops; {head}"
        else:
            action = Action.CONTINUE if place.level <= kept else Action.STOP
            compared = compare_sentence(result.value, ranking.value_at(kept), place.level, kept)
            sentence = f"{compared}; {head}"
        return Verdict(action=action, explanation=self._explain(result, place, place.level, kept, sentence))

    def next_promotion(self, *, more: bool = True) -> Promotion | None:
        del more
        return None
