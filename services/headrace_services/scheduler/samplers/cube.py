"""Configurations as points for a model: rows of shares, and the coordinates for distances.

A row has a share in [0, 1) for each parameter of the space, whether it exists or not. The coordinate of a number
is its share. A choice has a coordinate for each value. If a parameter does not exist, a number is in the middle
and a choice has none of its values.

A choice of many values has coordinates only for those in the model's results, and one for all the others. These
are equally far from every result, so no distance changes.
"""

import math
from typing import Any

import numpy as np

from headrace.spec import CategoricalDomain, Condition, Domain, FloatDomain, IntDomain, StudySpec
from headrace.spec.space import draw
from headrace_services.scheduler.core.records import Params
from headrace_services.scheduler.samplers.shares import at_share, share_of

Array = np.ndarray[Any, np.dtype[Any]]
_BELOW_ONE = 1.0 - 2.0**-40
_APART = 0.5**0.5
"""A coordinate of a choice: two different values are 1 apart."""
_MANY = 64
"""A choice of more values has coordinates only for some of them."""
_LISTED = 20_000
"""If a domain has more values, each value that occurs is checked against a condition."""


class View:
    """The coordinates of rows, for a model of some results."""

    def __init__(self, cube: "Cube", rows: Array) -> None:
        self._cube = cube
        self._told = {
            place: np.unique(_places_at(domain, rows[~np.isnan(rows[:, place]), place]))
            for place, domain in enumerate(cube.space.values())
            if isinstance(domain, CategoricalDomain) and domain.count > _MANY
        }
        """By parameter: the places of the values that occur in the results."""
        widths = [self._width(place, domain) for place, domain in enumerate(cube.space.values())]
        self.groups = np.repeat(np.arange(len(widths)), widths)
        """(k,): the parameter of each coordinate."""

    def points(self, rows: Array) -> Array:
        """(n, k): the coordinates of (n, parameters) rows. Those of a finite domain are the coordinates of its
        values."""
        exists = self._cube.existing(rows)
        points = np.zeros((len(rows), len(self.groups)))
        first = 0
        for place, domain in enumerate(self._cube.space.values()):
            there, width = exists[:, place], self._width(place, domain)
            if isinstance(domain, CategoricalDomain):
                chosen = self._column(place, _places_at(domain, rows[there, place]))
                points[np.flatnonzero(there), first + chosen] = _APART
            else:
                points[:, first] = _snapped(domain, np.where(there, rows[:, place], 0.5))
            first += width
        return points

    def _width(self, place: int, domain: Domain) -> int:
        if place in self._told:
            return len(self._told[place]) + 1
        return domain.count if isinstance(domain, CategoricalDomain) else 1

    def _column(self, place: int, values: Array) -> Array:
        """The coordinate of each of some values of a choice; the last coordinate stands for all other values."""
        if place not in self._told:
            return values
        told = self._told[place]
        found = np.searchsorted(told, values)
        is_told = np.append(told, -1)[found] == values
        return np.where(is_told, found, len(told))


