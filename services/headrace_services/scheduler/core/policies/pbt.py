"""Population-based training (Jaderberg et al., arXiv 1711.09846): the worst members copy the best, then explore.

The population trains in parallel and stops every `interval` steps, at its rungs. At each rung it is compared as a
whole: of n members the worst ⌊n·q⌋, but at least one, *exploit* a random one of the best ⌊n·q⌋. Such a member
copies the other's state, as it was at this very rung, and *explores*: it continues with a mutated copy of the
other's hyperparameters. A member whose value is not finite exploits too, however many of those there are.

So a member must wait at a rung for the others, but only while their results can change what happens to it. Let m
members still be on their way to the rung. A member that is better than ⌊(n+m)·q⌋ results keeps its own state
whatever the others report, and continues at once. The worst wait until all have arrived. Members that have failed
or were stopped are not waited for; what they reported counts.

A donor must have a durable checkpoint at the rung; otherwise it is passed over. Members that may continue are
taken from the lowest rung first, and at one rung the best first.

Which member copies which other one depends only on the results and the study's seed. Copies are folded back in
(`exploited`), so that the parameters and the origin of every result are known, in whatever order rows are read.
"""

from fractions import Fraction

from sortedcontainers import SortedList

from headrace.spec import PbtPolicy, StudySpec
from headrace_services.scheduler.core.policies.explore import Exploration
from headrace_services.scheduler.core.policies.protocol import (
    Action,
    Explanation,
    Policy,
    Promotion,
    RungResult,
    Verdict,
)
from headrace_services.scheduler.core.policies.ranking import Ranking
from headrace_services.scheduler.core.policies.sentences import no_value_sentence, place_sentence
from headrace_services.scheduler.core.records import Checkpoint, Exploit, Params
from headrace_services.scheduler.core.sampling import seeded


def make_pbt(spec: StudySpec, policy: PbtPolicy) -> "Pbt":
    """The policy of a study."""
    return Pbt(
        ladder=spec.rungs(),
        population=spec.max_trials,
        quantile=policy.quantile,
        maximize=spec.maximizes(),
        exploration=Exploration(
            space=spec.space,
            mutable=frozenset(policy.mutable or spec.space),
            resample_probability=policy.resample_probability,
            factors=policy.factors,
            seed=spec.seed,
            kept=spec.resources.by.parameter if spec.resources.by else None,
        ),
    )


