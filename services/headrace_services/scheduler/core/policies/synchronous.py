"""Synchronous successive halving, in one bracket or in Hyperband's.

**Successive halving** (Jamieson and Talwalkar, arXiv 1502.07943): trials compete in cohorts, see `cohort`. A trial
that reaches a rung waits there for the rest of its cohort.

**Hyperband** (Li et al., JMLR 18, algorithm 1): bracket s = s_max, …, 0 is successive halving with n =
⌈(s_max+1)/(s+1)·η^s⌉ trials whose first rung is max_steps/η^s. The trials of a study fill the brackets one after
the other, the most aggressive first, and then start again. A study with fewer trials than one round gives every
bracket its share of them, so that it, too, hedges between aggressive and cautious brackets. No bracket waits for
another: while one waits at a barrier, the next ones get the slots. So a worker is idle only when no trial of any
cohort may run and no new one can start.

A cohort at the end of a study may never be full. Once there are no more trials to come, it is decided with those
that it has. A trial that a user adds later joins the last cohort, which then counts one more member.

Every question and every fold is O(L log n) for L rungs: the cohorts that have a place to give are kept sorted.
Only when nothing is left to run are all cohorts checked, for one without a winner.
"""

from bisect import bisect_right
from itertools import accumulate, pairwise

from sortedcontainers import SortedSet

from headrace.spec import HyperbandPolicy, StudySpec, SuccessiveHalvingPolicy
from headrace_services.scheduler.core.brackets import bracket_weights
from headrace_services.scheduler.core.policies.cohort import Cohort
from headrace_services.scheduler.core.policies.protocol import (
    Action,
    Explanation,
    Policy,
    Promotion,
    RungResult,
    Verdict,
)
from headrace_services.scheduler.core.policies.sentences import (
    compare_sentence,
    no_value_sentence,
    place_sentence,
)
from headrace_services.scheduler.core.records import Params

_Ready = tuple[int, int, int, int]
"""(-milestone, bracket, cohort, rung): the natural order is the order of promotions."""


def make_successive_halving(spec: StudySpec, policy: SuccessiveHalvingPolicy) -> "Synchronous":
    """One bracket."""
    return Synchronous(
        rule="successive_halving",
        ladders=(spec.rungs(),),
        sizes=(policy.cohort_size(spec.budgets[0]),),
        eta=policy.eta,
        maximize=spec.maximizes(),
        first_number=_first_number(spec),
    )


def make_hyperband(spec: StudySpec, policy: HyperbandPolicy) -> "Synchronous":
    """A bracket for each rung; bracket b is the paper's s = s_max - b.

    An extended study keeps its brackets and their sizes: its further trials are further rounds, and its further
    rungs come after those of each bracket.
    """
    levels, brackets = spec.rungs(), len(policy.ladder(spec.budgets[0]))
    return Synchronous(
        rule="hyperband",
        ladders=tuple(levels[bracket:] for bracket in range(brackets)),
        sizes=_shares(bracket_weights(brackets, brackets, policy.eta), spec.first_trials),
        eta=policy.eta,
        maximize=spec.maximizes(),
        first_number=_first_number(spec),
    )