class Cube:
    """The space of a study in the form that a model uses."""

    def __init__(self, spec: StudySpec) -> None:
        self.space = spec.space
        self._places = {name: place for place, name in enumerate(spec.space)}
        self._choices = np.array([isinstance(one, CategoricalDomain) for one in spec.space.values()])
        """(parameters,): which parameters are choices, whose values have no order."""
        self._tables: dict[tuple[str, int], Array] = {}
        """By a parameter and a condition on it: for which of its values the condition holds, if these are few."""

    @property
    def parameters(self) -> int:
        """How many parameters there are."""
        return len(self.space)

    def row(self, params: Params) -> Array:
        """(parameters,): the shares of a configuration; NaN if a parameter does not exist."""
        return np.array(
            [
                share_of(domain, params[name]) if name in params else np.nan
                for name, domain in self.space.items()
            ]
        )

    def configuration(self, row: Array) -> Params:
        """The configuration of a row of shares."""
        return draw(self.space, lambda name, domain: at_share(domain, float(row[self._places[name]])))

    def drawn(self, count: int, generator: np.random.Generator) -> Array:
        """(count, parameters): independent random rows."""
        return generator.random((count, self.parameters)) * _BELOW_ONE

    def near(self, rows: Array, widths: Array, generator: np.random.Generator) -> Array:
        """Neighbours of (n, parameters) rows, in which about half of the parameters have moved.

        Numbers move by (n,) standard deviations, choices to any value. A parameter that does not exist is drawn
        again.
        """
        anew = self.drawn(len(rows), generator)
        moved = rows + generator.normal(size=rows.shape) * widths[:, None]
        moved = np.where(self._choices, anew, np.clip(moved, 0.0, _BELOW_ONE))
        stays = generator.random(rows.shape) < 0.5
        return np.where(np.isnan(rows), anew, np.where(stays, rows, moved))

    def existing(self, rows: Array) -> Array:
        """(n, parameters): which parameters exist in each row."""
        exists = ~np.isnan(rows)
        for place, (name, domain) in enumerate(self.space.items()):
            for number, condition in enumerate(domain.conditions):
                parent = self._places[condition.parameter]
                there = np.flatnonzero(exists[:, place] & exists[:, parent])
                exists[:, place] = False
                exists[there[self._holds((name, number), condition, rows[there, parent])], place] = True
        return exists

    def _holds(self, key: tuple[str, int], condition: Condition, shares: Array) -> Array:
        """(n,): whether a condition holds at shares of the parameter that it names."""
        domain = self.space[condition.parameter]
        if isinstance(domain, FloatDomain) and domain.count is None and condition.bounds:
            values = _reals(domain, shares)
            above = values > _or(condition.above, -math.inf)
            below = values < _or(condition.below, math.inf)
            low, high = _or(condition.at_least, -math.inf), _or(condition.at_most, math.inf)
            within: Array = above & below & (values >= low) & (values <= high)
            return within
        if domain.count is None or domain.count > _LISTED:
            return np.array([condition.holds(at_share(domain, one)) for one in shares.tolist()], dtype=bool)
        if key not in self._tables:
            listed = map(domain.value_at, range(domain.count))
            self._tables[key] = np.array([condition.holds(value) for value in listed])
        found: Array = self._tables[key][_places_at(domain, shares)]
        return found


def _or(bound: float | None, otherwise: float) -> float:
    return otherwise if bound is None else bound


def _places_at(domain: Domain, shares: Array) -> Array:
    """(n,): the indices, from 0, of the values at shares of a domain of countable ones."""
    assert domain.count is not None
    if isinstance(domain, IntDomain) and domain.log:
        return _log_integers(domain, shares).astype(np.int64) - domain.low
    return np.minimum((shares * domain.count).astype(np.int64), domain.count - 1)


def _log_integers(domain: IntDomain, shares: Array) -> Array:
    low, high = math.log(domain.low - 0.5), math.log(domain.high + 0.5)
    found: Array = np.clip(np.rint(np.exp((1.0 - shares) * low + shares * high)), domain.low, domain.high)
    return found


def _reals(domain: FloatDomain, shares: Array) -> Array:
    if not domain.log:
        return np.clip((1.0 - shares) * domain.low + shares * domain.high, domain.low, domain.high)
    low, high = math.log(domain.low), math.log(domain.high)
    return np.clip(np.exp((1.0 - shares) * low + shares * high), domain.low, domain.high)


def _snapped(domain: FloatDomain | IntDomain, shares: Array) -> Array:
    """The middle of the shares of the same value, for a domain of countable ones."""
    if domain.count is None:
        return shares
    if isinstance(domain, IntDomain) and domain.log:
        low, high = math.log(domain.low - 0.5), math.log(domain.high + 0.5)
        return (np.log(_log_integers(domain, shares)) - low) / (high - low)
    places: Array = np.floor(shares * domain.count)
    return (places + 0.5) / domain.count
