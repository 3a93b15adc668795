"""Every point of the grid once, the last parameter varying fastest.

The grid is a tree, because a conditional parameter exists only under some values of its parents: a branch without it
has fewer points, and no point comes twice. The tree is never built. Below a choice of the first parameters, the number
of points depends only on the *context*: which values that later conditions name were chosen. So the points
are counted once per context, from the last parameter to the first, and proposal n is found by walking down: one
division per parameter, and for one that conditions refer to, a step for each value that they name.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import assert_never

from headrace.bounds.numbers import GRID_POINTS
from headrace.errors import InvalidFieldError, Violation
from headrace.spec import CategoricalDomain, Domain, FloatDomain, GridSampler, IntDomain, StudySpec
from headrace.spec.space import needed_parents
from headrace_services.scheduler.samplers.protocol import Params

MOST_ROUNDED = GRID_POINTS
"""Of a logarithmic range of integers so many points are rounded, to see which differ: a few milliseconds."""

Scalar = bool | int | float | str
# The chosen values that conditions further on refer to, by parameter; the type keeps 1 and True apart.
_Context = frozenset[tuple[str, type, Scalar]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Neighbouring values of an axis that mean the same to every condition; `named` where one names it."""

    first: int
    last: int
    named: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Values:
    """An axis's values in their order, computed when they are asked for: there may be more than any list holds."""

    count: int
    at: Callable[[int], Scalar]
    place_of: Callable[[float], int] = lambda _: 0
    """Of numbers: about where a value stands, to within one place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """One parameter's values in their order."""

    name: str
    domain: Domain
    values: _Values
    runs: tuple[_Run, ...]

    def exists(self, context: _Context) -> bool:
        return all(
            any(name == condition.parameter and condition.holds(value) for name, _, value in context)
            for condition in self.domain.conditions
        )


class Grid:
    """The grid of a spec whose sampler is `grid`."""

    def __init__(self, spec: StudySpec, sampler: GridSampler) -> None:
        self._axes = tuple(
            _axis(name, domain, sampler.points.get(name), spec.space) for name, domain in spec.space.items()
        )
        self._needed = needed_parents(spec.space)
        self._below = self._count()

    @property
    def size(self) -> int | None:
        return self._below[0][frozenset()]

    def suggest(self, number: int) -> Params | None:
        if not 0 <= number < self._below[0][frozenset()]:
            return None
        chosen: Params = {}
        context: _Context = frozenset()
        for place in range(len(self._axes)):
            for run, further in self._branches(place, context):
                below = self._below[place + 1][further]
                index, rest = divmod(number, below)
                if run is None or index <= run.last - run.first:
                    if run is not None:
                        axis = self._axes[place]
                        chosen[axis.name] = axis.values.at(run.first + index)
                        number = rest
                    context = further
                    break
                number -= below * (run.last - run.first + 1)
        return chosen

    def _count(self) -> list[dict[_Context, int]]:
        """For each place and each context that occurs there: the number of points from there on."""
        below: list[dict[_Context, int]] = [{frozenset(): 0}]
        for place in range(len(self._axes)):
            below.append(
                {further: 0 for context in below[place] for _, further in self._branches(place, context)}
            )
        below[-1] = dict.fromkeys(below[-1], 1)
        for place in reversed(range(len(self._axes))):
            for context in below[place]:
                below[place][context] = sum(
                    (1 if run is None else run.last - run.first + 1) * below[place + 1][further]
                    for run, further in self._branches(place, context)
                )
        return below

    def _branches(self, place: int, context: _Context) -> Iterator[tuple[_Run | None, _Context]]:
        """The runs to choose from (None where the parameter does not exist), and the context after each."""
        axis = self._axes[place]
        needed = self._needed[place + 1]
        kept = frozenset(entry for entry in context if entry[0] in needed)
        if not axis.exists(context):
            yield None, kept
            return
        for run in axis.runs:
            if run.named and axis.name in needed:
                value = axis.values.at(run.first)
                yield run, kept | {(axis.name, type(value), value)}
            else:
                yield run, kept