class Pbt(Policy):
    """A population whose worst members copy the best."""

    rule = "pbt"
    new_trials_first = True

    def __init__(
        self,
        *,
        ladder: tuple[int, ...],
        population: int,
        quantile: float,
        maximize: bool,
        exploration: Exploration,
    ) -> None:
        self._ladder = ladder
        self._population = population
        self._quantile = Fraction(repr(quantile))
        self._exploration = exploration
        self._rankings = [Ranking(maximize=maximize) for _ in ladder]
        self._params: dict[int, Params] = {}
        """The current parameters of each member."""
        self._exploits: dict[int, dict[int, Exploit]] = {}
        self._rung: dict[int, int] = {}
        """The last rung that each unfinished member was recorded at, -1 before the first."""
        self._levels: SortedList = SortedList()
        """These rungs, sorted."""
        self._left: set[int] = set()
        """The rungs from which a member has continued."""
        self._lost: list[SortedList] = [SortedList() for _ in ladder]
        """At each rung: (arrival, trial) of waiting members without a finite value. The rankings have the others."""

    def ladder(self, bracket: int) -> tuple[int, ...]:
        if bracket != 0:
            raise IndexError(f"there is no bracket {bracket}: pbt has one")
        return self._ladder

    def joined(self, trial: int, bracket: int, params: Params) -> None:
        del bracket
        self._params[trial] = params
        self._rung[trial] = -1
        self._levels.add(-1)

    def record(self, result: RungResult) -> None:
        trial, rung = result.trial, result.rung
        ranking = self._ranking(result.bracket, rung)
        if trial in ranking:
            raise ValueError(f"trial {trial} is recorded at rung {rung} already")
        waits = trial in self._rung and rung < len(self._ladder) - 1
        ranking.add(result, waits=waits)
        if trial not in self._rung:
            return
        self._stop_waiting(trial, self._rung[trial])
        self._levels.remove(self._rung[trial])
        self._levels.add(rung)
        self._rung[trial] = rung
        if waits and not result.finite:
            self._lost[rung].add((result.arrival, trial))

    def promoted(self, trial: int, bracket: int, rung: int) -> None:
        self._ranking(bracket, rung).result(trial)
        self._stop_waiting(trial, rung)
        self._left.add(rung)

    def left(self, rung: int) -> bool:
        """Whether a member has continued from a rung."""
        return rung in self._left

    def exploited(self, exploit: Exploit) -> None:
        self._exploits.setdefault(exploit.number, {})[exploit.rung] = exploit
        if exploit.rung == max(self._exploits[exploit.number]):
            self._params[exploit.number] = exploit.params

    def withdraw(self, trial: int) -> None:
        rung = self._rung.pop(trial, None)
        if rung is not None:
            self._levels.remove(rung)
            self._stop_waiting(trial, rung)

    def verdict(self, trial: int, bracket: int, rung: int, *, more: bool = True) -> Verdict:
        result = self._ranking(bracket, rung).result(trial)
        missing = self._missing(rung, more=more)
        said = "" if result.finite else f"{no_value_sentence(result)}; "
        if missing and not self._is_safe(trial, rung, missing):
            worst = self._traded(rung, missing)
            others = f"{missing} more member{'s' * (missing > 1)}"
            said += f"it may be among the worst {f'{worst} ' * (worst > 1)}and waits for {others} of the population"
        else:
            said += "the population is compared before it continues"
        return Verdict(action=Action.PAUSE, explanation=self._explain(result, said, missing))

    def next_promotion(self, *, more: bool = True) -> Promotion | None:
        """O(rungs · log n)."""
        for rung in range(len(self._ladder) - 1):
            missing = self._missing(rung, more=more)
            trial = self._first_to_go(rung, missing)
            if trial is not None:
                return self._promotion(trial, rung, missing)
        return None

    def pinned(self, trial: int) -> frozenset[str]:
        # otherwise there are members to come that start at rung 0
        whole = len(self._params) >= self._population
        behind = max(self._levels[0], 0) if whole and self._levels else 0
        own = {ranking.result(trial).checkpoint for ranking in self._rankings[behind:] if trial in ranking}
        lent = {self._origin(member) for member in self._rung}
        return frozenset(checkpoint.uri for checkpoint in own | lent if checkpoint is not None)

    def _ranking(self, bracket: int, rung: int) -> Ranking:
        if bracket != 0 or not 0 <= rung < len(self._ladder):
            raise ValueError(f"there is no rung {rung} in bracket {bracket}")
        return self._rankings[rung]

    def _missing(self, rung: int, *, more: bool) -> int:
        """How many members have still to reach a rung, including those that were not proposed yet."""
        to_join = max(0, self._population - len(self._params)) if more else 0
        return int(self._levels.bisect_left(rung)) + to_join

    def _first_to_go(self, rung: int, missing: int) -> int | None:
        """The first member that may continue from a rung: the best waiting one, if its outcome is certain."""
        best = self._rankings[rung].best_waiting()
        if best is not None and (not missing or self._is_safe(best, rung, missing)):
            return best
        lost = self._lost[rung]
        return int(lost[0][1]) if lost and not missing else None

    def _is_safe(self, trial: int, rung: int, missing: int) -> bool:
        """Whether a member keeps its own state, whatever the members report that have yet to arrive."""
        ranking = self._rankings[rung]
        behind = len(ranking) - ranking.place(trial).rank
        return ranking.result(trial).finite and behind >= self._traded(rung, missing)

    def _promotion(self, trial: int, rung: int, missing: int) -> Promotion:
        result = self._rankings[rung].result(trial)
        exploit, sentence = self._exploit(result, missing)
        to_milestone = self._ladder[rung + 1]
        explanation = self._explain(result, f"{sentence}, and continues to {to_milestone} steps", missing)
        return Promotion(
            trial=trial,
            bracket=result.bracket,
            rung=rung,
            to_milestone=to_milestone,
            explanation=explanation,
            exploit=exploit,
        )

    def _exploit(self, result: RungResult, missing: int) -> tuple[Exploit | None, str]:
        """The exploit of a member before it continues from a rung, if any, and the reason."""
        ranking = self._rankings[result.rung]
        traded = self._traded(result.rung, missing)
        if self._is_safe(result.trial, result.rung, missing):
            return None, "it keeps its own state" + (", whatever the others report" if missing else "")
        donors = [
            donor for donor in ranking.best(traded) if ranking.result(donor).finite and donor != result.trial
        ]
        lenders = [donor for donor in donors if ranking.result(donor).checkpoint is not None]
        why = "it is among the worst" if result.finite else no_value_sentence(result)
        if not lenders:
            lack = "there is no better member yet" if not donors else "no donor has a durable checkpoint"
            return None, f"{why}, but {lack}, so it keeps its own state"
        generator = seeded(self._exploration.seed, result.trial, result.rung)
        donor = lenders[int(generator.integers(len(lenders)))]
        best = ranking.result(donor)
        assert best.checkpoint is not None
        own = self._params_at(result.trial, result.rung)
        params = self._exploration.mutate(
            self._params_at(donor, result.rung), own=own, trial=result.trial, rung=result.rung
        )
        exploit = Exploit(
            number=result.trial,
            rung=result.rung,
            donor=donor,
            checkpoint=best.checkpoint,
            donor_value=best.value,
            previous_params=own,
            params=params,
        )
        return exploit, f"{why}: it takes over trial {donor} (value {best.value:.4g}), mutated"

    def _traded(self, rung: int, missing: int) -> int:
        """⌊n·q⌋, but at least one: how many of n members copy at a rung, and how many are copied. 0 for a single
        member."""
        members = len(self._rankings[rung]) + missing
        return max(1, int(members * self._quantile)) if members > 1 else 0

    def _params_at(self, trial: int, rung: int) -> Params:
        """The parameters with which a trial reached a rung."""
        since = [at for at in self._exploits.get(trial, ()) if at >= rung]
        return self._exploits[trial][min(since)].previous_params if since else self._params[trial]

    def _origin(self, trial: int) -> Checkpoint | None:
        """The checkpoint of another member that a trial still depends on, because it has saved none of its own
        since."""
        copied_at = max(self._exploits.get(trial, ()), default=None)
        if copied_at is None:
            return None
        since = self._rankings[copied_at + 1 : self._rung[trial] + 1]
        if any(trial in ranking and ranking.result(trial).checkpoint for ranking in since):
            return None
        return self._exploits[trial][copied_at].checkpoint

    def _stop_waiting(self, trial: int, rung: int) -> None:
        if rung >= 0:
            ranking = self._rankings[rung]
            ranking.leave(trial)
            self._lost[rung].discard((ranking.result(trial).arrival, trial))

    def _explain(self, result: RungResult, sentence: str, missing: int) -> Explanation:
        ranking = self._rankings[result.rung]
        place = ranking.place(result.trial)
        kept = max(0, place.results - self._traded(result.rung, missing))
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
            sentence=f"{sentence}; {place_sentence(result, place.rank, place.results)}",
        )
