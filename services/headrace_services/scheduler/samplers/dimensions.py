"""Convert between the domains of a space and Optuna's distributions, in both directions, without loss.

Optuna is given every domain in a form that all of its samplers can handle, and that changes the behaviour of none:

- a categorical parameter is a choice of an index in its list of values, so that 1, 1.0 and true stay distinct;
- a float with a step is an integer index on its grid;
- an integer or a float is unchanged (log included), unless its bounds are so large that a difference of floats would
  lose the ends or overflow: then it is a share in [0, 1], of the interval or of its logarithm;
- so is a domain with a step and too many values to count.
"""

import math
from dataclasses import dataclass
from typing import assert_never

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from headrace.spec import CategoricalDomain, Domain, FloatDomain, IntDomain, StudySpec

Scalar = bool | int | float | str
_EXACT = 2**50
"""Integers up to here, and sums of two, are exact as floats."""
_COUNTABLE = 10_000
"""A domain with more values than this is treated as continuous. (Optuna's GP lists the values of a discrete one.)"""
_MODERATE = 1e100
"""Reals up to here can be subtracted, squared and averaged as floats without overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One parameter in the form that Optuna uses."""

    name: str
    domain: Domain
    distribution: BaseDistribution
    by_place: bool
    """Optuna's value is the index of the value in the domain."""
    by_share: bool
    """Optuna's value is a share of the interval."""

    def outside(self, inside: float | str) -> Scalar:
        """Convert Optuna's value to the domain's."""
        if self.by_place:
            assert not isinstance(self.domain, IntDomain)
            return self.domain.value_at(int(inside))
        if not self.by_share:
            value = self.domain.admit(inside)
            assert value is not None, f"{inside!r} is not in the domain of {self.name}"
            return value
        assert not isinstance(self.domain, CategoricalDomain)
        share = float(inside)
        real = _at_share(self.domain.low, self.domain.high, share, log=self.domain.log)
        if isinstance(self.domain, FloatDomain):
            if self.domain.count is None:
                return min(max(real, self.domain.low), self.domain.high)
            place = round((real - self.domain.low) / (self.domain.step or 1.0))
            return self.domain.value_at(min(max(place, 0), self.domain.count - 1))
        # In integers, as the bounds may be larger than the integers that a float can tell apart.
        whole = min(max(round(real), self.domain.low), self.domain.high)
        place = (whole - self.domain.low + self.domain.step // 2) // self.domain.step
        return self.domain.value_at(min(place, self.domain.count - 1))

    def inside(self, outside: object) -> float | int:
        """Convert a value of the domain, which must belong to it, to Optuna's."""
        value = self.domain.admit(outside)
        assert value is not None, f"{outside!r} is not in the domain of {self.name}"
        match self.domain:
            case CategoricalDomain():
                return next(
                    place
                    for place, choice in enumerate(self.domain.values)
                    if type(choice) is type(value) and choice == value
                )
            case FloatDomain() if self.by_place:
                return round((float(value) - self.domain.low) / (self.domain.step or 1.0))
            case FloatDomain() | IntDomain():
                assert not isinstance(value, str)
                if self.by_share:
                    return _share(self.domain.low, self.domain.high, value, log=self.domain.log)
                return value
            case never:
                assert_never(never)


def dimensions(spec: StudySpec) -> dict[str, Dimension]:
    """Every parameter of a space, by name and in order."""
    return {name: _dimension(name, domain) for name, domain in spec.space.items()}


def _dimension(name: str, domain: Domain) -> Dimension:
    distribution: BaseDistribution
    by_place = by_share = False
    match domain:
        case CategoricalDomain():
            by_place = True
            distribution = CategoricalDistribution(tuple(range(domain.count)))
        case IntDomain() if max(abs(domain.low), abs(domain.high)) <= _EXACT and domain.count <= _COUNTABLE:
            high = domain.value_at(domain.count - 1)
            distribution = IntDistribution(domain.low, high, log=domain.log, step=domain.step)
        case FloatDomain() if domain.count is not None and domain.count <= _COUNTABLE:
            by_place = True
            distribution = IntDistribution(0, domain.count - 1)
        case FloatDomain() if _is_moderate(domain):
            distribution = FloatDistribution(domain.low, domain.high, log=domain.log)
        case IntDomain() | FloatDomain():
            by_share = True
            distribution = FloatDistribution(0.0, 1.0)
        case never:
            assert_never(never)
    return Dimension(
        name=name, domain=domain, distribution=distribution, by_place=by_place, by_share=by_share
    )


def _is_moderate(domain: FloatDomain) -> bool:
    """Whether the interval is neither so large nor so narrow that float arithmetic loses its ends."""
    largest = max(abs(domain.low), abs(domain.high))
    if largest > _MODERATE or domain.step is not None:
        return False
    if domain.log:
        return domain.low >= 1 / _MODERATE and math.log(domain.high) - math.log(domain.low) > 1e-9
    return domain.high - domain.low > max(1e-9 * largest, 1 / _MODERATE)


def _at_share(low: float, high: float, share: float, *, log: bool) -> float:
    if log:
        return math.exp((1.0 - share) * math.log(low) + share * math.log(high))
    return (1.0 - share) * low + share * high


def _share(low: float, high: float, value: float, *, log: bool) -> float:
    """The position of a value in its interval as a share; halved first, so that no difference overflows."""
    if log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    width = high / 2 - low / 2
    return min(max((value / 2 - low / 2) / width, 0.0), 1.0) if width > 0 else 0.0