def _axis(name: str, domain: Domain, points: int | None, space: Mapping[str, Domain]) -> _Axis:
    values = _values(name, domain, points)
    count = values.count
    named = [
        value
        for other in space.values()
        for condition in other.conditions
        if condition.parameter == name
        for value in condition.values
    ]
    marks = sorted({place for value in named for place in _places(domain, value, values)})
    runs: list[_Run] = []
    start = 0
    for mark in marks:
        if start < mark:
            runs.append(_Run(first=start, last=mark - 1, named=False))
        runs.append(_Run(first=mark, last=mark, named=True))
        start = mark + 1
    if start < count:
        runs.append(_Run(first=start, last=count - 1, named=False))
    return _Axis(name=name, domain=domain, values=values, runs=tuple(runs))


def _places(domain: Domain, value: Scalar, axis: "_Values") -> list[int]:
    """Where a value named by a condition stands on the axis, if it does."""
    admitted = domain.admit(value)
    if admitted is None:
        return []
    if isinstance(domain, CategoricalDomain) or isinstance(admitted, bool | str):
        places = range(axis.count)  # a message listed them
    else:
        near = axis.place_of(admitted)
        places = range(max(0, near - 1), min(near + 2, axis.count))
    return [
        place for place in places if axis.at(place) == admitted and type(axis.at(place)) is type(admitted)
    ]


def _values(name: str, domain: Domain, points: int | None) -> _Values:
    match domain:
        case CategoricalDomain():
            return _Values(count=domain.count, at=domain.value_at)
        case IntDomain():
            if points is None or points >= domain.count:
                low, step = domain.low, domain.step
                return _Values(
                    count=domain.count, at=domain.value_at, place_of=lambda value: (int(value) - low) // step
                )
            return _int_points(name, domain, points)
        case FloatDomain():
            if domain.count is not None:
                start, gap = domain.low, domain.step or 1.0
                return _Values(
                    count=domain.count,
                    at=domain.value_at,
                    place_of=lambda value: round((value - start) / gap),
                )
            spread = _Spread(domain, points or 1)
            return _Values(count=spread.points, at=spread.real, place_of=spread.place_of)
        case _:
            assert_never(domain)


@dataclass(frozen=True, slots=True)
class _Spread:
    """Evenly spaced points with both ends, in the logarithm where asked; a single one lies in the middle."""

    domain: FloatDomain | IntDomain
    points: int

    def real(self, place: int) -> float:
        low, high = float(self.domain.low), float(self.domain.high)
        share = place / (self.points - 1) if self.points > 1 else 0.5
        if share in (0.0, 1.0):
            return high if share else low
        if self.domain.log:
            real = math.exp((1.0 - share) * math.log(low) + share * math.log(high))
        else:
            real = (1.0 - share) * low + share * high
        return min(max(real, low), high)

    def place_of(self, value: float) -> int:
        return bisect_left(range(self.points), value, key=self.real)


def _int_points(name: str, domain: IntDomain, points: int) -> _Values:
    """At most `points` different values; fewer where rounding makes neighbours equal."""
    if domain.log:
        if points > MOST_ROUNDED:
            violation = Violation(
                field=f"sampler.points.{name}",
                value=str(points),
                message=f"asks for more than {MOST_ROUNDED} points of a logarithmic range of integers",
                remedy=f"Choose at most {MOST_ROUNDED}, or leave it out to try every value.",
            )
            raise InvalidFieldError([violation])
        rounded = _rounded(domain.low, domain.high, points)
        return _Values(
            count=len(rounded), at=rounded.__getitem__, place_of=lambda value: bisect_left(rounded, value)
        )
    last = domain.count - 1
    if points == 1:
        return _Values(count=1, at=lambda _: domain.value_at(last // 2))
    # Rounded in integers, half up, so that no range is too large for it. With fewer points than values, neighbours are
    # at least one value apart before they are rounded, so they differ after it.
    gaps = 2 * (points - 1)

    def at(place: int) -> int:
        return domain.value_at((2 * last * place + points - 1) // gaps)

    return _Values(count=points, at=at, place_of=lambda value: bisect_left(range(points), int(value), key=at))


@lru_cache(maxsize=64)
def _rounded(low: int, high: int, points: int) -> tuple[int, ...]:
    """The different integers nearest to evenly spaced points in the logarithm."""
    spread = _Spread(IntDomain(low=low, high=high, log=True), points)
    reals = map(spread.real, range(points))
    return tuple(dict.fromkeys(min(max(round(real), low), high) for real in reals))
