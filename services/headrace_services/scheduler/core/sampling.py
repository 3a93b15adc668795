"""What the core knows about samplers: how they are asked, and which proposals are made elsewhere.

Implementations are passed in (`samplers`): a cycle asks a `Sampler` for a proposal by its number alone.
"""

import math
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Protocol, assert_never

from headrace.spec import (
    BestOfSampler,
    CategoricalDomain,
    Domain,
    FloatDomain,
    IntDomain,
    ModelBased,
    OwnSampler,
    SobolSampler,
    StartsWithDraws,
    StudySpec,
)
from headrace.spec.grid import Point
from headrace_services.scheduler.core.records import Params, Value

if TYPE_CHECKING:
    from numpy.random import Generator


class Sampler(Protocol):
    """Proposes configurations by number. The same number gives the same configuration."""

    @property
    def size(self) -> int | None:
        """How many proposals there are; None if there is no limit."""
        ...

    def suggest(self, number: int) -> Params | None:
        """Proposal `number`, counted from 0, with the active parameters in the order of the space; None if
        exhausted."""
        ...


class Points(Protocol):
    """The points of a finite space (`samplers.points`)."""

    @property
    def size(self) -> int:
        """How many points there are."""
        ...

    def point(self, params: Mapping[str, Value]) -> Point | None:
        """The point of a configuration; None if it is not one of the points."""
        ...

    def untried(self, number: int, tried: Set[Point], beside: Params | None = None) -> Params | None:
        """An untried point for proposal `number`, near the one that a model asked for; None if all are tried."""
        ...


def is_pooled(spec: StudySpec) -> bool:
    """Whether the study's proposals are made outside its cycles.

    A process of the pool makes those that are too expensive for an event loop, and those of installed packages.
    Those of `best_of` are read from another study.
    """
    return isinstance(spec.sampler, ModelBased | SobolSampler | BestOfSampler | OwnSampler)


def pooled_from(spec: StudySpec) -> int | None:
    """The number of the first proposal that the pool makes; None if all are made in the cycle.

    The startup draws before it need no model. A study that starts with the results of another one has no startup
    draws.
    """
    if not is_pooled(spec):
        return None
    if isinstance(spec.sampler, StartsWithDraws) and spec.warm_start is None:
        return spec.sampler.startup_trials
    return 0


def seeded(seed: int, *key: int) -> "Generator":
    """The random generator for a study's seed and a key. Equal arguments give equal draws."""
    import numpy as np  # slow to import, and a scheduler must be back soon after it was killed

    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))


def draw_value(domain: Domain, generator: "Generator") -> bool | int | float | str:
    """A uniform draw from one domain, on a log scale if `log` is set."""
    match domain:
        case CategoricalDomain():
            return domain.value_at(int(generator.integers(domain.count)))
        case IntDomain(log=True):
            # Half a step on each side, so that the ends are as likely as their neighbours.
            drawn = math.exp(_between(math.log(domain.low - 0.5), math.log(domain.high + 0.5), generator))
            return min(max(round(drawn), domain.low), domain.high)
        case IntDomain():
            return domain.value_at(int(generator.integers(domain.count - 1, endpoint=True, dtype="uint64")))
        case FloatDomain(log=True):
            drawn = math.exp(_between(math.log(domain.low), math.log(domain.high), generator))
            return min(max(drawn, domain.low), domain.high)
        case FloatDomain():
            if domain.count is not None:
                return domain.value_at(int(generator.integers(domain.count)))
            return min(max(_between(domain.low, domain.high, generator), domain.low), domain.high)
        case _:
            assert_never(domain)


def _between(low: float, high: float, generator: "Generator") -> float:
    """Uniform in [low, high), even if high - low is too large for a float."""
    share = generator.random()
    return (1.0 - share) * low + share * high
