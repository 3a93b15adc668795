"""Exploration: how population-based training changes the configuration that it copied.

Each parameter of the copy is resampled with some probability and perturbed otherwise. Numbers are multiplied by
one of the factors, choices move to a neighbour, and the result stays within its domain. A number on a grid moves
by at least one step, so that rounding never undoes a perturbation. Conditional parameters follow their parents:
one that becomes active is drawn, and one whose condition fails is dropped (Jaderberg et al., arXiv 1711.09846,
§4.1).

Every parameter has its own random generator, seeded with the study's seed, the trial, the rung and the parameter's
place in the space. So a mutation can be computed again with the same result.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.spec import CategoricalDomain, Domain, FloatDomain
from headrace.spec.conditions import Space
from headrace.spec.space import draw as draw_space
from headrace_services.scheduler.core.records import Params, Value
from headrace_services.scheduler.core.sampling import draw_value, seeded

if TYPE_CHECKING:
    from numpy.random import Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """What may change, and by how much."""

    space: Space
    mutable: Collection[str]
    resample_probability: float
    factors: tuple[float, ...]
    seed: int
    kept: str | None = None
    """The parameter that determines how much a trial takes: a member keeps its own value."""

    def mutate(
        self, params: Mapping[str, Value], *, own: Mapping[str, Value], trial: int, rung: int
    ) -> Params:
        """A configuration near `params`, for a trial that copies at a rung; `own` is the trial's present one."""
        places = {name: place for place, name in enumerate(self.space)}

        def choose(name: str, domain: Domain) -> Value:
            if name == self.kept:
                return own[name]
            if name in params and name not in self.mutable:
                return params[name]
            generator = seeded(self.seed, trial, rung, places[name])
            if name not in params or generator.random() < self.resample_probability:
                return draw_value(domain, generator)
            return perturb(domain, params[name], self.factors, generator)

        return draw_space(self.space, choose)


def perturb(domain: Domain, value: Value, factors: tuple[float, ...], generator: "Generator") -> Value:
    """A value near `value` in its domain."""
    if isinstance(domain, CategoricalDomain):
        return _neighbour(domain, value, generator)
    assert isinstance(value, int | float)
    factor = factors[int(generator.integers(len(factors)))]
    moved = min(max(value * factor, domain.low), domain.high)
    if isinstance(domain, FloatDomain) and domain.step is None:
        return float(moved)
    step = domain.step or 1
    here = round((value - domain.low) / step)
    there = round((moved - domain.low) / step)
    if there == here and factor != 1.0:
        there = here + int(math.copysign(1, (factor - 1.0) * (value or 1)))
    count = domain.count
    assert count is not None
    return domain.value_at(min(max(there, 0), count - 1))


def _neighbour(domain: CategoricalDomain, value: Value, generator: "Generator") -> Value:
    here = domain.place_of(value)
    assert here is not None, "a trial's configuration is of its study's space"
    sideways = [place for place in (here - 1, here + 1) if 0 <= place < domain.count]
    return domain.value_at(sideways[int(generator.integers(len(sideways)))]) if sideways else value
