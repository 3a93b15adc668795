"""Population-based training (Jaderberg et al., arXiv 1711.09846): the worst copy the best, and explore from there.

The population trains side by side and stops every `interval` steps, at its rungs. Before a member goes on from a
rung it is compared with all results at that rung: one among the worst ⌊n·q⌋ *exploits* a random one of the best
⌊n·q⌋. It takes over that member's state, as it was at this very rung, and *explores*: it trains on with a mutated
copy of its hyperparameters. A member whose value is not finite copies the best at any n.

A donor must have a durable checkpoint at the rung, else it is passed over. Members that wait are taken lowest rung
first, so that on fewer slots than members the population stays together and is compared as a whole.

Which member copies whom is a function of the results and the study's seed. What was copied is folded back in
(`exploited`), so that the parameters and the origin of every result are known, in whatever order rows are read.
"""

from fractions import Fraction

import numpy as np
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
    """A population that trades places."""

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
        """The parameters of each member now."""
        self._exploits: dict[int, dict[int, Exploit]] = {}
        self._rung: dict[int, int] = {}
        """Of the members that are not over: the last rung that each was recorded at, -1 before the first."""
        self._waiting: SortedList = SortedList()
        """(rung, arrival, trial) of members that are to go on."""
        self._waits_at: dict[int, tuple[int, int, int]] = {}

    def ladder(self, bracket: int) -> tuple[int, ...]:
        if bracket != 0:
            raise IndexError(f"there is no bracket {bracket}: pbt has one")
        return self._ladder

    def joined(self, trial: int, bracket: int, params: Params) -> None:
        del bracket
        self._params[trial] = params
        self._rung[trial] = -1

    def record(self, result: RungResult) -> None:
        trial, rung = result.trial, result.rung
        ranking = self._ranking(result.bracket, rung)
        if trial in ranking:
            raise ValueError(f"trial {trial} is recorded at rung {rung} already")
        ranking.add(result, waits=False)
        self._stop_waiting(trial)
        if trial not in self._rung:
            return
        self._rung[trial] = rung
        if rung < len(self._ladder) - 1:
            self._waits_at[trial] = (rung, result.arrival, trial)
            self._waiting.add(self._waits_at[trial])

    def promoted(self, trial: int, bracket: int, rung: int) -> None:
        self._ranking(bracket, rung).result(trial)
        if trial in self._waits_at and self._waits_at[trial][0] == rung:
            self._stop_waiting(trial)

    def exploited(self, exploit: Exploit) -> None:
        self._exploits.setdefault(exploit.number, {})[exploit.rung] = exploit
        if exploit.rung == max(self._exploits[exploit.number]):
            self._params[exploit.number] = exploit.params

    def withdraw(self, trial: int) -> None:
        self._rung.pop(trial, None)
        self._stop_waiting(trial)

    def verdict(self, trial: int, bracket: int, rung: int, *, more: bool = True) -> Verdict:
        del more
        result = self._ranking(bracket, rung).result(trial)
        lack = "" if result.finite else f"{no_value_sentence(result)}; "
        explanation = self._explain(result, f"{lack}the population is compared before it goes on")
        return Verdict(action=Action.PAUSE, explanation=explanation)

    def next_promotion(self, *, more: bool = True) -> Promotion | None:
        del more
        if not self._waiting:
            return None
        rung, _, trial = self._waiting[0]
        result = self._rankings[rung].result(trial)
        exploit, sentence = self._exploit(result)
        to_milestone = self._ladder[rung + 1]
        return Promotion(
            trial=trial,
            bracket=result.bracket,
            rung=rung,
            to_milestone=to_milestone,
            explanation=self._explain(result, f"{sentence}, and goes on to {to_milestone} steps"),
            exploit=exploit,
        )

    def pinned(self, trial: int) -> frozenset[str]:
        whole = len(self._params) >= self._population  # else members are to come that begin at rung 0
        behind = max(min(self._rung.values(), default=0), 0) if whole else 0
        own = {ranking.result(trial).checkpoint for ranking in self._rankings[behind:] if trial in ranking}
        lent = {self._origin(member) for member in self._rung}
        return frozenset(checkpoint.uri for checkpoint in own | lent if checkpoint is not None)

    def _ranking(self, bracket: int, rung: int) -> Ranking:
        if bracket != 0 or not 0 <= rung < len(self._ladder):
            raise ValueError(f"there is no rung {rung} in bracket {bracket}")
        return self._rankings[rung]

    def _exploit(self, result: RungResult) -> tuple[Exploit | None, str]:
        """Whom a member copies before it goes on from a rung, if anybody, and why."""
        ranking = self._rankings[result.rung]
        traded = self._traded(result.rung)
        if result.finite and ranking.place(result.trial).rank <= len(ranking) - traded:
            return None, "it keeps its own state"
        donors = [
            donor
            for donor in ranking.best(max(1, traded))
            if ranking.result(donor).finite and donor != result.trial
        ]
        lenders = [donor for donor in donors if ranking.result(donor).checkpoint is not None]
        why = "it is among the worst" if result.finite else no_value_sentence(result)
        if not lenders:
            lack = "no better member is there yet" if not donors else "no donor has a durable checkpoint"
            return None, f"{why}, but {lack}, so it keeps its own state"
        seeds = np.random.SeedSequence(self._exploration.seed, spawn_key=(result.trial, result.rung))
        donor = lenders[int(np.random.Generator(np.random.PCG64(seeds)).integers(len(lenders)))]
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

    def _traded(self, rung: int) -> int:
        """⌊n·q⌋: how many of the results at a rung copy, and how many are copied."""
        return int(len(self._rankings[rung]) * self._quantile)

    def _params_at(self, trial: int, rung: int) -> Params:
        """The parameters with which a trial came to a rung."""
        since = [at for at in self._exploits.get(trial, ()) if at >= rung]
        return self._exploits[trial][min(since)].previous_params if since else self._params[trial]

    def _origin(self, trial: int) -> Checkpoint | None:
        """The checkpoint of another member that a trial still stands on: it saved none of its own since."""
        copied_at = max(self._exploits.get(trial, ()), default=None)
        if copied_at is None:
            return None
        since = self._rankings[copied_at + 1 : self._rung[trial] + 1]
        if any(trial in ranking and ranking.result(trial).checkpoint for ranking in since):
            return None
        return self._exploits[trial][copied_at].checkpoint

    def _stop_waiting(self, trial: int) -> None:
        entry = self._waits_at.pop(trial, None)
        if entry is not None:
            self._waiting.remove(entry)

    def _explain(self, result: RungResult, sentence: str) -> Explanation:
        ranking = self._rankings[result.rung]
        place = ranking.place(result.trial)
        kept = place.results - self._traded(result.rung)
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
