"""Conversion between the values of a domain and shares of it in [0, 1), in both directions.

Every value of a finite domain has the same width, and an interval with `log` is divided evenly on a log scale.
"""

import math
from typing import assert_never

from headrace.spec import CategoricalDomain, Domain, FloatDomain, IntDomain


def at_share(domain: Domain, share: float) -> bool | int | float | str:
    """The value of a domain at a share in [0, 1), where every value of a finite domain gets the same width."""
    match domain:
        case CategoricalDomain():
            return domain.value_at(min(int(share * domain.count), domain.count - 1))
        case IntDomain(log=True):
            real = math.exp(_between(math.log(domain.low - 0.5), math.log(domain.high + 0.5), share))
            return min(max(round(real), domain.low), domain.high)
        case IntDomain():
            return domain.value_at(min(int(share * domain.count), domain.count - 1))
        case FloatDomain(log=True):
            real = math.exp(_between(math.log(domain.low), math.log(domain.high), share))
            return min(max(real, domain.low), domain.high)
        case FloatDomain():
            if domain.count is not None:
                return domain.value_at(min(int(share * domain.count), domain.count - 1))
            return min(max(_between(domain.low, domain.high, share), domain.low), domain.high)
        case _:
            assert_never(domain)


def _between(low: float, high: float, share: float) -> float:
    return (1.0 - share) * low + share * high


def share_of(domain: Domain, value: object) -> float:
    """The middle of the shares at which a domain has this value, which must belong to it."""
    match domain:
        case CategoricalDomain():
            place = domain.place_of(value)
            assert place is not None, f"{value!r} is not one of {domain.values}"
            return (place + 0.5) / domain.count
        case IntDomain(log=True):
            return _share(math.log(domain.low - 0.5), math.log(domain.high + 0.5), math.log(_number(value)))
        case IntDomain():
            return ((int(_number(value)) - domain.low) // domain.step + 0.5) / domain.count
        case FloatDomain(log=True):
            return _share(math.log(domain.low), math.log(domain.high), math.log(_number(value)))
        case FloatDomain():
            if domain.count is not None:
                return (round((_number(value) - domain.low) / (domain.step or 1.0)) + 0.5) / domain.count
            return _share(domain.low, domain.high, _number(value))
        case _:
            assert_never(domain)


def _number(value: object) -> float:
    assert isinstance(value, int | float), f"{value!r} is not a number"
    return value


def _share(low: float, high: float, value: float) -> float:
    """The share of a value in an interval; halved first, so that no difference overflows."""
    width = high / 2 - low / 2
    return min(max((value / 2 - low / 2) / width, 0.0), 1.0) if width > 0 else 0.5
