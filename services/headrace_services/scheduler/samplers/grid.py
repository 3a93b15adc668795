"""Every point of the grid once, the last parameter varying fastest.

The grid is a tree, because a conditional parameter exists only under some values of its parents: a branch without it
has fewer points, and no point comes twice. The tree is never built: `_count` says how many points lie below a
choice, and proposal n is found by walking down. A parameter that no condition refers to costs one division; one
that conditions refer to costs a step for each value that they name.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import assert_never

from headrace.spec import CategoricalDomain, Domain, FloatDomain, GridSampler, IntDomain, StudySpec
from headrace_services.scheduler.samplers.protocol import Params

Scalar = bool | int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """One parameter's values in their order, and the runs of values that mean the same to every condition."""

    name: str
    domain: Domain
    count: int
    value_at: Callable[[int], Scalar]
    runs: tuple[tuple[int, int], ...]


class Grid:
    """The grid of a spec whose sampler is `grid`."""

    def __init__(self, spec: StudySpec, sampler: GridSampler) -> None:
        self._axes = tuple(
            _axis(name, domain, sampler.points.get(name), spec.space) for name, domain in spec.space.items()
        )
        self._parents = {c.parameter for domain in spec.space.values() for c in domain.conditions}
        self._counts: dict[tuple[int, tuple[tuple[str, type, Scalar], ...]], int] = {}

    @property
    def size(self) -> int | None:
        return self._count(0, {})

    def suggest(self, number: int) -> Params | None:
        if not 0 <= number < self._count(0, {}):
            return None
        chosen: Params = {}
        for place, axis in enumerate(self._axes):
            if not _exists(axis.domain, chosen):
                continue
            for first, last in axis.runs:
                below = self._count(place + 1, {**chosen, axis.name: axis.value_at(first)})
                index, rest = divmod(number, below)
                if index <= last - first:
                    chosen[axis.name] = axis.value_at(first + index)
                    number = rest
                    break
                number -= below * (last - first + 1)
        return chosen

    def _count(self, place: int, chosen: Mapping[str, Scalar]) -> int:
        """The number of points below a choice of the parameters before `place`."""
        if place == len(self._axes):
            return 1
        key = (place, tuple((n, type(v), v) for n, v in chosen.items() if n in self._parents))
        if key not in self._counts:
            axis = self._axes[place]
            if _exists(axis.domain, chosen):
                total = sum(
                    (last - first + 1) * self._count(place + 1, {**chosen, axis.name: axis.value_at(first)})
                    for first, last in axis.runs
                )
            else:
                total = self._count(place + 1, chosen)
            self._counts[key] = total
        return self._counts[key]


def _exists(domain: Domain, chosen: Mapping[str, Scalar]) -> bool:
    return all(c.parameter in chosen and c.holds(chosen[c.parameter]) for c in domain.conditions)


def _axis(name: str, domain: Domain, points: int | None, space: Mapping[str, Domain]) -> _Axis:
    count, value_at = _values(domain, points)
    named = [
        value
        for other in space.values()
        for condition in other.conditions
        if condition.parameter == name
        for value in condition.values
    ]
    marks = sorted({place for value in named for place in _places(domain, value, count, value_at, points)})
    runs: list[tuple[int, int]] = []
    start = 0
    for mark in marks:
        if start < mark:
            runs.append((start, mark - 1))
        runs.append((mark, mark))
        start = mark + 1
    if start < count:
        runs.append((start, count - 1))
    return _Axis(name=name, domain=domain, count=count, value_at=value_at, runs=tuple(runs))


def _places(
    domain: Domain, value: Scalar, count: int, value_at: Callable[[int], Scalar], points: int | None
) -> list[int]:
    """Where a value named by a condition stands on the axis, if it does."""
    admitted = domain.admit(value)
    if isinstance(domain, IntDomain) and points is None and isinstance(admitted, int):
        return [(admitted - domain.low) // domain.step]
    return [
        place
        for place in range(count)
        if value_at(place) == admitted and type(value_at(place)) is type(admitted)
    ]


def _values(domain: Domain, points: int | None) -> tuple[int, Callable[[int], Scalar]]:
    match domain:
        case CategoricalDomain():
            return domain.count, domain.value_at
        case IntDomain():
            if points is None or points >= domain.count:
                return domain.count, domain.value_at
            wholes = _spread_ints(domain, points)
            return len(wholes), wholes.__getitem__
        case FloatDomain():
            if domain.count is not None:
                return domain.count, domain.value_at
            reals = _spread(domain.low, domain.high, points or 1, log=domain.log)
            return len(reals), reals.__getitem__
        case _:
            assert_never(domain)


def _spread(low: float, high: float, points: int, *, log: bool) -> tuple[float, ...]:
    """Evenly spaced points with both ends, in the logarithm where asked; a single one lies in the middle."""
    shares = [place / (points - 1) for place in range(points)] if points > 1 else [0.5]
    if log:
        start, end = math.log(low), math.log(high)
        inner = [math.exp((1.0 - share) * start + share * end) for share in shares]
    else:
        inner = [(1.0 - share) * low + share * high for share in shares]
    exact = {0.0: low, 1.0: high}
    return tuple(
        exact.get(share, min(max(real, low), high)) for share, real in zip(shares, inner, strict=True)
    )


def _spread_ints(domain: IntDomain, points: int) -> tuple[int, ...]:
    """At most `points` different values; fewer where rounding makes neighbours equal."""
    if domain.log:
        reals = _spread(float(domain.low), float(domain.high), points, log=True)
        return tuple(dict.fromkeys(min(max(round(real), domain.low), domain.high) for real in reals))
    last = domain.count - 1
    if points == 1:
        return (domain.value_at(last // 2),)
    # Rounded in integers, half up, so that no range is too large for it.
    places = ((2 * last * place + points - 1) // (2 * (points - 1)) for place in range(points))
    return tuple(dict.fromkeys(domain.value_at(place) for place in places))
