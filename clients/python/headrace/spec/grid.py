"""Every point of the grid once, the last parameter varying fastest.

The grid is a tree, because a conditional parameter exists only for some values of its parents: a branch without
it has fewer points, and no point occurs twice. The tree is never built. Below a choice of the first parameters,
the number of points depends only on the *context*: which later conditions hold for the chosen values. So the
points are counted once per context, from the last parameter to the first. Proposal n is found by walking down,
with one division per parameter; for a parameter that conditions refer to, with one step for each run of values
that they distinguish. A parameter that has no conditions and is not named by any shares the table of the next
one, times the number of its values.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, assert_never

from headrace.bounds.numbers import GRID_POINTS
from headrace.errors import InvalidFieldError, Violation
from headrace.spec.conditions import first_place
from headrace.spec.domains import CategoricalDomain, Condition, Domain, FloatDomain, IntDomain
from headrace.spec.sampler import GridSampler
from headrace.spec.space import needed_parents
from headrace.spec.study import StudySpec

MOST_ROUNDED = GRID_POINTS
"""For a logarithmic range of integers, at most this many points are rounded to see which differ: a few
milliseconds.
"""

Scalar = bool | int | float | str
Point = tuple[tuple[str, int], ...]
"""A configuration of the grid: the active parameters, each with the position of its value."""
_Span = tuple[int, int]
"""The positions from the first up to, but not including, the second."""
_Context = tuple[int, ...]
"""For each parameter so far that later conditions refer to, in order: which of those conditions hold for its
value, as the bits of a number.
"""
_ABSENT: Final = 0
"""For a parameter that does not exist: no condition on it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Neighbouring values of an axis that meet the same conditions: `holding` is their entry in a context."""

    first: int
    count: int
    holding: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Values:
    """An axis's values in order, computed on request, because there may be too many for a list."""

    count: int
    at: Callable[[int], Scalar]
    place_of: Callable[[float], int] = lambda _: 0
    """For numbers, which ascend: the position of a value, accurate to one place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """One parameter's values in order."""

    name: str
    values: _Values
    runs: tuple[_Run, ...]
    needs: tuple[tuple[int, int], ...]
    """Its conditions: for each, the position in the context and the bit that says whether it holds."""
    kept: tuple[int, ...]
    """The positions of the context that are needed later."""
    named: bool
    """Whether conditions refer to it."""

    @property
    def plain(self) -> bool:
        """Whether the parameter exists in every context and changes none."""
        return not self.needs and not self.named

    def branches(self, context: _Context) -> Iterator[tuple[_Run | None, _Context]]:
        """The runs to choose from (None if the parameter does not exist), and the context after each."""
        kept = context if len(self.kept) == len(context) else tuple(context[place] for place in self.kept)
        exists = all(context[place] & bit for place, bit in self.needs)
        for run in self.runs if exists else (None,):
            holding = run.holding if run is not None else _ABSENT
            yield run, ((*kept, holding) if self.named else kept)


@dataclass(frozen=True, slots=True)
class _Below:
    """The points below each context: `factor` times the table's entry."""

    factor: int
    table: dict[_Context, int]

    def points(self, context: _Context) -> int:
        return self.factor * self.table[context]


class Grid:
    """The grid of a space, with as many points of continuous parameters as the sampler says."""

    def __init__(self, spec: StudySpec, sampler: GridSampler) -> None:
        self._space = spec.space
        self._axes = _axes(spec.space, sampler)
        self._by_name = {axis.name: axis.values for axis in self._axes}
        self._below = self._count()

    @property
    def size(self) -> int:
        return self._below[0].points(())

    def suggest(self, number: int) -> dict[str, Scalar] | None:
        if not 0 <= number < self._below[0].points(()):
            return None
        chosen: dict[str, Scalar] = {}
        context: _Context = ()
        for place, axis in enumerate(self._axes):
            for run, further in axis.branches(context):
                below = self._below[place + 1].points(further)
                index, rest = divmod(number, below)
                if run is None or index < run.count:
                    if run is not None:
                        chosen[axis.name] = axis.values.at(run.first + index)
                        number = rest
                    context = further
                    break
                number -= below * run.count
        return chosen

    def point(self, params: Mapping[str, Scalar]) -> Point | None:
        """The point of a configuration; None if it is not on the grid."""
        places = {name: self.place_of(name, value) for name, value in params.items()}
        if None in places.values():
            return None
        return tuple((name, place) for name, place in places.items() if place is not None)

    def place_of(self, name: str, value: Scalar) -> int | None:
        """The position of a parameter's value on its axis; None if it is not on it."""
        return next(_places(self._space[name], value, self._by_name[name]), None)

    def _count(self) -> list[_Below]:
        """For each axis and for the end: the number of points from there on, in each context that occurs there."""
        contexts: list[tuple[_Context, ...]] = [((),)]
        for axis in self._axes:
            here = contexts[-1]
            if not axis.plain:
                here = tuple({further: None for context in here for _, further in axis.branches(context)})
            contexts.append(here)
        below = [_Below(1, dict.fromkeys(contexts[-1], 1))]
        for axis, here in zip(reversed(self._axes), reversed(contexts[:-1]), strict=True):
            after = below[-1]
            if axis.plain:
                below.append(_Below(after.factor * axis.values.count, after.table))
                continue
            table = {
                context: sum(
                    (1 if run is None else run.count) * after.points(further)
                    for run, further in axis.branches(context)
                )
                for context in here
            }
            below.append(_Below(1, table))
        return below[::-1]


