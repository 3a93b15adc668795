"""What a model-based sampler is told: results in the order of their arrival, and trials that have none yet.

Values are those of one *level*, a number of steps: results of trials that ran for different times do not compare. With
a policy that stops trials early there are many results at the low levels and few at the top, so the model is fed from
the highest level that has enough of them (as in BOHB, Falkner et al., ICML 2018). A trial that is on its way to that
level is pending; one that waits at a lower rung is neither.

Evolutionary samplers work in generations, and a generation is over when its trials have results; they are fed each
trial's first result, at the first rung that it crossed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

from headrace.spec import CmaEsSampler, GpSampler, Nsga2Sampler, Nsga3Sampler, StudySpec, TpeSampler
from headrace_services.scheduler.samplers.protocol import Params

FIRST_RESULT = 0
"""The level that stands for "each trial's first result"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One trial's result at a level."""

    params: Params
    values: tuple[float, ...]
    """By objective; NaN where the metric was missing."""
    excesses: tuple[float, ...] = ()
    """By constraint: by how much the bound was missed; at most 0 where it was met."""
    generation: int | None = None
    """The generation that the trial was proposed for, by an evolutionary sampler."""

    @property
    def finite(self) -> bool:
        """Whether every objective has a finite value."""
        return all(isfinite(value) for value in self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What a sampler is told for one proposal."""

    level: int
    """In steps; `FIRST_RESULT` for evolutionary samplers."""
    results: Sequence[Result]
    """In the order of arrival. A longer history of the same study and level begins with a shorter one."""
    pending: Sequence[Params] = ()
    """Configurations whose results at the level are to come, by trial number."""
    warm: Sequence[Result] = ()
    """Results of an earlier study at the level, the best first."""


NOTHING = History(level=FIRST_RESULT, results=())
"""The history of a study without results."""


def is_evolutionary(spec: StudySpec) -> bool:
    """Whether the sampler works in generations."""
    return isinstance(spec.sampler, CmaEsSampler | Nsga2Sampler | Nsga3Sampler)


def enough(spec: StudySpec) -> int:
    """How many results make a level worth modelling: the startup draws, and more than there are parameters."""
    startup = spec.sampler.startup_trials if isinstance(spec.sampler, TpeSampler | GpSampler) else 1
    return max(startup, len(spec.space) + 3)


def choose_level(spec: StudySpec, counts: Iterable[tuple[int, int]]) -> int:
    """The level to feed the model from, of (level, results) pairs: the highest with enough, else the lowest."""
    if is_evolutionary(spec):
        return FIRST_RESULT
    levels = sorted(counts)
    rich = [level for level, results in levels if results >= enough(spec)]
    if rich:
        return rich[-1]
    return levels[0][0] if levels else FIRST_RESULT


def kept(results: Sequence[Result], most: int, signs: Sequence[float]) -> list[int]:
    """The places of at most `most` results in order: the best half and the latest, so that the cost of a model is
    bounded. The best are those with the least value of the first objective, feasible ones first."""
    if len(results) <= most:
        return list(range(len(results)))
    latest = range(len(results) - most // 2, len(results))

    def badness(place: int) -> tuple[float, float, int]:
        result = results[place]
        excess = sum(max(0.0, by) for by in result.excesses)
        value = signs[0] * result.values[0] if result.finite else float("inf")
        return excess, value, place

    best = sorted(range(latest[0]), key=badness)[: most - len(latest)]
    return sorted([*best, *latest])
