"""Independent draws.

Every parameter of every proposal has a random generator of its own, seeded with the study's seed, the number of
the proposal and the parameter's place in the space. So a proposal never depends on timing or on the ones before it,
and a parameter that does not exist in a configuration shifts no other draw.
"""

import math
from typing import assert_never

import numpy as np

from headrace.spec import CategoricalDomain, Domain, FloatDomain, IntDomain, StudySpec
from headrace.spec.space import draw
from headrace_services.scheduler.samplers.protocol import Params


class RandomSampler:
    """Uniform draws, in the logarithm where `log` is set."""

    def __init__(self, spec: StudySpec) -> None:
        self._space = spec.space
        self._seed = spec.seed
        self._places = {name: place for place, name in enumerate(spec.space)}

    @property
    def size(self) -> int | None:
        return None

    def suggest(self, number: int) -> Params:
        def choose(name: str, domain: Domain) -> bool | int | float | str:
            seeds = np.random.SeedSequence(self._seed, spawn_key=(number, self._places[name]))
            return draw_value(domain, np.random.Generator(np.random.PCG64(seeds)))

        return draw(self._space, choose)


def draw_value(domain: Domain, generator: np.random.Generator) -> bool | int | float | str:
    """A uniform draw from one domain, in the logarithm where `log` is set."""
    match domain:
        case CategoricalDomain():
            return domain.value_at(int(generator.integers(domain.count)))
        case IntDomain(log=True):
            # Half a step on each side, so that the ends are as likely as their neighbours.
            drawn = math.exp(_between(math.log(domain.low - 0.5), math.log(domain.high + 0.5), generator))
            return min(max(round(drawn), domain.low), domain.high)
        case IntDomain():
            return domain.value_at(int(generator.integers(domain.count - 1, endpoint=True, dtype=np.uint64)))
        case FloatDomain(log=True):
            drawn = math.exp(_between(math.log(domain.low), math.log(domain.high), generator))
            return min(max(drawn, domain.low), domain.high)
        case FloatDomain():
            if domain.count is not None:
                return domain.value_at(int(generator.integers(domain.count)))
            return min(max(_between(domain.low, domain.high, generator), domain.low), domain.high)
        case _:
            assert_never(domain)


def _between(low: float, high: float, generator: np.random.Generator) -> float:
    """Uniform in [low, high), also where high - low is beyond the floats."""
    share = generator.random()
    return (1.0 - share) * low + share * high
