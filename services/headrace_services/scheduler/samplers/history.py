"""What a model-based sampler is given: results in the order of their arrival, and trials that have none yet.

Values are those at one *level*, a number of steps: results of trials that ran for different times cannot be
compared. With a policy that stops trials early there are many results at the low levels and few at the top, so the
model is fed from the highest level that has enough of them (as in BOHB, Falkner et al., ICML 2018). A trial that
is on its way to that level is pending. A trial that waits at a lower rung is neither a result nor pending.

A model over configuration and budget is fed the results at every rung that a trial crossed.

Evolutionary samplers work in generations, and a generation is over when its trials have results. They are fed each
trial's first result, at the first rung that it crossed.
"""

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, isfinite, nan

from headrace.spec import (
    AshaPolicy,
    CmaEsSampler,
    HyperbandPolicy,
    MultiFidelitySampler,
    Nsga2Sampler,
    Nsga3Sampler,
    StartsWithDraws,
    StudySpec,
)
from headrace_services.scheduler.core.records import Params

FIRST_RESULT = 0
"""The level that stands for "each trial's first result"."""
EVERY_RUNG = -1
"""The level that stands for the results at all rungs (`told_levels`). Trials without any are pending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One trial's result at a level."""

    params: Params
    values: tuple[float, ...]
    """By objective; NaN if the metric was missing."""
    excesses: tuple[float, ...] = ()
    """By constraint: by how much the bound was exceeded; at most 0 if it was met."""
    generation: int | None = None
    """The generation that an evolutionary sampler proposed the trial for."""
    level: int = FIRST_RESULT
    """In steps, if results at several levels are used."""

    @classmethod
    def of(
        cls,
        spec: StudySpec,
        params: Params,
        metrics: Mapping[str, float],
        generation: int | None = None,
        *,
        level: int = FIRST_RESULT,
    ) -> "Result":
        """The values of a trial's metrics for the objectives and the constraints of a study."""
        return cls(
            params=params,
            values=tuple(metrics.get(objective.metric, nan) for objective in spec.objectives),
            excesses=tuple(
                constraint.excess(metrics.get(constraint.metric)) for constraint in spec.constraints
            ),
            generation=generation,
            level=level,
        )

    @property
    def finite(self) -> bool:
        """Whether every objective has a finite value."""
        return all(isfinite(value) for value in self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The data for one proposal of a sampler."""

    level: int
    """In steps; `FIRST_RESULT` for evolutionary samplers, `EVERY_RUNG` for a model over all of them."""
    results: Sequence[Result]
    """In the order of arrival. A longer history of the same study and level starts with a shorter one."""
    pending: Sequence[Params] = ()
    """Configurations whose results at the level are still to arrive, by trial number."""
    warm: Sequence[Result] = ()
    """Results of an earlier study at the level, the best first."""


NOTHING = History(level=FIRST_RESULT, results=())
"""The history of a study without results."""


def is_evolutionary(spec: StudySpec) -> bool:
    """Whether the sampler works in generations."""
    return isinstance(spec.sampler, CmaEsSampler | Nsga2Sampler | Nsga3Sampler)


def enough(spec: StudySpec) -> int:
    """How many results a level needs before the model moves up to it.

    Twice what a model needs: the startup draws, and more than there are parameters. A model that moves up forgets
    the results of trials that stayed below, and knows only survivors. (Decision 0120.)
    """
    startup = spec.sampler.startup_trials if isinstance(spec.sampler, StartsWithDraws) else 1
    return 2 * max(startup, len(spec.space) + 3)


def choose_level(spec: StudySpec, counts: Iterable[tuple[int, int]]) -> int:
    """The level to feed the model from, given (level, results) pairs: the highest with enough, else the lowest."""
    if is_evolutionary(spec):
        return FIRST_RESULT
    if isinstance(spec.sampler, MultiFidelitySampler):
        return EVERY_RUNG
    levels = sorted(counts)
    rich = [level for level, results in levels if results >= enough(spec)]
    if rich:
        return rich[-1]
    return levels[0][0] if levels else FIRST_RESULT


def told_levels(spec: StudySpec) -> tuple[int, ...]:
    """The rungs whose results a model over all of them uses: full budgets, and levels at least twice the previous
    one.

    A policy may check a trial at a hundred evenly spaced steps, of which neighbours add little. An extended study
    keeps its earlier full budgets, because many trials ended there. The first rung of each bracket is used as
    well, as some trials have no other.
    """
    rungs, policy = spec.rungs(), spec.policy
    starts = 1
    if isinstance(policy, HyperbandPolicy):
        starts = len(rungs)
    elif isinstance(policy, AshaPolicy):
        starts = policy.brackets
    always = {*spec.budgets, *rungs[:starts]}
    kept = [rungs[0]]
    for level in rungs[1:]:
        if level in always or level >= 2 * kept[-1]:
            kept.append(level)
    return tuple(kept)


def is_told(told: Sequence[int], level: int, step: int) -> bool:
    """Whether a report is used at one of the levels that it crossed: at the highest of the levels in use."""
    return level in told and not any(level < one <= step for one in told)


class Ranked:
    """Results sorted by their value, so that the best ones are found without a scan.

    Adding one costs O(log n) comparisons and a shift of references; `kept` costs O(most).
    """

    def __init__(self, sign: float) -> None:
        self._sign = sign
        self._order: list[tuple[float, float, int]] = []

    def add(self, result: Result) -> None:
        """Add the next result. Feasible ones come first, then by the first objective; the worst are those without
        a finite value."""
        excess = sum(max(0.0, by) for by in result.excesses)
        value = self._sign * result.values[0] if result.finite else inf
        insort(self._order, (excess, value, len(self._order)))

    def kept(self, most: int) -> list[int] | None:
        """The indices of the latest half of `most` results and the best of the others, in order; None for all
        results.

        This bounds the cost of a model, which learns from good and recent results.
        """
        total = len(self._order)
        if total <= most:
            return None
        first_latest = total - most // 2
        best = islice((place for _, _, place in self._order if place < first_latest), most - most // 2)
        return [*sorted(best), *range(first_latest, total)]