def _shares(sizes: tuple[int, ...], trials: int) -> tuple[int, ...]:
    """The sizes of the brackets, reduced in proportion if there are fewer trials than one iteration has."""
    ends = [0, *accumulate(sizes)]
    if trials >= ends[-1]:
        return sizes
    # Rounded half up, in integers.
    shares = [(2 * end * trials + ends[-1]) // (2 * ends[-1]) for end in ends]
    return tuple(end - start for start, end in pairwise(shares))


def _first_number(spec: StudySpec) -> int:
    return 0 if spec.baseline is None else 1


class Synchronous(Policy):
    """Cohorts of trials in one or several brackets."""

    def __init__(
        self,
        *,
        rule: str,
        ladders: tuple[tuple[int, ...], ...],
        sizes: tuple[int, ...],
        eta: int,
        maximize: bool,
        first_number: int,
    ) -> None:
        self.rule = rule
        self._ladders = ladders
        self._sizes = sizes
        self._starts = tuple(accumulate(sizes))
        self._eta = eta
        self._maximize = maximize
        self._first_number = first_number
        self._cohorts: list[list[Cohort]] = [[] for _ in ladders]
        self._cohort_of: dict[int, Cohort] = {}
        self._over: set[int] = set()
        self._in_training: set[int] = set()
        self._ready: dict[bool, SortedSet] = {True: SortedSet(), False: SortedSet()}
        """The places to give, by whether more trials are to come."""

    @property
    def brackets(self) -> int:
        return len(self._ladders)

    def bracket(self, number: int) -> int:
        return bisect_right(self._starts, (number - self._first_number) % self._starts[-1])

    def ladder(self, bracket: int) -> tuple[int, ...]:
        return self._ladders[bracket]

    def joined(self, trial: int, bracket: int, params: Params) -> None:
        del params
        cohorts = self._cohorts[bracket]
        if not cohorts or not cohorts[-1].has_room:
            cohorts.append(
                Cohort(
                    bracket=bracket,
                    index=len(cohorts),
                    size=self._sizes[bracket],
                    rungs=len(self._ladders[bracket]),
                    eta=self._eta,
                    maximize=self._maximize,
                )
            )
        cohort = self._cohort_of[trial] = cohorts[-1]
        if trial in self._over:
            cohort.withdraw(trial)
        else:
            self._in_training.add(trial)
        cohort.join(trial)
        self._refresh(cohort)

    def record(self, result: RungResult) -> None:
        cohort = self._cohort(result.trial, result.bracket, result.rung)
        cohort.record(result)
        self._in_training.discard(result.trial)
        self._refresh(cohort)

    def promoted(self, trial: int, bracket: int, rung: int) -> None:
        cohort = self._cohort(trial, bracket, rung)
        if cohort.rungs[rung].ranking.waiting_rank(trial) is not None:
            self._in_training.add(trial)
        cohort.promoted(trial, rung)
        self._refresh(cohort)

    def finished_early(self, trial: int) -> None:
        cohort = self._cohort_of.get(trial)
        if cohort is not None:
            cohort.finished_early(trial)

    def withdraw(self, trial: int) -> None:
        self._over.add(trial)
        self._in_training.discard(trial)
        cohort = self._cohort_of.get(trial)
        if cohort is not None:
            cohort.withdraw(trial)
            self._refresh(cohort)

    def verdict(self, trial: int, bracket: int, rung: int, *, more: bool = True) -> Verdict:
        cohort = self._cohort(trial, bracket, rung)
        place = cohort.rungs[rung]
        result = place.ranking.result(trial)
        action = Action.PAUSE
        if trial in place.past or rung == len(self._ladders[bracket]) - 1:
            action = Action.CONTINUE
            said = (
                "the trial is past this rung already"
                if trial in place.past
                else "it has reached the full budget"
            )
        elif not result.finite:
            said = f"{no_value_sentence(result)}, so it is never promoted"
        elif not cohort.decided(rung, more=more):
            missing = cohort.expected(rung, more=more) - place.settled
            said = f"it waits for {missing} more {'trial' if missing == 1 else 'trials'} of its cohort"
        else:
            kept = cohort.places(len(place.members))
            rank = place.ranking.place(trial).rank
            said = compare_sentence(result.value, place.ranking.value_at(kept), rank, kept)
            ahead = place.ranking.waiting_rank(trial)
            if ahead is not None and ahead <= cohort.free_places(rung, more=more):
                action = Action.CONTINUE
                said = f"{said}: it continues to {self._ladders[bracket][rung + 1]} steps"
            else:
                said = f"{said}: it waits in case a better one drops out"
        return Verdict(action=action, explanation=self._explain(cohort, result, said, more=more))

    def next_promotion(self, *, more: bool = True) -> Promotion | None:
        if ready := self._ready[more]:
            _, bracket, index, rung = ready[0]
            place = self._cohorts[bracket][index].rungs[rung]
            lost = len(place.without_result)
            without = f" ({lost} of them without a result)" if lost else ""
            best = "it is the best trial not promoted yet and"
            why = f"all {len(place.members)} of its cohort have reported{without}; {best}"
            return self._promotion(bracket, index, rung, why, more=more)
        if more or self._in_training:
            return None
        chances = [
            (-self._ladders[bracket][rung], bracket, index, rung)
            for bracket, cohorts in enumerate(self._cohorts)
            for index, cohort in enumerate(cohorts)
            if (rung := cohort.last_chance()) is not None
        ]
        if not chances:
            return None
        _, bracket, index, rung = min(chances)
        why = "none that was promoted in its cohort can reach the full budget any more, so the next best one"
        return self._promotion(bracket, index, rung, why, more=more)

    def _promotion(self, bracket: int, index: int, rung: int, why: str, *, more: bool) -> Promotion:
        cohort = self._cohorts[bracket][index]
        place = cohort.rungs[rung]
        trial = place.ranking.best_waiting()
        assert trial is not None
        to_milestone = self._ladders[bracket][rung + 1]
        said = f"{why} continues to {to_milestone} steps"
        return Promotion(
            trial=trial,
            bracket=bracket,
            rung=rung,
            to_milestone=to_milestone,
            explanation=self._explain(cohort, place.ranking.result(trial), said, more=more),
        )

    def _cohort(self, trial: int, bracket: int, rung: int) -> Cohort:
        if not (0 <= bracket < len(self._ladders) and 0 <= rung < len(self._ladders[bracket])):
            raise ValueError(f"there is no rung {rung} in bracket {bracket}")
        cohort = self._cohort_of.get(trial)
        if cohort is None or cohort.bracket != bracket:
            raise ValueError(f"trial {trial} is not recorded in bracket {bracket}: it never joined it")
        return cohort

    def _refresh(self, cohort: Cohort) -> None:
        """Add a cohort's rungs to those with a place to give, or remove them."""
        ladder = self._ladders[cohort.bracket]
        for more, ready in self._ready.items():
            giving = set(cohort.giving(more=more))
            for rung in range(len(ladder) - 1):
                entry: _Ready = (-ladder[rung], cohort.bracket, cohort.index, rung)
                if rung in giving:
                    ready.add(entry)
                else:
                    ready.discard(entry)

    def _explain(self, cohort: Cohort, result: RungResult, said: str, *, more: bool) -> Explanation:
        ranking = cohort.rungs[result.rung].ranking
        place = ranking.place(result.trial)
        top = result.rung == len(self._ladders[cohort.bracket]) - 1
        expected = cohort.expected(result.rung, more=more)
        kept = expected if top else cohort.places(expected)
        head = place_sentence(result, place.rank, place.results)
        keeps = "the best one is promoted" if kept == 1 else f"the best {kept} of {expected} are promoted"
        goal = "" if top else f", where {keeps}"
        return Explanation(
            rule=self.rule,
            bracket=result.bracket,
            rung=result.rung,
            milestone=result.milestone,
            value=result.value,
            rank=place.rank,
            results=place.results,
            kept=kept,
            cutoff_value=ranking.value_at(kept),
            sentence=f"{said}; {head} of cohort {cohort.index}{goal}",
        )
