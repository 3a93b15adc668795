"""Every point of the grid once, the last parameter varying fastest.

The grid is a tree, because a conditional parameter exists only under some values of its parents: a branch without it
has fewer points, and no point comes twice. The tree is never built. Below a choice of the first parameters, the number
of points depends only on the *context*: which values that later conditions name were chosen. So the points
are counted once per context, from the last parameter to the first, and proposal n is found by walking down: one
division per parameter, and for one that conditions refer to, a step for each value that they name.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

from headrace.spec import CategoricalDomain, Domain, FloatDomain, GridSampler, IntDomain, StudySpec
from headrace.spec.space import needed_parents
from headrace_services.scheduler.samplers.protocol import Params

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
class _Axis:
    """One parameter's values in their order."""

    name: str
    domain: Domain
    value_at: Callable[[int], Scalar]
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
                        chosen[axis.name] = axis.value_at(run.first + index)
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
                value = axis.value_at(run.first)
                yield run, kept | {(axis.name, type(value), value)}
            else:
                yield run, kept


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
    runs: list[_Run] = []
    start = 0
    for mark in marks:
        if start < mark:
            runs.append(_Run(first=start, last=mark - 1, named=False))
        runs.append(_Run(first=mark, last=mark, named=True))
        start = mark + 1
    if start < count:
        runs.append(_Run(first=start, last=count - 1, named=False))
    return _Axis(name=name, domain=domain, value_at=value_at, runs=tuple(runs))


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
