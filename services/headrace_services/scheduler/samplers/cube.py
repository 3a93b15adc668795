"""Configurations as points for a model: rows of shares, and the coordinates that distances are taken in.

A row has a share in [0, 1) for each parameter of the space, whether it exists or not. The coordinate of a number is its
share. A choice has a coordinate for each value. Where a parameter does not exist, numbers lie in the middle and choices
are none of the values.
"""

from typing import Any

import numpy as np

from headrace.spec import CategoricalDomain, Domain, StudySpec
from headrace.spec.space import draw
from headrace_services.scheduler.core.records import Params
from headrace_services.scheduler.samplers.shares import at_share, share_of

Array = np.ndarray[Any, np.dtype[Any]]
_BELOW_ONE = 1.0 - 2.0**-40
_APART = 0.5**0.5
"""A coordinate of a choice: two different ones are 1 apart."""


class Cube:
    """The space of a study, as a model sees it."""

    def __init__(self, spec: StudySpec) -> None:
        self._space = spec.space
        self._places = {name: place for place, name in enumerate(spec.space)}
        self._widths = [_width(domain) for domain in spec.space.values()]
        self.groups = np.repeat(np.arange(len(self._widths)), self._widths)
        """(k,): the parameter of each coordinate."""
        self.choices = np.array([isinstance(one, CategoricalDomain) for one in spec.space.values()])
        """(parameters,): which ones have values without an order."""

    @property
    def parameters(self) -> int:
        """How many there are."""
        return len(self._widths)

    def row(self, params: Params) -> Array:
        """(parameters,): the shares of a configuration; NaN where a parameter does not exist."""
        return np.array(
            [
                share_of(domain, params[name]) if name in params else np.nan
                for name, domain in self._space.items()
            ]
        )

    def configuration(self, row: Array) -> Params:
        """The configuration at a row of shares."""
        return draw(self._space, lambda name, domain: at_share(domain, float(row[self._places[name]])))

    def points(self, rows: Array) -> Array:
        """(n, k): the coordinates of (n, parameters) rows. A finite domain's are those of its values."""
        exists = self._existing(rows)
        columns: list[Array] = []
        for place, domain in enumerate(self._space.values()):
            column = np.where(exists[:, place], rows[:, place], 0.5)
            if isinstance(domain, CategoricalDomain):
                chosen = np.minimum((column * domain.count).astype(int), domain.count - 1)
                told = np.eye(domain.count)[chosen] * _APART
                columns.append(np.where(exists[:, place, None], told, 0.0))
            else:
                columns.append(_snapped(domain, column)[:, None])
        return np.concatenate(columns, axis=1)

    def drawn(self, count: int, generator: np.random.Generator) -> Array:
        """(count, parameters): independent rows."""
        return generator.random((count, self.parameters)) * _BELOW_ONE

    def near(self, rows: Array, widths: Array, generator: np.random.Generator) -> Array:
        """Neighbours of (n, parameters) rows, where about half of the parameters have moved.

        Numbers move by (n,) standard deviations, choices anywhere. A parameter that does not exist is drawn anew.
        """
        anew = self.drawn(len(rows), generator)
        moved = rows + generator.normal(size=rows.shape) * widths[:, None]
        moved = np.where(self.choices, anew, np.clip(moved, 0.0, _BELOW_ONE))
        stays = generator.random(rows.shape) < 0.5
        return np.where(np.isnan(rows), anew, np.where(stays, rows, moved))

    def _existing(self, rows: Array) -> Array:
        """(n, parameters): which parameters exist in each row."""
        exists = ~np.isnan(rows)
        for place, domain in enumerate(self._space.values()):
            for condition in domain.conditions:
                parent = self._places[condition.parameter]
                values = self._space[condition.parameter]
                exists[:, place] &= [
                    there and condition.holds(at_share(values, share))
                    for there, share in zip(exists[:, parent], rows[:, parent].tolist(), strict=True)
                ]
        return exists


def _width(domain: Domain) -> int:
    return domain.count if isinstance(domain, CategoricalDomain) else 1


def _snapped(domain: Domain, shares: Array) -> Array:
    """The shares of the values that are nearest, for a domain of countable ones."""
    assert not isinstance(domain, CategoricalDomain)
    if domain.log or domain.count is None:
        return shares
    places: Array = np.floor(shares * domain.count)
    return (places + 0.5) / domain.count