def _axes(space: Mapping[str, Domain], sampler: GridSampler) -> tuple[_Axis, ...]:
    needed = needed_parents(space)
    axes: list[_Axis] = []
    values = {name: _values(name, domain, sampler.points.get(name)) for name, domain in space.items()}
    spans: dict[str, list[list[_Span]]] = {}
    """By parent, for each condition on it: the positions of its values."""
    meet: dict[str, list[tuple[str, int]]] = {name: [] for name in space}
    for name, domain in space.items():
        for condition in domain.conditions:
            told = spans.setdefault(condition.parameter, [])
            meet[name].append((condition.parameter, 1 << len(told)))
            told.append(_spans(space[condition.parameter], condition, values[condition.parameter]))
    live: list[str] = []
    for place, name in enumerate(space):
        kept = tuple(at for at, parent in enumerate(live) if parent in needed[place + 1])
        axes.append(
            _Axis(
                name=name,
                values=values[name],
                runs=_runs(values[name].count, spans.get(name, [])),
                needs=tuple((live.index(parent), bit) for parent, bit in meet[name]),
                kept=kept,
                named=name in spans,
            )
        )
        live = [live[at] for at in kept] + ([name] if name in spans else [])
    return tuple(axes)


def _runs(count: int, conditions: list[list[_Span]]) -> tuple[_Run, ...]:
    """The values cut at the ends of all spans, each run with the conditions that hold in it."""
    turns: dict[int, int] = {0: 0}
    """At each cut, which bits change."""
    for bit, spans in enumerate(conditions):
        for first, end in spans:
            for cut in (first, end):
                turns[cut] = turns.get(cut, 0) ^ (1 << bit)
    cuts = sorted(cut for cut in turns if cut < count)
    runs: list[_Run] = []
    holding = 0
    for first, end in zip(cuts, [*cuts[1:], count], strict=True):
        holding ^= turns[first]
        runs.append(_Run(first=first, count=end - first, holding=holding))
    return tuple(runs)


def _spans(domain: Domain, condition: Condition, axis: _Values) -> list[_Span]:
    """The positions on the axis of the values that meet a condition, as disjoint spans, none of them empty."""
    if condition.values:
        places = {place for value in condition.values for place in _places(domain, value, axis)}
        return [(place, place + 1) for place in places]
    if isinstance(domain, CategoricalDomain):
        return [(place, place + 1) for place in range(axis.count) if condition.holds(axis.at(place))]
    first = first_place(axis.count, lambda place: not condition.too_low(_number(axis, place)))
    end = first_place(axis.count, lambda place: condition.too_high(_number(axis, place)))
    return [(first, end)] if first < end else []


def _number(axis: _Values, place: int) -> float:
    value = axis.at(place)
    assert not isinstance(value, str)
    return value


def _places(domain: Domain, value: Scalar, axis: _Values) -> Iterator[int]:
    """The position on the axis of a value named by a condition, if it is there."""
    if isinstance(domain, CategoricalDomain):
        place = domain.place_of(value)
        if place is not None:
            yield place
        return
    admitted = domain.admit(value)
    if admitted is not None:
        near = axis.place_of(admitted)
        yield from (
            place
            for place in range(max(0, near - 1), min(near + 2, axis.count))
            if _same(axis.at(place), admitted)
        )


def _same(value: Scalar, admitted: float) -> bool:
    """Whether a value of an axis is the one that is meant: values between the ends of a range are computed, for
    example 0.01 as 0.010000000000000002.
    """
    return not isinstance(value, str) and (
        value == admitted or (isinstance(value, float) and math.isclose(value, admitted, rel_tol=1e-9))
    )


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
    """Evenly spaced points including both ends, in the logarithm if requested; a single point is in the middle."""

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
    """At most `points` different values; fewer if rounding makes neighbours equal."""
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
    # Rounded in integers, half up, so that no range is too large. With fewer points than values, neighbours are
    # at least
    # one value apart before they are rounded, so they differ after it.
    gaps = 2 * (points - 1)

    def at(place: int) -> int:
        return domain.value_at((2 * last * place + points - 1) // gaps)

    return _Values(count=points, at=at, place_of=lambda value: bisect_left(range(points), int(value), key=at))


@lru_cache(maxsize=64)
def _rounded(low: int, high: int, points: int) -> tuple[int, ...]:
    """The distinct integers nearest to points that are evenly spaced in the logarithm."""
    spread = _Spread(IntDomain(low=low, high=high, log=True), points)
    reals = map(spread.real, range(points))
    return tuple(dict.fromkeys(min(max(round(real), low), high) for real in reals))
